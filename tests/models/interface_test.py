"""What training and use ask of every model besides its function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.every import (
  SETTINGS,
  WHOLE,
  B,
  assert_close,
  build,
  make,
  scorer,
  text,
  warm,
)
from txl_jax import models
from txl_jax.generation import decoding
from txl_jax.models import base, windowed
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import settings
from txl_jax.program.errors import UserError

SHARDED = [(name, x) for name in WHOLE for x in ({}, *WHOLE[name])]
# As it is trained, and as it is used.
HOW = [{}, dict(used=True)]


def test_every_model_has_settings():
  assert SETTINGS.keys() == models.MODELS.keys() | {'convolution'}


@pytest.mark.default_cases('transformer_xl-how1')
@pytest.mark.parametrize('how', HOW)
def test_row_axes(name, how):
  """They are where another number of rows makes another shape, and only."""
  model, _ = make(name, **how)
  axes, few, many = model.row_axes(), model.init_memory(5), model.init_memory(7)
  assert jax.tree.structure(axes) == jax.tree.structure(few)
  assert model.remembers() == bool(jax.tree.leaves(few))
  for axis, x, y in zip(*map(jax.tree.leaves, (axes, few, many)), strict=True):
    shape = list(x.shape)
    if axis != base.SHARED:
      assert shape[axis] % 5 == 0  # rows, or rows and heads
      shape[axis] = shape[axis] // 5 * 7
    assert y.shape == tuple(shape)


@pytest.mark.default_cases('transformer_xl-how1', 'lstm-how1')
@pytest.mark.parametrize('how', HOW)
def test_rows_may_change_places(name, how):
  """Of the inputs and, along its row axes, of the memory."""
  model, _ = make(name, **how)
  score, order = scorer(name, **how), np.array([2, 0, 1])
  tokens, targets = text(3)

  def take(axis, x):
    if axis == base.SHARED:
      return x
    each = x.shape[axis] // B
    places = order[:, None] * each + np.arange(each)
    return jnp.take(x, places.ravel(), axis)

  def permute(memory):
    return jax.tree.map(take, model.row_axes(), memory)

  memory = warm(name, **how)
  out = score(tokens, targets, memory)
  moved = score(tokens[order], targets[order], permute(memory))
  assert_close(moved.nll, out.nll[order])
  assert_close(moved.memory, permute(out.memory))
  # Rows differ, or this would say nothing.
  stale = score(tokens[order], targets[order], memory).nll
  assert np.abs(stale - moved.nll).max() > 1e-3


@pytest.mark.default_cases('gcnn-how1', 'lstm-how1', 'al_rfou-how1')
@pytest.mark.parametrize('how', HOW)
def test_repeat_memory(name, how):
  model, _ = make(name, **how)
  score = scorer(name, **how)
  tokens, targets = text(3)
  memory = warm(name, **how)
  many = decoding.repeat_memory(model, memory, 2)
  assert jax.tree.map(jnp.shape, many) == jax.tree.map(
    jnp.shape, model.init_memory(2 * B)
  )
  out = score(tokens, targets, memory)
  more = score(np.repeat(tokens, 2, 0), np.repeat(targets, 2, 0), many)
  assert_close(more.nll, np.repeat(out.nll, 2, 0))
  repeated = decoding.repeat_memory(model, out.memory, 2)
  assert_close(more.memory, repeated)


def test_at_test_time_it_is_the_same_function(name):
  plain, used = make(name)[0], make(name, used=True)[0]
  memories = [model.init_memory(B) for model in (plain, used)]
  for seed in range(3):
    part = text(3, seed)
    a = scorer(name)(*part, memories[0])
    b = scorer(name, used=True)(*part, memories[1])
    assert_close(a.nll, b.nll)
    memories = a.memory, b.memory


def test_overrides_at_test_time(name):
  """Keys that are declared so are taken, others are refused in one line."""
  model, _ = make(name)
  declared, refused = settings.keys(type(model.config)), {'nonsense': 1}
  for key, entry in declared.items():
    value = getattr(model.config, key)
    if entry.may_change != settings.AT_TEST_TIME:
      refused[key] = value
      continue
    others = [x for x in entry.choices if x != value] or [value + 1]
    changed = model.at_test_time(**{key: others[0]}).config
    expected = model.with_keys(attention='xla').config.replace(
      **{key: others[0]}
    )
    assert changed == expected
  assert 'd_model' in refused
  taken = [key for key in declared if key not in refused]
  for key, value in refused.items():
    with pytest.raises(UserError) as e:
      model.at_test_time(**{key: value})
    allowed = ', '.join(taken) or 'none'
    assert str(e.value) == f"override is '{key}'; allowed: {allowed}"


@pytest.mark.default_cases('transformer_xl')
def test_parameters_at_inference_are_some_of_all(name):
  """And enough to score with."""
  model, _ = make(name)
  shapes = jax.eval_shape(lambda: base.init_params(model, jax.random.key(0)))
  draw = np.random.default_rng(0).normal
  params = jax.tree.map(lambda x: draw(0, 0.3, x.shape).astype(x.dtype), shapes)
  used = model.inference_params(params)
  every = dict(jax.tree_util.tree_leaves_with_path(params))
  for path, x in jax.tree_util.tree_leaves_with_path(used):
    assert every[path] is x
  memory, (tokens, targets) = model.init_memory(B), text(4)

  @jax.jit
  def score(params):
    return model.apply({'params': params}, tokens, targets, memory, train=False)

  jax.tree.map(np.testing.assert_array_equal, score(params), score(used))


@pytest.mark.default_cases(
  'gcnn-changes4', 'lstm-changes6', 'qrnn-changes8', 'shaw-changes12'
)
@pytest.mark.parametrize('case, changes', SHARDED)
def test_every_parameter_has_a_sharding_rule(case, changes):
  """Those that only training has, too."""
  model = build(case, dtype='float32', **changes)
  # A wrapper has the parameters and rules of its model.
  trained = model.model if isinstance(model, windowed.Windowed) else model
  mesh = mesh_lib.abstract_mesh(dict(fsdp=2, tensor=2))
  params = base.param_shapes(trained)
  assert base.param_shapes(model) == params
  places = placement.by_rules(params, mesh, model.SHARDING)
  assert jax.tree.structure(places) == jax.tree.structure(params)
  for x, place in zip(jax.tree.leaves(params), jax.tree.leaves(places)):
    place.shard_shape(x.shape)  # which fails where it cannot be divided
