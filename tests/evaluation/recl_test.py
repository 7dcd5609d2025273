"""RECL against its definition, read line by line, and one reading for each l.

l[i][c][t] is the nll of model i at position t after a context of c.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models import every
from txl_jax import models
from txl_jax.errors import UserError
from txl_jax.evaluation import recl
from txl_jax.parallel import mesh as mesh_lib


def literal(l, step, longest, r):
  """The definition, without arrays: l is {c: list over t} of each model."""
  lengths = []
  for i in range(len(l)):
    c = step
    while c + step <= longest:
      places = range(len(l[i][c]))
      b = [min(l[j][c][t] for j in range(len(l))) for t in places]
      T = sorted(places, key=lambda t: -b[t])[: max(1, round(r * len(places)))]

      def f(other, i=i, b=b, T=T):
        return sum(min(b[t], l[i][other][t]) for t in T) / len(T)

      now, then = math.exp(f(c)), math.exp(f(c + step))
      if (now - then) / now < 0.01:
        break
      c += step
    lengths.append(c)
  return lengths


def test_as_the_definition_says():
  rng = np.random.default_rng(0)
  distinct = set()
  for _ in range(40):
    m, C, P = rng.integers(1, 4), rng.integers(2, 7), rng.integers(1, 30)
    falls = rng.uniform(0.2, 1, [m, 1, 1]) * np.arange(C)[:, None]
    nll = 4 - 0.3 * falls**0.5 + rng.normal(size=[m, C, P]) * 0.3
    step = int(rng.integers(1, 9))
    lengths = recl.contexts(step, step * C)
    by_name = [dict(zip(lengths, model.tolist())) for model in nll]
    for r in (0.1, 0.5, 1.0):
      found = recl.effective(nll, lengths, r)
      expected = literal(by_name, step, step * C, r)
      assert [x.length for x in found] == expected
      assert [x.at_end for x in found] == [c == step * C for c in expected]
      distinct |= {c // step for c in expected}
  assert len(distinct) > 3


def test_a_hand_made_table():
  """Two models, contexts 10, 20, 30, two positions; all by hand.

  Of model 0 f(10, 10) = 2 and f(10, 20) = (1 + 2) / 2, a gain of 1 - e^-0.5;
  then nothing. Model 1 is never better than the best, which is model 0.
  """
  nll = np.array(
    [[[2, 2], [1, 2], [1, 2]], [[3, 3], [2.5, 3], [2, 2.5]]], np.float64
  )
  ours, theirs = recl.effective(nll, (10, 20, 30), 1.0)
  assert (ours.length, theirs.length) == (20, 10)
  assert ours.gains == pytest.approx((1 - math.exp(-0.5), 0))
  assert theirs.gains == (0, 0)
  # At the hardest position, the second one from context 20, nothing is gained.
  hardest, _ = recl.effective(nll, (10, 20, 30), 0.5)
  assert hardest.gains == pytest.approx((1 - math.exp(-1), 0))


def test_positions():
  assert recl.positions(100, 20, 4).tolist() == [20, 46, 72, 99]
  every_one = recl.positions(30, 20, 1000).tolist()
  assert every_one == [*range(20, 30)]
  assert [*recl.contexts(100, 350)] == [100, 200, 300]


def make(name, **changes):
  """A small model, also one without memory, and its parameters."""
  if name == 'convolution':
    model = every.build(name, dtype='float32')
  else:
    fields = every.SETTINGS[name] | changes
    model = models.build({'name': name, **fields}, every.V)
  params = jax.tree.map(jnp.float32, direct.random_params(model))
  return model.at_test_time(), params


# With less memory than the context; with what it needs; and without.
CASES = [('transformer_xl', {}), ('convolution', {}), ('al_rfou', {})]


@pytest.mark.parametrize('name, changes', CASES)
def test_after_exactly_c_tokens(name, changes):
  """Segments of 3 and contexts of 2, 3 and 7, on a mesh: as read alone."""
  model, params = make(name, **changes)
  tokens = np.random.default_rng(0).integers(0, every.V, 40).astype(np.uint8)
  at = np.array([7, 20, 21, 39])
  read = jax.jit(
    lambda tokens, memory: model.apply(
      {'params': params}, tokens, memory, method='logits'
    )
  )
  mesh = mesh_lib.make_mesh()
  placed = jax.device_put(params, mesh_lib.replicated(mesh))
  for c in 2, 3, 7:
    found = recl.after_context(
      model, placed, tokens, at, c, batch_size=3, segment_len=3, mesh=mesh
    )
    for nll, t in zip(found, at, strict=True):
      memory = model.init_memory(1)
      context = tokens[None, t - c : t].astype(np.int32)
      T = 3 if model.remembers() else c
      for start in range(0, c, T):
        logits, memory = read(context[:, start : start + T], memory)
      logits = np.float64(logits[0, -1])
      expected = np.log(np.sum(np.exp(logits))) - logits[tokens[t]]
      assert nll == pytest.approx(expected, rel=1e-4)


def test_a_model_that_can_be_given_no_more():
  """The last five tokens, whatever c is; the others do not matter."""

  model, params = make('al_rfou', table_len=5)
  tokens = np.random.default_rng(0).integers(0, every.V, 40).astype(np.uint8)
  at, own = np.array([7, 20]), dict(batch_size=2, segment_len=3)
  expected = recl.after_context(model, params, tokens, at, 5, **own)
  found = recl.after_context(model, params, tokens, at, 7, **own)
  np.testing.assert_array_equal(found, expected)
  assert (recl.reads(model, 7), recl.reads(model, 4)) == (5, 4)
  # Others have no such limit, nor has one whose memory goes on.
  for name in 'transformer_xl', 'shaw':
    assert recl.reads(make(name)[0], 700) == 700
    assert recl.reads(make(name, mem_len=0)[0], 700) == 700


def test_a_context_that_does_not_fit():
  model, params = make('transformer_xl', mem_len=0)
  with pytest.raises(UserError, match=r'recl.longest, .* or recl.batch_size'):
    recl.check(model, params, 10**6, batch_size=8, segment_len=4)


@pytest.mark.parametrize(
  'name, value',
  [
    ('others', ('',)),
    ('others', (3,)),
    ('step', 501),
    ('shares', ()),
    ('shares', (0.5, 0.0)),
    ('shares', (1.1,)),
    ('shares', (float('nan'),)),
    ('shares', (True,)),
  ],
)
def test_values_that_are_none(name, value):
  assert [k for k, _ in recl.Recl(**{name: value}).problems()] == [name]
  assert not [*recl.Recl(others=('a',), shares=(0.1, 1)).problems()]
