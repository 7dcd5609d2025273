"""Sums that a training step adds up on the device."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

_HIGH = 2**30  # tokens that the high half of their count counts by


class Sums(flax.struct.PyTreeNode):
  """Sums over the steps since the last line of the log.

  The number of scored tokens may not fit into one int32: it is `tokens_of`.
  """

  nll: jax.Array  # float32, nats over all scored tokens
  tokens: jax.Array  # int32 [2], multiples of 2^30 and the rest
  grad_norm: jax.Array  # float32, global norms before clipping
  steps: jax.Array  # int32
  bad_step: jax.Array  # int32, the first that was not finite, -1 if none was


def zeros() -> Sums:
  """Sums over no step."""
  # A buffer for each of them: a step that uses up its state wants no two
  # fields in one.
  f, i = jnp.float32(0), jnp.int32(0)
  return Sums(f + 0, jnp.zeros([2], i.dtype), f + 0, i + 0, i - 1)


def tokens_of(sums: Sums) -> int:
  """The number of scored tokens, of Sums on the host."""
  high, low = np.asarray(sums.tokens).tolist()
  return high * _HIGH + low


def add(sums: Sums, nll: Any, tokens: Any, grad_norm: Any, step: Any) -> Sums:
  """Sums with one more step, which has scored less than 2^30 tokens."""
  bad = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
  low = sums.tokens[1] + tokens
  return sums.replace(
    nll=sums.nll + nll.astype(jnp.float32),
    tokens=jnp.stack([sums.tokens[0] + low // _HIGH, low % _HIGH]),
    grad_norm=sums.grad_norm + grad_norm.astype(jnp.float32),
    steps=sums.steps + 1,
    bad_step=jnp.where((sums.bad_step < 0) & bad, step, sums.bad_step),
  )
