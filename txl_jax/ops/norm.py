"""Layer normalisation (Ba et al. 2016), with the gradient as one formula."""

from typing import Any

import jax
import jax.numpy as jnp

from txl_jax.ops import matmul
from txl_jax.program import target_device


def layer_norm(
  x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: Any
) -> jax.Array:
  """(x - mean) / sqrt(variance + eps) scale + bias, over the last axis.

  x is [..., D], scale and bias are [D]; everything is computed in dtype, the
  dtype of the result. The backward pass keeps the arguments, in their dtypes.
  It has no forward-mode derivative, but its gradient has.
  """
  return _norm(eps, dtype, *matmul.varying_alike((x, scale, bias)))


def _plain(eps, dtype, x, scale, bias):
  centred, inverse = _standardised(x.astype(dtype), eps)
  scale, bias = (_as_row(y.astype(dtype), x) for y in (scale, bias))
  return centred * (inverse * scale) + bias


_norm = jax.custom_vjp(_plain, nondiff_argnums=(0, 1))


def _forward(eps, dtype, x, scale, bias):
  return _plain(eps, dtype, x, scale, bias), (x, scale, bias)


def _backward(eps, dtype, kept, dy):
  """The gradients, with y = (x - mean) inverse and g = scale dy.

    dx = inverse (g - mean(g) - y mean(g y)),  dscale = sum(dy y)

  JAX would derive one more pass, from the mean within the variance.
  """
  x, scale, _ = kept
  centred, inverse = _standardised(x.astype(dtype), eps)
  y = centred * inverse
  g = dy * _as_row(scale.astype(dtype), x)
  mean, along_y = (jnp.mean(z, axis=-1, keepdims=True) for z in (g, g * y))
  dx = inverse * (g - mean - y * along_y)
  grads = dx, *_sums_of_rows(dy * y, dy)
  return tuple(d.astype(a.dtype) for d, a in zip(grads, kept))


_norm.defvjp(_forward, _backward)


def _sums_of_rows(x, y):
  """Sums of two arrays [..., D] over all axes but the last: [D] each."""
  rows = tuple(range(x.ndim - 1))
  if target_device.device().platform != 'gpu':
    return jnp.sum(x, axis=rows), jnp.sum(y, axis=rows)
  # One kernel; XLA does not join two sums over rows.
  zeros = matmul.varying_alike((jnp.zeros([], x.dtype),) * 2, x)
  return jax.lax.reduce(
    (x, y), zeros, lambda a, b: (a[0] + b[0], a[1] + b[1]), rows
  )


def _standardised(x, eps):
  """x - mean [..., D] and 1 / sqrt(variance + eps) [..., 1]."""
  centred = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
  return centred, jax.lax.rsqrt(variance + eps)


def _as_row(y, x):
  return y.reshape([1] * (x.ndim - 1) + [-1])
