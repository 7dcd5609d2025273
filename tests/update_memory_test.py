"""What the memory of a layer keeps of a segment."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from txl_jax import attention


@hypothesis.settings(
  max_examples=20, deadline=None, derandomize=True, database=None
)
@hypothesis.given(st.integers(0, 5), st.integers(1, 5), st.data())
def test_what_is_kept(M, T, data):
  memory = np.random.default_rng(0).normal(size=[2, M, 3]).astype(np.float32)
  states = np.random.default_rng(1).normal(size=[2, T, 3]).astype(np.float32)
  push = jax.jit(attention.update_memory)
  lengths = data.draw(st.tuples(st.integers(0, T), st.integers(0, T)))
  rows = []
  for old, new, n in zip(memory, states, lengths):
    both = np.concatenate([old, new[:n]])
    rows.append(both[len(both) - M :])
  padded = push(memory, states, np.array(lengths))
  np.testing.assert_array_equal(padded, np.stack(rows))
  both = np.concatenate([memory, states], axis=1)
  np.testing.assert_array_equal(push(memory, states), both[:, T:])


def test_what_is_kept_keeps_dtype_and_stops_gradients():
  memory = jnp.zeros([2, 3, 1], jnp.bfloat16)
  for lengths in None, jnp.array([1, 2]):

    def total(states, lengths):
      kept = attention.update_memory(memory, states, lengths)
      assert kept.dtype == jnp.bfloat16
      return kept.astype(jnp.float32).sum()

    assert total(jnp.ones([2, 2, 1]), lengths) > 0
    assert not jax.grad(total)(jnp.ones([2, 2, 1]), lengths).any()
