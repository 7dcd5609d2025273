"""What kernels share: the gradient, the biases and dropout.

The global biases reach a kernel as numbers for each key and for each distance,

  score(i, j) = (q_i . k_j + q_i . r_d) / sqrt(K) + c_j + p_d,
  c_j = u . k_j / sqrt(K),  p_d = (v_bias . r_d + b_d) / sqrt(K),

which are made here, in float32. A kernel is a module with

  why_not(case) -> why it cannot compute a `base.Case`, '' if it can
  forward(q, k, v, r, c, p, filled, words, *, span, rate) -> out, logsum
  backward(q, k, v, r, c, p, filled, words, out, logsum, dout, *, span, rate)
    -> dq, dk, dv, dr, dc, dp

q, out and their gradients are [B, T, H, K], k and v [B, S, H, K], r [S, H, K],
c [B, H, S] and p [H, S] float32, p and r farthest first, filled int32 [B];
`span` is how many keys a query sees at most, 1 to S, `rate` that of dropout;
logsum, float32 [B, H, T], is the logarithm of the sum of the exponentials of a
query's visible scores; dr may be wider than r. The probability of key j for
query i of row b and head h is dropped by `attention.keep` of

  index = (((b words[3] + h) + words[2]) T + i) S + j  (uint32, wraps),

so that it is that of the plain operations, also on a device that has some of
the rows and heads: words[2] is those before its own, words[3] all heads.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import shards
from txl_jax.ops.kernels import base


def attend(
  kernel: Any,
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  before: Any = 0,
  heads: int = 0,
) -> jax.Array:
  """`xla.attend` by a kernel, a module as above.

  `before`, int, are the rows times `heads`, plus heads, before the first of
  these, where they are a part of an array with so many heads; 0 is H.
  """
  q, k, v, r, u, v_bias, b, filled = inputs
  B, T, H, K = q.shape
  scale, wide = K**-0.5, dict(preferred_element_type=jnp.float32)
  # As a product of matrices this would first copy the keys in float32; and for
  # the backward pass such a copy would be kept.
  c = jax.checkpoint(_by_key, prevent_cse=False)(
    k, scale * u.astype(jnp.float32)
  )
  p = jnp.einsum('hk,shk->hs', v_bias.astype(r.dtype), r, **wide)
  p = scale * (p if b is None else p + b.T.astype(jnp.float32))
  if filled is None:
    filled = jnp.full([B], k.shape[1] - T, jnp.int32)
  words = jnp.zeros([2], jnp.uint32)
  if rate:
    words = attention.dropout_words(key)
  place = jnp.array([before, heads or H]).astype(jnp.uint32)
  words = jnp.concatenate([words, place])
  arrays = shards.varying_alike((q, k, v, r, c, p, filled, words))
  return _attend(kernel, span, rate, *arrays)


def _by_key(k, u):
  """u . k_j, from k [B, S, H, K] and float32 u [H, K]: float32 [B, H, S]."""
  products = k.astype(jnp.float32) * u
  return jnp.swapaxes(jnp.sum(products, axis=-1), 1, 2)


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
  grads = [g.astype(x.dtype) for g, x in zip(grads, arrays)]
  return *grads, None, None  # filled and words are whole numbers


_attend.defvjp(_forward, _backward)
