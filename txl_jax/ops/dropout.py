"""Dropout of the hidden states [B, T, ...] of a segment."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention


def drop(x: jax.Array, rate: float, key: Any, locked: bool) -> jax.Array:
  """Applies dropout to x [B, T, ...]; without a key, returns x itself.

  `locked` is variational dropout (Gal and Ghahramani 2016): all T positions of
  a row share one mask.
  """
  if key is None:
    return x
  return attention.dropout(x, rate, key, (1,) if locked else ())


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 3))
def relu_and_drop(
  x: jax.Array, rate: float, key: Any, locked: bool
) -> jax.Array:
  """`drop` of relu(x); without a key, the rate must be 0.

  Only the output is saved for the backward pass: it is positive exactly where x
  is positive and kept.
  """
  return drop(jax.nn.relu(x), rate, key, locked)


def _forward(x, rate, key, locked):
  y = relu_and_drop(x, rate, key, locked)
  return y, y


def _backward(rate, locked, y, g):
  del locked
  wide = g.astype(attention.widened(g.dtype))
  return jnp.where(y > 0, (wide / (1 - rate)).astype(g.dtype), 0), None


relu_and_drop.defvjp(_forward, _backward)
