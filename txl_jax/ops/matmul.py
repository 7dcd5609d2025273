"""Products of states with weights, in the forms that devices compute fastest.

Pure functions on plain arrays. Shapes: B batch, S positions.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax.program import shards, target_device


def dot_general(memory: int) -> Callable[..., jax.Array] | None:
  """What `flax.linen.DenseGeneral` multiplies by; None is its default.

  The first `memory` of the S states of x [B, S, ...] are those of memory, whose
  gradient few models need.
  """
  # For a GPU or TPU, XLA leaves out what is not needed of its own accord:
  # there, the gradients of `_on_cpu` would only cost copies.
  return _on_cpu(memory) if target_device.device().platform == 'cpu' else None


# Cached, as modules with equal fields shall be equal: they are compiled once.
@functools.cache
def _on_cpu(memory) -> Any:
  """A product whose gradients are products of matrices.

  Those that JAX derives have the axes of their results in another order, and
  several axes to sum over, for which XLA copies kernels and gradients on a CPU;
  and those of memory are computed even where nothing needs them.
  """

  @functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
  def product(x, kernel, dimensions, precision=None):
    return jax.lax.dot_general(x, kernel, dimensions, precision)

  def forward(x, kernel, dimensions, precision):
    return product(x, kernel, dimensions, precision), (x, kernel)

  def backward(dimensions, precision, kept, g):
    (x, kernel), ((summed, _), _) = kept, dimensions
    rows = x.ndim - len(summed)  # so many axes are those of rows
    matrix = kernel.reshape(math.prod(x.shape[rows:]), -1)  # [in, out]

    def product_over(axis, a, b):
      over = ((axis,), (axis,)), ((), ())
      return jax.lax.dot_general(a, b, over, precision)

    def of_x(g):
      dx = product_over(1, g.reshape(-1, matrix.shape[1]), matrix)
      return dx.reshape(*g.shape[:rows], *x.shape[rows:])

    x_rows, g_rows = (y.reshape(-1, n) for y, n in zip((x, g), matrix.shape))
    dkernel = product_over(0, x_rows, g_rows).reshape(kernel.shape)
    if not 0 < memory < x.shape[1]:
      return of_x(g), dkernel
    parts = jnp.split(g, [memory], axis=1)
    return jnp.concatenate([of_x(part) for part in parts], axis=1), dkernel

  product.defvjp(forward, backward)

  def alike(x, kernel, dimensions, precision=None):
    x, kernel = shards.varying_alike((x, kernel))
    return product(x, kernel, dimensions, precision)

  return alike


def apart(x: jax.Array) -> jax.Array:
  """x, for a product that XLA shall not join with other products of x.

  On a GPU it would make one product of them all, and copy its parts.
  """
  on_gpu = target_device.device().platform == 'gpu'
  return jax.lax.optimization_barrier(x) if on_gpu else x
