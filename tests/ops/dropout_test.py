"""Dropout of states; the masks are in `tests/attention_test.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.ops import dropout

RNG = np.random.default_rng(0)


@pytest.mark.default_cases('0.3-True-bfloat16')
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize(
  'rate, locked', [(0.0, False), (0.3, False), (0.3, True)]
)
def test_what_the_backward_pass_keeps_of_relu_and_dropout(rate, locked, dtype):
  """The result alone; the gradient is that of the two, bit for bit."""
  key = jax.random.key(0) if rate else None
  x, g = (jnp.array(RNG.normal(size=[6, 5, 40]), dtype) for _ in range(2))
  x = x.at[0, 0].set(0)
  together = lambda x: dropout.relu_and_drop(x, rate, key, locked)
  apart = lambda x: dropout.drop(jax.nn.relu(x), rate, key, locked)
  (y, back), (expected, back_apart) = (jax.vjp(f, x) for f in (together, apart))
  np.testing.assert_array_equal(y, expected)
  np.testing.assert_array_equal(back(g)[0], back_apart(g)[0])
  kept = jax.eval_shape(lambda x: jax.vjp(together, x)[1], x)
  large = [leaf for leaf in jax.tree.leaves(kept) if leaf.size >= x.size]
  assert [leaf.dtype for leaf in large] == [dtype]
