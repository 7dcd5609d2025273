"""Code common to `triton` and `tpu`: gradient, biases and dropout.

Kernels get the global biases as one number c_j per key and p_d per distance,

  score(i, j) = (q_i . k_j + q_i . r_d + c_j + p_d) / sqrt(K),
  c_j = u . k_j,  p_d = v_bias . r_d + b_d,

computed here in float32. A kernel is a module with

  why_not(case) -> why it does not support a `base.Case`, or ''
  forward(q, k, v, r, u, c, p, filled, bits, *, span, rate) -> out, logsum
  backward(q, k, v, r, u, c, p, filled, bits, out, logsum, dout, *, span, rate)
    -> dq, dk, dv, dr, du, dp

q, out and their gradients are [B, T, H, K], k and v [B, S, H, K], r [S, H, K],
u [H, K], c [B, H, S] and p [H, S] float32, p and r farthest first, filled int32
[B]. dk and du have what comes through c, see `through_keys`. `span` is the
maximum number of keys a query sees, 1 to S, `rate` the dropout rate; logsum,
float32 [B, H, T], is logsumexp of a query's visible scores; dr may have a wider
dtype than r. `attention.keep` drops the probability of key j for query i of row
b and head h by its index, in wrapping uint32,

  index = ((b bits[3] + bits[2] + h) T + i) S + j,

so that shards drop what a single device would: bits[2] is the argument `before`
of `attend`, and bits[3] its `heads`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.ops.kernels import base


def attend(
  kernel: Any,
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  before: int | jax.Array = 0,
  heads: int = 0,
) -> jax.Array:
  """`xla.attend` with a kernel, a module as above.

  If the arrays are a shard, `heads` is the number of heads of the unsharded
  array (0 means H) and `before` the index (first row) x heads + (first head).
  """
  q, k, v, r, u, v_bias, b, filled = inputs
  B, T, H, _ = q.shape
  wide = dict(preferred_element_type=jnp.float32)
  u = u.astype(jnp.float32)
  c = jax.lax.stop_gradient(_by_key(k, u))  # its gradient is in theirs
  p = jnp.einsum('hk,shk->hs', v_bias.astype(r.dtype), r, **wide)
  p = p if b is None else p + b.T.astype(jnp.float32)
  if filled is None:
    filled = jnp.full([B], k.shape[1] - T, jnp.int32)
  bits = jnp.zeros([2], jnp.uint32)
  if rate:
    bits = attention.dropout_bits(key)
  place = jnp.array([before, heads or H]).astype(jnp.uint32)
  bits = jnp.concatenate([bits, place])
  arrays = matmul.varying_alike((q, k, v, r, u, c, p, filled, bits))
  return _attend(kernel, span, rate, *arrays)


def _by_key(k, u):
  """u . k_j, from k [B, S, H, K] and float32 u [H, K]: float32 [B, H, S]."""
  products = k.astype(jnp.float32) * u[None, None]
  return jnp.swapaxes(jnp.sum(products, axis=-1), 1, 2)


def through_keys(
  k: jax.Array, u: jax.Array, dk: jax.Array, dc: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """dk with what comes through c, and du; dc is [B, H, S]."""
  dc = jnp.swapaxes(dc, 1, 2)[..., None]
  du = jnp.sum(dc * k.astype(jnp.float32), axis=(0, 1))
  return dk + (dc * u[None, None]).astype(dk.dtype), du


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(kernel, span, rate, *arrays):
  return _forward(kernel, span, rate, *arrays)[0]


def _forward(kernel, span, rate, *arrays):
  run = functools.partial(kernel.forward, span=span, rate=rate)
  out, logsum = jax.custom_batching.sequential_vmap(run)(*arrays)
  return out, (arrays, out, logsum)


def _backward(kernel, span, rate, kept, dout):
  arrays, out, logsum = kept
  run = functools.partial(kernel.backward, span=span, rate=rate)
  run = jax.custom_batching.sequential_vmap(run)
  grads = run(*arrays, out, logsum, dout.astype(out.dtype))
  *states, u, c, p = arrays[:7]
  *of_states, du, dp = (
    g.astype(x.dtype) for g, x in zip(grads, (*states, u, p))
  )
  # filled and bits are integers.
  return *of_states, du, jnp.zeros_like(c), dp, None, None


_attend.defvjp(_forward, _backward)
