"""Relative attention as plain operations, with a hand-written gradient.

The scores of all queries and keys exist at once, so memory use grows with
T x S; only one array of that size is kept for the backward pass.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.ops.kernels import base, cpu
from txl_jax.program import target_device


class Shifts(NamedTuple):
  """Functions of [B, H, T, S] that move scores between distances and keys."""

  left: Callable[[jax.Array], jax.Array]  # `attention.relative_shift`
  right: Callable[[jax.Array], jax.Array]  # its transpose


def attend(
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  shifts: Shifts | None = None,
) -> jax.Array:
  """Returns [B, T, H, K]; a query sees at most `span` keys, itself included.

  `rate` is the dropout rate; if it is 0, the key may be None.
  """
  *arrays, filled = inputs
  T, S = inputs.q.shape[1], inputs.k.shape[1]
  M = S - T
  mask = attention.visibility(T, M, filled, span)
  bits = attention.dropout_bits(key) if rate else None
  arrays = matmul.varying_alike(tuple(arrays), mask, bits)
  on_cpu = target_device.device().platform == 'cpu'
  dtypes = {x.dtype for x in arrays if x is not None}
  # The layout of `cpu` is not that of products in bfloat16.
  fits = on_cpu and dtypes in ({jnp.dtype('float32')}, {jnp.dtype('float64')})
  if shifts or not fits:
    return masked(rate, arrays, mask, bits, shifts)
  return cpu.masked(rate, arrays, mask, bits)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 4))
def masked(
  rate: float,
  arrays: Any,
  mask: jax.Array,
  key: jax.Array | None,
  shifts: Shifts | None = None,
) -> jax.Array:
  """`attention.relative_attention` of the arrays q, k, v, r, u, v_bias and b.

  It has no forward-mode derivative.
  """
  return _forward(rate, arrays, mask, key, shifts)[0]


def _forward(rate, arrays, mask, key, shifts):
  q, k, v, *positional = arrays
  products: Any = dict(einsum=matmul.einsum, shift=shifts and shifts.left)
  scores = attention.relative_scores(q, k, *positional, **products)
  weights, total = attention.exponentials(scores, mask)
  weights = weights.astype(v.dtype)  # kept for the backward pass
  options = rate, key, matmul.einsum
  out = attention.weighted_sum(weights, total, v, *options)
  return out, (arrays, key, weights, total, out)


def _backward(rate, shifts, kept, g):
  """Gradients of the arrays, given the gradient g [B, T, H, K] of the result.

  Let w be the unnormalised weights, t = sum_j w_j, out = dropout(w) v / t and
  dw = (g / t) v^T. The gradient of the scores is w (dropout(dw) - m) with
  m = sum_k (g / t)_k out_k per query; both dropouts use the same mask.
  """
  (q, k, v, r, u, v_bias, b), key, weights, total, out = kept
  wide = total.dtype
  scale = q.shape[-1] ** -0.5
  product = functools.partial(matmul.einsum, preferred_element_type=wide)
  q, k, v, g, out = (jnp.swapaxes(x, 1, 2) for x in (q, k, v, g, out))
  r = jnp.swapaxes(r, 0, 1)
  g = g.astype(wide) / total
  dropped = attention.dropout(weights, rate, key)
  dv = product('bhtk,bhts->bhsk', g.astype(v.dtype), dropped)
  mean = jnp.sum(g * out.astype(wide), axis=-1, keepdims=True)
  dw = product('bhtk,bhsk->bhts', g.astype(v.dtype), v)
  ds = weights.astype(wide) * (attention.dropout(dw, rate, key) - mean)
  ds = ds.astype(v.dtype)
  by_distance = (shifts.right if shifts else _shifted_right)(ds)
  # The table has no batch axis, see `attention.relative_scores`.
  rows = jnp.broadcast_to(r, (q.shape[0], *r.shape))
  dqk = product('bhts,bhsk->bhtk', ds, k) * scale
  dqr = product('bhts,bhsk->bhtk', by_distance, rows) * scale
  dk = product('bhtk,bhts->bhsk', (q + u[None, :, None]) * scale, ds)
  positioned = (q + v_bias[None, :, None]) * scale
  dr = jnp.sum(product('bhtk,bhts->bhsk', positioned, by_distance), axis=0)
  db = None
  if b is not None:
    db = jnp.sum(by_distance, axis=(0, 2), dtype=wide) * scale
    db = db.T.astype(b.dtype)
  dq, dk, dv = (
    jnp.swapaxes(d, 1, 2).astype(x.dtype)
    for d, x in ((dqk + dqr, q), (dk, k), (dv, v))
  )
  dr = jnp.swapaxes(dr, 0, 1).astype(r.dtype)
  du = jnp.sum(dqk, axis=(0, 2)).astype(u.dtype)
  dv_bias = jnp.sum(dqr, axis=(0, 2)).astype(v_bias.dtype)
  return (dq, dk, dv, dr, du, dv_bias, db), None, None


masked.defvjp(_forward, _backward)


def _shifted_right(x):
  """Transpose of `attention.relative_shift`: column S - 1 - d is distance d.

  x is [..., T, S]; it must be 0 where the key is after the query.
  """
  *lead, T, S = x.shape
  flat = x.reshape(*lead, T * S)
  flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(T, 0)])
  return flat.reshape(*lead, T, S + 1)[..., 1:]
