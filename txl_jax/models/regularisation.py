"""Penalties on activations, for `LMOutput.aux`.

Shapes: B batch, T segment, D model width.
"""

import jax.numpy as jnp


def activations(states, dropped, lengths, *, size, change):
  """Keeps final states small and slow (Merity et al. 2017).

    size mean(dropped_t^2) + change mean((states_t - states_(t-1))^2)

  The means are over features and real positions; the pairs of the second one
  lie in one segment. A mean over nothing is 0.

  Args:
    states: [B, T, D], the final states.
    dropped: [B, T, D], the same after dropout.
    lengths: int32 [B], the real ones among the T; None if all are.
    size: weight of the first mean (activation regularisation, AR).
    change: weight of the second (temporal, TAR).

  Returns:
    A scalar in float32, or wider where the states are.
  """
  wide = jnp.promote_types(states.dtype, jnp.float32)
  states, dropped = states.astype(wide), dropped.astype(wide)
  B, T, _ = states.shape
  n = jnp.full([B], T) if lengths is None else lengths
  return size * _mean_square(dropped, n) + change * _mean_square(
    states[:, 1:] - states[:, :-1], n - 1
  )


def _mean_square(x, n):
  """Of x[b, :n[b]]; x is [B, T or T - 1, D]."""
  real = jnp.arange(x.shape[1]) < n[:, None]
  total = jnp.sum(jnp.where(real[..., None], x**2, 0))
  return total / jnp.maximum(jnp.sum(real) * x.shape[2], 1)
