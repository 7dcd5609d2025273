"""Applies a function only to the selected rows of an array.

Shapes: N rows, C rows in a chunk.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax.ops import matmul


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def on_rows(
  f: Callable[..., jax.Array],
  params: Any,
  x: jax.Array,
  ids: jax.Array,
  selected: jax.Array,
  chunk: int,
) -> jax.Array:
  """Applies f, chunk by chunk, to selected rows; other result rows are 0.

  Shapes are static, but the number of chunks is determined at run time by the
  number of selected rows. The backward pass recomputes f, chunk by chunk.

  Args:
    f: function (params, x [C, ...], ids [C]) -> [C, ...], row by row.
    params: pytree of floating arrays; gradients flow to params and to x.
    x: floating [N, ...]; the result is also [N, ...].
    ids: int32 [N].
    selected: bool [N].
    chunk: C.
  """
  out = jax.eval_shape(f, params, x[:chunk], ids[:chunk])
  out = jnp.zeros((len(x), *out.shape[1:]), out.dtype)
  out = matmul.varying_alike(out, params, x, ids, selected)
  index, chunks = _chunks(selected, chunk)

  def body(k, out):
    at = index[k]
    return out.at[at].set(f(params, _take(x, at), _take(ids, at)), mode='drop')

  return jax.lax.fori_loop(0, chunks, body, out)


def _forward(f, params, x, ids, selected, chunk):
  return on_rows(f, params, x, ids, selected, chunk), (params, x, ids, selected)


def _backward(f, chunk, kept, cotangent):
  params, x, ids, selected = kept
  index, chunks = _chunks(selected, chunk)

  def body(k, sums):
    at = index[k]
    chunk_ids = _take(ids, at)
    _, vjp = jax.vjp(lambda p, y: f(p, y, chunk_ids), params, _take(x, at))
    # Padding of the last chunk has a cotangent of 0 and adds nothing.
    dchunk, dx = vjp(_take(cotangent, at))
    dparams = jax.tree.map(jnp.add, sums[0], dchunk)
    return dparams, sums[1].at[at].set(dx, mode='drop')

  zeros = jax.tree.map(jnp.zeros_like, (params, x))
  zeros = matmul.varying_alike(zeros, kept, cotangent)
  dparams, dx = jax.lax.fori_loop(0, chunks, body, zeros)
  return dparams, dx, None, None


on_rows.defvjp(_forward, _backward)


def _chunks(selected, chunk):
  """Selected rows, [ceil(N / C), C], padded with N; number of chunks used."""
  n = len(selected)
  C = min(chunk, n)
  index = jnp.nonzero(selected, size=-(-n // C) * C, fill_value=n)[0]
  return index.reshape(-1, C), -(-jnp.sum(selected, dtype=jnp.int32) // C)


def _take(x, at):
  return jnp.take(x, at, axis=0, mode='fill', fill_value=0)
