"""What the memory of a layer keeps of a segment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax import attention

CASES = [(0, 3, (3, 1)), (2, 3, (0, 2)), (5, 2, (2, 1)), (3, 3, (1, 3))]
CASES += [(1, 5, (0, 5))]


@pytest.mark.parametrize('M, T, lengths', CASES)
def test_what_is_kept(M, T, lengths):
  memory = np.random.default_rng(0).normal(size=[2, M, 3]).astype(np.float32)
  states = np.random.default_rng(1).normal(size=[2, T, 3]).astype(np.float32)
  rows = []
  for old, new, n in zip(memory, states, lengths):
    both = np.concatenate([old, new[:n]])
    rows.append(both[len(both) - M :])
  padded = attention.update_memory(memory, states, np.array(lengths))
  np.testing.assert_array_equal(padded, np.stack(rows))
  both = np.concatenate([memory, states], axis=1)
  kept = attention.update_memory(memory, states)
  np.testing.assert_array_equal(kept, both[:, T:])


def test_what_is_kept_keeps_dtype_and_stops_gradients():
  memory = jnp.zeros([2, 3, 1], jnp.bfloat16)
  for lengths in None, jnp.array([1, 2]):

    def total(states, lengths):
      kept = attention.update_memory(memory, states, lengths)
      assert kept.dtype == jnp.bfloat16
      return kept.astype(jnp.float32).sum()

    assert total(jnp.ones([2, 2, 1]), lengths) > 0
    assert not jax.grad(total)(jnp.ones([2, 2, 1]), lengths).any()
