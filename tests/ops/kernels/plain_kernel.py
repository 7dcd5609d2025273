"""What `kernels.fused` asks of a kernel, in plain operations."""

import jax
import jax.numpy as jnp

from txl_jax import attention


def why_not(case):
  del case
  return ''


def _run(q, k, v, r, u, p, filled, words, *, span, rate):
  (B, T, H, K), S = q.shape, k.shape[1]
  wide = dict(preferred_element_type=attention.widened(q.dtype))
  add = lambda u: (q.astype(u.dtype) + u[None, None]).astype(q.dtype)
  content = jnp.einsum('bthk,bshk->bhts', add(u), k, **wide)
  # Its gradient with respect to u is in that of p.
  biased = add(jax.lax.stop_gradient(u))
  position = jnp.einsum('bthk,shk->bhts', biased, r, **wide)
  position = attention.relative_shift(position + p[None, :, None])
  scores = (content + position) * K**-0.5
  mask = attention.visibility(T, S - T, filled, span)[:, None]
  scores = jnp.where(mask, scores, -jnp.inf)
  logsum = jax.nn.logsumexp(scores, axis=-1)
  weights = jnp.exp(scores - logsum[..., None])
  if rate:
    count = lambda n, axis: jax.lax.broadcasted_iota(
      jnp.uint32, (B, H, T, S), axis
    )
    b, h, i, j = (count(n, axis) for axis, n in enumerate((B, H, T, S)))
    index = ((b * words[3] + h + words[2]) * T + i) * S + j
    keep = attention.keep(index, words[:2], rate)
    weights = jnp.where(keep, weights / (1 - rate), 0)
  out = jnp.einsum('bhts,bshk->bthk', weights.astype(v.dtype), v)
  return out, logsum


def forward(*arrays, span, rate):
  return _run(*arrays, span=span, rate=rate)


def backward(q, k, v, r, u, p, filled, words, out, logsum, dout, *, span, rate):
  del out, logsum
  run = lambda *a: _run(*a, filled, words, span=span, rate=rate)[0]
  return jax.vjp(run, q, k, v, r, u, p)[1](dout)
