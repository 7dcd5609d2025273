"""Code common to `triton` and `tpu`: gradient, biases and dropout.

A kernel adds the content bias u to the queries, which leaves of the position
bias one number p_d per distance,

  (q_i + u) . k_j + (q_i + v_bias) . r_d + b_d
    = (q_i + u) . k_j + (q_i + u) . r_d + p_d,
  p_d = (v_bias - u) . r_d + b_d,

computed here. (Digits are lost if a bias is much larger than queries are.) A
kernel is a module with

  why_not(case) -> why it does not support a `base.Case`, or ''
  forward(q, k, v, r, u, p, filled, bits, *, span, rate) -> out, logsum
  backward(q, k, v, r, u, p, filled, bits, out, logsum, dout, *, span, rate)
    -> dq, dk, dv, dr, du, dp

q, out and their gradients are [B, T, H, K], k and v [B, S, H, K], r [S, H, K],
u [H, K] and p [H, S] float32, p and r farthest first, filled int32 [B]. du is
what comes of products with keys; the rest is in the gradient of p. `span` is
the maximum number of keys a query sees, 1 to S, `rate` the dropout rate;
logsum, float32 [B, H, T], is logsumexp of a query's visible scores, which are
the above divided by sqrt(K); dr may have a wider dtype than r. `attention.keep`
drops the probability of key j for query i of row b and head h by its index, in
wrapping uint32,

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
  S, wide = k.shape[1], attention.widened(q.dtype)
  p = jnp.zeros([H, S], wide)
  if v_bias is u:  # as in a model whose queries project positions
    q = biased(q, u.astype(wide))
    u = jnp.zeros(u.shape, wide)
  else:
    u = u.astype(wide)
    rest = (v_bias.astype(wide) - jax.lax.stop_gradient(u)).astype(r.dtype)
    p = jnp.einsum('hk,shk->hs', rest, r, preferred_element_type=wide)
  p = p if b is None else p + b.T.astype(wide)
  if filled is None:
    filled = jnp.full([B], S - T, jnp.int32)
  bits = jnp.zeros([4], jnp.uint32)
  if rate:
    # XLA for GPUs makes one kernel of the bits of all layers if they read this.
    place = jnp.array([0, 0, before, heads or H]).astype(jnp.uint32)
    place = jax.lax.optimization_barrier(place)
    bits = jnp.pad(attention.dropout_bits(key), (0, 2)) + place
  arrays = matmul.varying_alike((q, k, v, r, u, p, filled, bits))
  return _attend(kernel, span, rate, *arrays)


def biased(q: jax.Array, u: jax.Array) -> jax.Array:
  """q [B, T, H, K] + u [H, K], added in the dtype of u, in that of q."""
  return (q.astype(u.dtype) + u[None, None]).astype(q.dtype)


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
  # filled and bits are integers.
  return *(g.astype(x.dtype) for g, x in zip(grads, arrays)), None, None


_attend.defvjp(_forward, _backward)
