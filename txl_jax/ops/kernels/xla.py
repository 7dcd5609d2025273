"""Plain operations that XLA compiles, on every device.

Scores of all queries and keys exist at once: memory grows with T x S.
"""

import jax

from txl_jax import attention
from txl_jax.ops.kernels import base


def why_not(case: base.Case) -> str:
  """See `base`."""
  del case
  return ''


def attend(
  inputs: base.Inputs, *, span: int, rate: float, key: jax.Array | None
) -> jax.Array:
  """See `base`."""
  q, k, v, r, u, v_bias, b, filled = inputs
  T, S = q.shape[1], k.shape[1]
  mask = attention.visibility(T, S - T, filled, span)
  return attention.relative_attention(
    q, k, v, r, u, v_bias, mask, b, dropout_rate=rate, dropout_key=key
  )
