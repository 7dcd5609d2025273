"""Attention of cuDNN, with the position scores as an additive bias.

A library for the products and the softmax, in bfloat16. The bias is
[B, H, T, S], as its gradient is: memory grows with T x S, in bfloat16 where
`xla` has float32. Its causal masks begin at the first key, not at the last:
what a query may see is part of the bias.
"""

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops.kernels import base


def why_not(case: base.Case) -> str:
  """See `base`."""
  if case.device.platform != 'gpu' or case.device.capability < 80:
    return 'it needs an NVIDIA GPU of compute capability 8.0 or above'
  if case.dtype != 'bfloat16':
    return f'it needs bfloat16, not {case.dtype}'
  if case.rate:
    return 'it would drop the same probabilities in every step'
  if case.K > 128 or case.K % 8:
    return f'heads of width {case.K}: it needs multiples of 8 up to 128'
  if case.T % 2 or case.M % 2:
    return f'T {case.T}, M {case.M}: it needs even numbers'
  return ''


def attend(
  inputs: base.Inputs, *, span: int, rate: float, key: jax.Array | None
) -> jax.Array:
  """See `base`; the rate is 0."""
  del rate, key
  q, k, v, r, u, v_bias, b, filled = inputs
  (B, T, H, K), S = q.shape, k.shape[1]
  scale = K**-0.5
  position = jnp.einsum('bthk,shk->bhts', (q + v_bias) * scale, r)
  if b is not None:
    position += (b.T * scale)[:, None].astype(position.dtype)
  mask = attention.visibility(T, S - T, filled, span)[:, None]
  hidden = jnp.finfo(position.dtype).min
  bias = jnp.where(mask, attention.relative_shift(position), hidden)
  bias = jnp.broadcast_to(bias, (B, H, T, S))
  return jax.nn.dot_product_attention(
    q + u, k, v, bias=bias, scale=scale, implementation='cudnn'
  )
