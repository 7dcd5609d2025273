"""Relative attention in float64, one query and one head at a time.

Written from the formula, with the gradient of each term by hand; numpy alone.
"""

import numpy as np


def attend(q, k, v, r, u, v_bias, b, filled, span, keep=None, rate=0.0):
  """Arrays as those of `kernels.relative_attention`: [B, T, H, K].

  `keep`, bool [B, H, T, S], tells which probabilities dropout keeps.
  """
  out, _ = _run(q, k, v, r, u, v_bias, b, filled, span, keep, rate, None)
  return out


def gradients(
  q, k, v, r, u, v_bias, b, filled, span, dout, keep=None, rate=0.0
):
  """Of sum(dout * out): in the order of the arguments, the last one for b."""
  return _run(q, k, v, r, u, v_bias, b, filled, span, keep, rate, dout)[1]


def _run(q, k, v, r, u, v_bias, b, filled, span, keep, rate, dout):
  (B, T, H, K), S = q.shape, k.shape[1]
  M, scale = S - T, K**-0.5
  b = np.zeros([S, H]) if b is None else b
  out, grads = np.zeros(q.shape), None
  if dout is not None:
    grads = [np.zeros(x.shape) for x in (q, k, v, r, u, v_bias, b)]
  for row in range(B):
    for h in range(H):
      for i in range(T):
        visible = [
          j for j in range(S) if 0 <= i + M - j < span and j >= M - filled[row]
        ]
        at = [S - 1 - (i + M - j) for j in visible]  # of the distances in r
        content, position = q[row, i, h] + u[h], q[row, i, h] + v_bias[h]
        keys, table = k[row, visible, h], r[at, h]
        scores = (keys @ content + table @ position + b[at, h]) * scale
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        kept = np.ones(len(visible))
        if keep is not None:
          kept = keep[row, h, i, visible] / (1 - rate)
        values = v[row, visible, h]
        out[row, i, h] = (weights * kept) @ values
        if grads is None:
          continue
        dq, dk, dv, dr, du, dv_bias, db = grads
        above = dout[row, i, h]
        dv[row, visible, h] += np.outer(weights * kept, above)
        dweights = kept * (values @ above)
        dscores = weights * (dweights - weights @ dweights) * scale
        dk[row, visible, h] += np.outer(dscores, content)
        dr[at, h] += np.outer(dscores, position)
        db[at, h] += dscores
        du[h] += dscores @ keys
        dv_bias[h] += dscores @ table
        dq[row, i, h] += dscores @ keys + dscores @ table
  return out, grads
