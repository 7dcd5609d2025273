"""Penalties on activations, for `LMOutput.aux`.

Shapes: B batch, T segment, D model width.
"""

import jax
import jax.numpy as jnp


def activations(
  states: jax.Array,
  dropped: jax.Array,
  scored: jax.Array,
  *,
  size: float,
  change: float,
) -> jax.Array:
  """Penalises large and fast-changing final states (Merity et al. 2017).

    size mean(dropped_t^2) + change mean((states_t - states_(t-1))^2)

  The means are over features and scored positions; both positions of a pair
  are scored and in one segment. A mean over nothing is 0. States are [B, T, D],
  `dropped` the same after dropout, `scored`, bool [B, T], says which positions
  have a target; the weights `size` and `change` are those of AR and TAR,
  activation and temporal activation regularisation. The result is a scalar in
  float32, or wider where the states are.
  """
  wide = jnp.promote_types(states.dtype, jnp.float32)
  states, dropped = states.astype(wide), dropped.astype(wide)
  steps = states[:, 1:] - states[:, :-1]
  slow = _mean_square(steps, scored[:, 1:] & scored[:, :-1])
  return size * _mean_square(dropped, scored) + change * slow


def _mean_square(x, scored):
  """The mean of x^2, x [B, T, D], over the positions scored, bool [B, T]."""
  total = jnp.sum(jnp.where(scored[..., None], x**2, 0))
  return total / jnp.maximum(jnp.sum(scored) * x.shape[2], 1)
