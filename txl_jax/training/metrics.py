"""Sums that a training step adds up on the device, and figures from sums."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Sums:
  """Sums over the steps since the last line of the log.

  Attributes:
    nll: float32, nats over all scored tokens.
    tokens: int32, scored tokens.
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


def zeros():
  """Sums over no step."""
  # A buffer for each of them: a step that uses up its state wants no two
  # fields in one.
  f, i = (
    (lambda: jnp.zeros([], jnp.float32)),
    (lambda: jnp.zeros([], jnp.int32)),
  )
  return Sums(f(), i(), f(), i(), i() - 1, i())


def add(sums, *, nll, tokens, grad_norm, step, skipped: Any = False):
  """Sums with one more step.

  Args:
    sums: a Sums.
    nll: float32, of that step.
    tokens: int32, scored in it.
    grad_norm: float32, of its gradient.
    step: int32, its number.
    skipped: bool, whether its update was left out.
  """
  bad = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
  unless = lambda x: jnp.where(skipped, jnp.zeros_like(x), x)
  return Sums(
    nll=sums.nll + unless(nll.astype(jnp.float32)),
    tokens=sums.tokens + unless(tokens),
    grad_norm=sums.grad_norm + unless(grad_norm.astype(jnp.float32)),
    steps=sums.steps + 1,
    bad_step=jnp.where((sums.bad_step < 0) & bad, step, sums.bad_step),
    skipped=sums.skipped + jnp.asarray(skipped, jnp.int32),
  )
