"""Building blocks against their formulas; whole layers in the model's test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from txl_jax.models import layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 3, 8]) * [[[3.0]], [[1e-2]]]  # eps matters in row 1


@pytest.mark.parametrize('eps', [1e-5, 1e-12, 1e-2])
def test_layer_norm(eps):
  params = {'norm': {'scale': RNG.normal(size=8), 'bias': RNG.normal(size=8)}}
  with jax.enable_x64(True):
    module = layers.LayerNorm(eps, 0.02, jnp.dtype('float64'))
    out = module.apply({'params': params}, jnp.array(X))
  expected = direct.layer_norm(X, params, eps)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_layer_norm_is_computed_in_float32(dtype):
  """A mean of 1,000 squares to 10^6 and would hide a variance of 1."""
  x = jnp.array(1000 + 8 * RNG.normal(size=[1, 1, 64]), dtype)
  module = layers.LayerNorm(1e-5, 0.0, jnp.dtype(dtype))
  variables = module.init(jax.random.key(0), x)
  assert variables['params']['norm']['scale'].dtype == jnp.float32
  out = module.apply(variables, x)
  assert out.dtype == dtype
  one = {'norm': {'scale': np.ones(64), 'bias': np.zeros(64)}}
  expected = direct.layer_norm(np.asarray(x, np.float64), one, 1e-5)
  rtol, atol = (2**-8, 1e-3) if dtype == 'bfloat16' else (1e-4, 1e-4)
  np.testing.assert_allclose(
    np.asarray(out, np.float64), expected, rtol=rtol, atol=atol
  )


def test_feed_forward():
  params = {
    'w1': {'kernel': RNG.normal(size=[8, 5]), 'bias': RNG.normal(size=5)},
    'w2': {'kernel': RNG.normal(size=[5, 8]), 'bias': RNG.normal(size=8)},
  }
  with jax.enable_x64(True):
    module = layers.FeedForward(5, 0.5, 0.02, jnp.dtype('float64'))
    out = module.apply({'params': params}, jnp.array(X), train=False)
  expected = direct.feed_forward(X, params)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


def test_biases():
  module = layers.Biases(40, 50, 0.1, jnp.dtype('bfloat16'))
  (u, v), variables = module.init_with_output(jax.random.key(0))
  params = variables['params']
  assert params.keys() == {'u', 'v'}
  for x, param in zip((u, v), (params['u'], params['v'])):
    assert param.shape == (40, 50) and param.dtype == jnp.float32
    assert abs(param.std() - 0.1) < 0.01
    assert x.dtype == jnp.bfloat16
    np.testing.assert_array_equal(x, param.astype(jnp.bfloat16))
  assert (params['u'] != params['v']).all()


def test_dropout():
  x = jnp.ones([50, 40])
  apply = lambda rate, key, train: layers.Dropout(rate).apply(
    {}, x, train=train, rngs={'dropout': jax.random.key(key)} if train else {}
  )
  np.testing.assert_array_equal(apply(0.3, 0, False), x)
  np.testing.assert_array_equal(apply(0.0, 0, True), x)
  out = apply(0.3, 0, True)
  assert abs((out == 0).mean() - 0.3) < 0.06
  np.testing.assert_array_equal(out, apply(0.3, 0, True))
  assert (out != apply(0.3, 1, True)).any()
