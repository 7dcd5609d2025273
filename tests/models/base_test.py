"""What the interface promises of the function that every model is."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import compilations, direct
from tests.models.every import (
  WHOLE,
  B,
  V,
  assert_close,
  make,
  reader,
  scorer,
  some,
  text,
  warm,
)
from txl_jax import models
from txl_jax.models import base, windowed


@pytest.mark.default_cases('transformer_xl')
def test_output_types(name):
  """float32 nll and logits, one scalar aux, one memory structure."""
  model, _ = make(name, dtype='float32')
  with jax.enable_x64(False):
    tokens, targets = text(5)
    memory = model.init_memory(B)

    def init():
      return model.init(jax.random.key(0), tokens, targets, memory, train=False)

    variables = jax.eval_shape(init)
    out, (logits, after) = jax.eval_shape(
      lambda variables: (
        model.apply(
          variables, tokens, targets, memory, train=False, progress=0.5
        ),
        model.apply(variables, tokens, memory, method='logits'),
      ),
      variables,
    )
  assert variables.keys() == {'params'}  # no mutable collection
  assert out.nll.shape == (B, 5) and out.nll.dtype == jnp.float32
  assert out.aux.shape == (2,) and out.aux.dtype == jnp.float32
  assert logits.shape == (B, 5, V) and logits.dtype == jnp.float32

  def spec(tree):
    return jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)

  assert spec(out.memory) == spec(after) == spec(memory)


@pytest.mark.default_cases('transformer_xl', 'al_rfou')
def test_nll_belongs_to_logits(name):
  tokens, targets = text(6)
  memory = make(name)[0].init_memory(B)
  out = scorer(name)(tokens, targets, memory)
  logits, after = reader(name)(tokens, memory)
  rows = zip(np.asarray(logits), targets)
  assert_close(out.nll, np.stack([direct.nll(*row) for row in rows]))
  assert_close(out.memory, after)
  assert not out.aux.any()


@pytest.mark.default_cases('gcnn-changes2')
@pytest.mark.parametrize(
  'name, changes',
  some([(name, c) for name, all_ in WHOLE.items() for c in all_]),
)
def test_segments_with_memory_are_one_long_segment(x64, name, changes):
  model, _ = make(name, **changes)
  score = scorer(name, **changes)
  tokens, targets = text(9)
  whole = score(tokens, targets, model.init_memory(B))
  memory, nll = model.init_memory(B), []
  for start in 0, 3, 6:
    part = np.s_[:, start : start + 3]
    out = score(tokens[part], targets[part], memory)
    nll.append(out.nll)
    memory = out.memory
  assert_close(np.concatenate(nll, axis=1), whole.nll)
  assert_close(memory, whole.memory)


@pytest.mark.thorough
def test_no_gradient_reaches_memory(name):
  """Parameters that act through memory alone get no gradient."""
  model, params = make(name)
  tokens, targets = text(6)
  first, second = np.s_[:, :3], np.s_[:, 3:]
  start = model.init_memory(B)

  def run(params, part, memory):
    return model.apply(
      {'params': params}, tokens[part], targets[part], memory, train=False
    )

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def grads(now, before):
    memory = run(before, first, start).memory
    out = run(now, second, memory)
    kept = [x for x in jax.tree.leaves(memory) if x.dtype == jnp.float64]
    assert kept or isinstance(model, windowed.Windowed)  # it keeps tokens
    return out.nll.sum() + sum(x.sum() for x in kept), out.nll

  (now, before), nll = grads(params, params)
  assert all(x.any() for x in jax.tree.leaves(now))
  assert all(not x.any() for x in jax.tree.leaves(before))
  # Memory does act on the loss, or all this would say nothing.
  fresh = scorer(name)(tokens[second], targets[second], start).nll
  assert np.abs(nll - fresh).max() > 1e-2


@pytest.mark.default_cases('transformer_xl', 'al_rfou')
def test_causality(name):
  """Changing a token changes the logits from there on and none before."""
  tokens, _ = text(6)
  memory = warm(name)

  def logits(tokens):
    return np.asarray(reader(name)(tokens, memory)[0])

  before = logits(tokens)
  for t in range(6):
    changed = tokens.copy()
    changed[:, t] = (changed[:, t] + 1) % V
    moved = np.abs(logits(changed) - before).max(axis=-1)  # [B, T]
    np.testing.assert_array_equal(moved[:, :t], 0)
    assert (moved[:, t:] > 1e-6).all()


@pytest.mark.default_cases('transformer_xl-how1', 'al_rfou-how0')
@pytest.mark.parametrize('how', [{}, dict(used=True)])
def test_reset_memory(name, how):
  model, _ = make(name, **how)
  score = scorer(name, **how)
  tokens, targets = text(3)
  memory = warm(name, **how)
  rows = np.array([False, True, False])
  reset = model.reset_memory(memory, rows)
  carried = score(tokens, targets, memory)
  fresh = score(tokens, targets, model.init_memory(B))
  out = score(tokens, targets, reset)
  expected = np.where(rows[:, None], fresh.nll, carried.nll)
  np.testing.assert_array_equal(out.nll, expected)
  assert np.abs(fresh.nll - carried.nll).max(axis=1).min() > 1e-3
  everything = model.reset_memory(memory, np.full(B, True))

  def equal(axis, x, y):
    if axis != base.SHARED:  # where a ring goes on does not matter
      np.testing.assert_array_equal(x, y)

  start = model.init_memory(B)
  jax.tree.map(equal, model.row_axes(), everything, start)
  nothing = model.reset_memory(memory, np.full(B, False))
  jax.tree.map(np.testing.assert_array_equal, nothing, memory)


@pytest.mark.default_cases('convolution-True')
@pytest.mark.parametrize('cold', [False, True])
def test_padding(name, cold):
  """A padded row scores and leaves memory like the short row by itself."""
  model, _ = make(name)
  score = scorer(name)
  tokens, targets = text(6)
  lengths = np.array([2, 6, 0], np.int32)
  memory = model.init_memory(B) if cold else warm(name)
  scored = np.arange(6) < lengths[:, None]
  out = score(tokens, np.where(scored, targets, -1), memory, lengths)
  follow = text(3, seed=2)
  after = score(*follow, out.memory)
  for row, n in enumerate(lengths):
    alone = memory
    if n:
      short = score(tokens[:, :n], targets[:, :n], memory)
      assert_close(out.nll[row, :n], short.nll[row])
      alone = short.memory
    np.testing.assert_array_equal(out.nll[row, n:], 0)
    assert_close(after.nll[row], score(*follow, alone).nll[row])


@pytest.mark.default_cases('convolution')
def test_targets_that_are_not_scored(name):
  """Nll 0 and no gradient at -1; the others are as if all were scored."""
  model, params = make(name)
  tokens, targets = text(4)
  mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]], bool)
  memory = model.init_memory(B)

  @jax.jit
  def run(targets, weights):
    def loss(params):
      out = model.apply(
        {'params': params}, tokens, targets, memory, train=False
      )
      return jnp.sum(out.nll * weights), out.nll

    return jax.grad(loss, has_aux=True)(params)

  ones = np.ones(mask.shape)
  grads, nll = run(np.where(mask, targets, -1), ones)
  all_grads, all_nll = run(targets, mask * ones)
  np.testing.assert_array_equal(nll, np.where(mask, all_nll, 0))
  assert (all_nll > 0).all()
  assert_close(grads, all_grads)
  none, _ = run(np.full_like(targets, -1), ones)
  assert all(not x.any() for x in jax.tree.leaves(none))


def test_rows_do_not_see_each_other(name):
  model, _ = make(name)
  score = scorer(name)
  tokens, targets = text(3)
  before = score(tokens, targets, model.init_memory(B))
  # Not in place: the first call may still be reading.
  others = np.stack([tokens[0], (tokens[1] + 1) % V, *tokens[2:]])
  after = score(others, targets, model.init_memory(B))
  np.testing.assert_array_equal(before.nll[::2], after.nll[::2])
  assert (before.nll[1] != after.nll[1]).all()


@pytest.mark.thorough
def test_the_last_logits(name):
  """The same, without those of the other positions ever being made."""
  tokens, _ = text(6)
  memory = warm(name)
  rows = np.arange(B)
  for lengths in None, np.array([2, 6, 1], np.int32):
    every, after = reader(name)(tokens, memory, lengths)
    last, same = reader(name, last=True)(tokens, memory, lengths)
    at = 5 if lengths is None else lengths - 1
    assert last.shape == (B, V)
    assert_close(last, every[rows, at])
    jax.tree.map(np.testing.assert_array_equal, same, after)

  def sizes(last):
    jaxpr = str(jax.make_jaxpr(reader(name, last))(tokens, memory))
    shapes = re.findall(r'\[(\d[\d,]*)\]', jaxpr)
    return {np.prod([int(n) for n in shape.split(',')]) for shape in shapes}

  assert B * 6 * V in sizes(False) - sizes(True)


def test_programs_of_equal_models_are_compiled_once():
  """And a memory starts where the parameters are."""
  there = jax.devices()[1]
  key = jax.device_put(jax.random.key(0), there)
  with compilations.counted() as compiled:
    for _ in range(2):
      model = models.build(dict(name='gcnn', d_model=2, blocks='[2,2]'), 3)
      variables = base.freeze(model, base.init_params(model, key))
      (memory,) = base.start_memory(model, variables, 5)
  assert memory.devices() == {there} and memory.shape == (5, 1, 2)
  names = 'init_params', 'freeze', 'start_memory'
  assert [compiled.count(f'jit({name})') for name in names] == [1, 1, 1]


def test_counts():
  """Scored targets, and pairs of neighbours of which both are scored."""
  targets = np.array([[-1, 3, 0, 2, -1, 1], [4, -1, 5, -1, 6, 7]])
  assert base.counts(targets).tolist() == [8, 3]
  none = np.full([2, 3], -1)
  assert base.counts(none).tolist() == [1, 1]
