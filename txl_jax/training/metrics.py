"""Metrics of training steps, accumulated on the device."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

_HIGH = 2**30  # the token count is tokens[0] * _HIGH + tokens[1]


class Sums(flax.struct.PyTreeNode):
  """Sums over the steps since the last log line.

  The number of scored tokens may exceed int32; `tokens_of` returns it.
  """

  nll: jax.Array  # float32, nats, over all scored tokens
  tokens: jax.Array  # int32 [2], count // 2^30 and count % 2^30
  grad_norm: jax.Array  # float32, global norms before clipping
  steps: jax.Array  # int32
  bad_step: jax.Array  # int32, first step that is not finite, or -1


def zeros() -> Sums:
  """Sums over zero steps."""
  # Each field needs its own buffer: one buffer cannot be donated twice.
  f, i = jnp.float32(0), jnp.int32(0)
  return Sums(f + 0, jnp.zeros([2], i.dtype), f + 0, i + 0, i - 1)


def tokens_of(sums: Sums) -> int:
  """Number of scored tokens; the sums must be on the host."""
  high, low = np.asarray(sums.tokens).tolist()
  return high * _HIGH + low


def add(sums: Sums, nll: Any, tokens: Any, grad_norm: Any, step: Any) -> Sums:
  """Adds the scalars of one step; tokens must be below 2^30."""
  bad = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
  low = sums.tokens[1] + tokens
  return sums.replace(
    nll=sums.nll + nll.astype(jnp.float32),
    tokens=jnp.stack([sums.tokens[0] + low // _HIGH, low % _HIGH]),
    grad_norm=sums.grad_norm + grad_norm.astype(jnp.float32),
    steps=sums.steps + 1,
    bad_step=jnp.where((sums.bad_step < 0) & bad, step, sums.bad_step),
  )
