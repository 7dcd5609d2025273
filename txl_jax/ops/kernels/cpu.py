"""Relative attention as plain operations, in the fastest layout of a CPU.

Scores are [H, B, T, S] here: with heads first, all rows of a batch share one
matrix product with the position table, and its gradient needs no sum over rows.
Keys, values and the table are transposed to [..., K, S]: products whose second
operand or result is [S, K] take up to twice as long.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def masked(
  rate: float, arrays: Any, mask: jax.Array, key: jax.Array | None
) -> jax.Array:
  """`xla.masked` of arrays in float32 or float64; r has S rows."""
  return _forward(rate, arrays, mask, key)[0]


def _forward(rate, arrays, mask, key):
  q, k, v, r, u, v_bias, b = arrays
  B, T, H, K = q.shape
  S = k.shape[1]
  scale = K**-0.5
  q = jnp.transpose(q, (2, 0, 1, 3)) * scale  # [H, B, T, K]
  content, position = (q + (x * scale)[:, None, None] for x in (u, v_bias))
  position = position.reshape(H, B * T, K)
  k, v = (jnp.transpose(x, (2, 0, 3, 1)) for x in (k, v))  # [H, B, K, S]
  # The column that `attention.relative_shift` pads, before the product.
  r = jnp.pad(jnp.transpose(r, (1, 2, 0)), ((0, 0), (0, 0), (1, 0)))
  by_distance = _product('hnk,hks->hns', position, r)  # [H, B T, S + 1]
  if b is not None:
    by_distance += jnp.pad(b.T * scale, ((0, 0), (1, 0)))[:, None]
  by_distance = by_distance.reshape(H, B, T, S + 1)
  # In one dimension the shift is an offset, and no index has to be divided.
  scores = _flat(_product('hbtk,hbks->hbts', content, k))
  scores += _flat(by_distance)[..., T:]
  scores = jnp.where(_flat(mask)[None], scores, -jnp.inf)
  scores = jax.lax.optimization_barrier(scores).reshape(H, B, T, S)
  weights, total = attention.softmax_terms(scores)
  dropped = _dropout(weights, rate, key)
  out = _product('hbts,hbks->hbtk', dropped, v) / total
  kept = content, position, k, v, r, b, key, weights, total, out
  return jnp.transpose(out, (1, 2, 0, 3)), kept


def _backward(rate, kept, g):
  """The gradients of `xla.masked`, by the formulas there."""
  content, position, k, v, r, b, key, weights, total, out = kept
  H, B, T, K = out.shape
  S = k.shape[-1]
  scale = K**-0.5
  g = jnp.transpose(g, (2, 0, 1, 3)) / total  # [H, B, T, K]
  dropped = _dropout(weights, rate, key)
  dv = _product('hbkt,hbts->hbks', jnp.swapaxes(g, 2, 3), dropped)
  dw = _product('hbtk,hbks->hbts', g, v)
  mean = jnp.sum(g * out, axis=-1, keepdims=True)
  ds = weights * (_dropout(dw, rate, key) - mean)
  # The transposed shift. XLA would turn constant zeros into a slower pad.
  zeros = jax.lax.optimization_barrier(jnp.zeros((H, B, T), ds.dtype))
  by_distance = jnp.concatenate([zeros, _flat(ds)], axis=-1)
  by_distance = jax.lax.optimization_barrier(by_distance)
  by_distance = by_distance.reshape(H, B * T, S + 1)
  dqk = _product('hbts,hbks->hbtk', ds, k) * scale
  dqr = _product('hns,hks->hnk', by_distance, r).reshape(H, B, T, K) * scale
  dk = _product('hbkt,hbts->hbks', jnp.swapaxes(content, 2, 3), ds)
  dr = _product('hkn,hns->hks', jnp.swapaxes(position, 1, 2), by_distance)
  dr = dr[..., 1:]
  db = None
  if b is not None:
    db = (jnp.sum(by_distance, axis=1)[:, 1:] * scale).T.astype(b.dtype)
  dq = jnp.transpose(dqk + dqr, (1, 2, 0, 3))
  dk, dv = (jnp.transpose(x, (1, 3, 0, 2)) for x in (dk, dv))
  du, dv_bias = (jnp.sum(x, axis=(1, 2)) for x in (dqk, dqr))
  dr = jnp.transpose(dr, (2, 0, 1))
  return (dq, dk, dv, dr, du, dv_bias, db), None, None


masked.defvjp(_forward, _backward)


def _product(form, *operands):
  """An einsum that XLA does not merge with transposes around it."""
  operands = jax.lax.optimization_barrier(operands)
  return jax.lax.optimization_barrier(jnp.einsum(form, *operands))


def _flat(x):
  """[..., n, m] -> [..., n m], stored as it is written."""
  *lead, n, m = x.shape
  return jax.lax.optimization_barrier(x.reshape(*lead, n * m))


def _dropout(x, rate, key):
  """Dropout of [H, B, T, S], with the mask of [B, H, T, S]."""
  rows_first = attention.dropout(jnp.swapaxes(x, 0, 1), rate, key)
  return jnp.swapaxes(rows_first, 0, 1)
