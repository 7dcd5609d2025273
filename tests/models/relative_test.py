"""The global biases; the attention of a layer is in the model's test."""

import jax
import jax.numpy as jnp
import numpy as np

from txl_jax.models import relative
from txl_jax.models.transformer_xl import Config


def test_biases():
  module = relative.Biases(
    Config(n_head=40, d_head=50, init_std=0.1, dtype='bfloat16')
  )
  (u, v), variables = module.init_with_output(jax.random.key(0))
  params = variables['params']
  assert params.keys() == {'u', 'v'}
  for x, param in zip((u, v), (params['u'], params['v'])):
    assert param.shape == (40, 50) and param.dtype == jnp.float32
    assert abs(param.std() - 0.1) < 0.01
    assert x.dtype == jnp.bfloat16
    np.testing.assert_array_equal(x, param.astype(jnp.bfloat16))
  assert (params['u'] != params['v']).all()
