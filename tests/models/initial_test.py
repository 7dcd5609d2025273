"""Initial weights: drawn together, they are as Flax would draw each alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import every
from txl_jax.models import base, initial
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement

KEY = jax.random.key(3)


def alone(model):
  """The parameters as Flax draws them, one after the other."""
  tokens = jnp.zeros([1, 1], jnp.int32)
  arguments = tokens, tokens, model.init_memory(1)
  keys = {'params': KEY, 'dropout': KEY}
  return model.init(keys, *arguments, train=True)['params']


def alike(a, b):
  """Each array of the same mean and deviation, within 6 standard errors."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    std = np.std(y)
    np.testing.assert_allclose(
      np.mean(x), np.mean(y), atol=9 * std / x.size**0.5
    )
    np.testing.assert_allclose(np.std(x), std, rtol=6 / x.size**0.5)


def different(params):
  """No two arrays that are drawn begin with the same numbers."""
  drawn = [
    x.ravel()[:4] for x in jax.tree.leaves(params) if len(np.unique(x)) > 2
  ]
  return len({x.tobytes() for x in map(np.asarray, drawn)}) == len(drawn) > 1


CHANGES = [
  *((name, {}) for name in ('window', 'gcnn', 'lstm')),
  pytest.param('shaw', {}, marks=pytest.mark.slow),
  # A module that is called twice: Flax checks the shapes of its parameters.
  ('transformer_xl', dict(pre_norm=True, untie_biases=True)),
  pytest.param(
    *('transformer_xl', dict(cutoffs=[4, 8], div_val=2, tie_projs=[True] * 3)),
    marks=pytest.mark.slow,
  ),
]


@pytest.mark.thorough
@pytest.mark.parametrize('name, changes', CHANGES)
def test_draws_together_are_as_draws_alone(name, changes):
  model = every.build(name, dtype='float32', **changes)
  params = base.init_params(model, KEY)
  alike(params, jax.jit(lambda: alone(model))())
  assert different(params)


@pytest.mark.thorough
def test_values_are_the_same_on_several_devices():
  model = every.build('transformer_xl', dtype='float32')
  mesh = mesh_lib.make_mesh(dict(fsdp=4, tensor=2))
  make = functools.partial(base.init_params, model, KEY)
  abstract = jax.eval_shape(make)
  places = placement.by_rules(abstract, mesh, model.SHARDING)
  made = placement.create(make, placement.with_shardings(abstract, places))
  assert any(not x.is_fully_replicated for x in jax.tree.leaves(made))
  for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(make())):
    np.testing.assert_array_equal(x, y)


@pytest.mark.thorough
def test_equal_layers_are_one_draw():
  def draws(layers):
    model = every.build('transformer_xl', dtype='float32', n_layer=layers)
    program = jax.jit(lambda: base.init_params(model, KEY)).lower().as_text()
    return program.count('erf_inv')

  assert draws(5) == draws(2) < 12


def test_draws_are_normal():
  init = initial.normal(0.5, mean=3.0)
  x = initial.together(lambda: init(None, (100, 100)), KEY)
  assert x.dtype == jnp.float32
  np.testing.assert_allclose(np.mean(x), 3.0, atol=0.02)  # 4 deviations
  np.testing.assert_allclose(np.std(x), 0.5, atol=0.015)


def test_the_nth_draw_has_the_nth_key():
  init, shapes = initial.normal(1.0, 2.0), [(2,), (3,), (3,), (2,)]
  found = initial.together(lambda: [init(None, s) for s in shapes], KEY)
  for x, key in zip(found, jax.random.split(KEY, 4), strict=True):
    expected = 2 + jax.random.normal(key, x.shape)
    np.testing.assert_allclose(x, expected, rtol=1e-6)
