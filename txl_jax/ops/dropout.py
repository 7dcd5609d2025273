"""Dropout of the states [B, T, ...] of a segment: pure functions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention


def drop(x: jax.Array, rate: float, key: Any, locked: bool) -> jax.Array:
  """x [B, T, ...] after dropout; without a key, x itself.

  Locked, it is variational dropout (Gal and Ghahramani 2016): the T positions
  of a row share one mask.
  """
  if key is None or rate == 0.0:
    return x
  return attention.dropout(x, rate, key, (1,) if locked else ())


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 3))
def relu_and_drop(
  x: jax.Array, rate: float, key: Any, locked: bool
) -> jax.Array:
  """`drop` of relu(x); without a key, the rate must be 0.

  The backward pass keeps nothing but the result, which is positive where x is
  and has not been dropped.
  """
  return drop(jax.nn.relu(x), rate, key, locked)


def _forward(x, rate, key, locked):
  y = relu_and_drop(x, rate, key, locked)
  return y, y


def _backward(rate, locked, y, g):
  del locked
  wide = g.astype(jnp.promote_types(g.dtype, jnp.float32))
  return jnp.where(y > 0, (wide / (1 - rate)).astype(g.dtype), 0), None


relu_and_drop.defvjp(_forward, _backward)
