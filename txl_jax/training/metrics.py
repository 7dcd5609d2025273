"""Sums that a training step adds up on the device."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

_HIGH = 2**30  # tokens that the high half of their count counts by


class Sums(flax.struct.PyTreeNode):
  """Sums over the steps since the last line of the log.

  Attributes:
    nll: float32, nats over all scored tokens.
    tokens: int32 [2], scored tokens as multiples of 2^30 and the rest, since
      their number may not fit into one int32; see `tokens_of`.
    grad_norm: float32, global norms of the gradients before clipping.
    steps: int32.
    bad_step: int32, the first step whose loss or gradient was not finite,
      -1 if none was.
    skipped: int32, steps whose update was left out for that; they count in
      `steps` alone.
  """

  nll: jax.Array
  tokens: jax.Array
  grad_norm: jax.Array
  steps: jax.Array
  bad_step: jax.Array
  skipped: jax.Array


def zeros() -> Sums:
  """Sums over no step."""

  # A buffer for each of them: a step that uses up its state wants no two
  # fields in one.
  def zero(dtype, *shape):
    return jnp.zeros(shape, dtype)

  f, i = jnp.float32, jnp.int32
  return Sums(zero(f), zero(i, 2), zero(f), zero(i), zero(i) - 1, zero(i))


def tokens_of(sums: Sums) -> int:
  """The number of scored tokens, of Sums on the host."""
  high, low = np.asarray(sums.tokens).tolist()
  return high * _HIGH + low


def add(
  sums: Sums,
  *,
  nll: jax.Array,
  tokens: jax.Array,
  grad_norm: jax.Array,
  step: jax.Array,
  skipped: Any = False,
) -> Sums:
  """Sums with one more step.

  Args:
    sums: a Sums.
    nll: float32, of that step.
    tokens: int32, scored in it, less than 2^30.
    grad_norm: float32, of its gradient.
    step: int32, its number.
    skipped: bool, whether its update was left out.
  """
  bad = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))

  def unless(x):
    return jnp.where(skipped, jnp.zeros_like(x), x)

  low = sums.tokens[1] + unless(tokens)
  return Sums(
    nll=sums.nll + unless(nll.astype(jnp.float32)),
    tokens=jnp.stack([sums.tokens[0] + low // _HIGH, low % _HIGH]),
    grad_norm=sums.grad_norm + unless(grad_norm.astype(jnp.float32)),
    steps=sums.steps + 1,
    bad_step=jnp.where((sums.bad_step < 0) & bad, step, sums.bad_step),
    skipped=sums.skipped + jnp.asarray(skipped, jnp.int32),
  )
