"""Makes penn_treebank.npz: 20 steps of the recipe of configs/ptb.py, in torch.

  pip install torch==2.13.0
  python tests/training/golden/make_penn_treebank.py

Small, in float64 and without dropout; constants are larger where theirs would
not show in 20 steps. The file has the text, int32 [B, n], the length drawn for
each step, losses, both rates before they are multiplied by T_drawn / T, and the
parameters before and after the steps and their mean, see `flat`.

Letters: E context, T segment, H heads, K head width, D width, V vocabulary.
"""

import math
import pathlib

import numpy as np
import torch

N, D, H, K, F, V = 2, 8, 2, 3, 10, 13
B, n, E, T, STEPS = 3, 31, 4, 6, 20
LR, LR_TABLE, LOWEST, WARMUP, END = 3e-4, 6e-4, 1e-4, 5, 13
MEAN_FROM, L2, CLIP, SIZE, CHANGE = 14, 0.01, 1.7, 0.2, 0.1
HERE = pathlib.Path(__file__).parent


def parameters(rng):
  shapes = {'vocabulary/table': (V, D), 'vocabulary/bias': (V,)}
  for layer in range(N):
    own = {f'attention/{x}/kernel': (D, H, K) for x in 'qkv'}
    own |= {'attention/o/kernel': (H, K, D)}
    own |= {'ff/w1/kernel': (D, F), 'ff/w1/bias': (F,)}
    own |= {'ff/w2/kernel': (F, D), 'ff/w2/bias': (D,)}
    for norm in 'norm1', 'norm2':
      own |= {f'{norm}/norm/scale': (D,), f'{norm}/norm/bias': (D,)}
    shapes |= {f'layers_{layer}/{name}': shape for name, shape in own.items()}
  drawn = {k: 0.3 * rng.normal(size=shape) for k, shape in shapes.items()}
  return {k: x + k.endswith('scale') for k, x in drawn.items()}


def flat(p):
  """All parameters one after the other, sorted by their names."""
  return np.concatenate([np.ravel(p[k]) for k in sorted(p)])


def final_states(p, tokens):
  """int64 [B, L] -> [B, L, D]."""
  x = p['vocabulary/table'][tokens] * math.sqrt(D)
  L = tokens.shape[1]
  w = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
  angles = torch.arange(L, dtype=torch.float64)[:, None] * w
  R = torch.cat([angles.sin(), angles.cos()], dim=1)  # row d is distance d
  d = torch.arange(L)[:, None] - torch.arange(L)  # [query, key]

  def norm(name, y):
    shape, scale = (D,), p[name + '/norm/scale']
    return torch.layer_norm(y, shape, scale, p[name + '/norm/bias'], 1e-5)

  for layer in range(N):
    at = f'layers_{layer}/'
    W = {x: p[f'{at}attention/{x}/kernel'] for x in 'qkvo'}
    q, k, v = (torch.einsum('bld,dhk->blhk', x, W[a]) for a in 'qkv')
    q = q + torch.einsum('d,dhk->hk', R[0], W['q'])
    r = torch.einsum('sd,dhk->shk', R, W['k'])[d.clamp(min=0)]  # [L, L, H, K]
    keys = k[:, None] + r  # [B, query, key, H, K]
    scores = torch.einsum('bihk,bijhk->bhij', q, keys) / math.sqrt(K)
    scores = scores.masked_fill(d < 0, -math.inf)
    heads = torch.einsum('bhij,bjhk->bihk', scores.softmax(-1), v)
    x = norm(at + 'norm1', x + torch.einsum('bihk,hkd->bid', heads, W['o']))
    hidden = x @ p[at + 'ff/w1/kernel'] + p[at + 'ff/w1/bias']
    out = hidden.relu() @ p[at + 'ff/w2/kernel'] + p[at + 'ff/w2/bias']
    x = norm(at + 'norm2', x + out)
  return x


def loss_of(p, tokens, targets):
  h = final_states(p, tokens)[:, -targets.shape[1] :]
  logits = h @ p['vocabulary/table'].T + p['vocabulary/bias']
  nll = -logits.log_softmax(-1).gather(2, targets[..., None]).mean()
  slow = (h[:, 1:] - h[:, :-1]).square().mean()
  return nll + SIZE * h.square().mean() + CHANGE * slow


def rate_of(lr, t):
  if t > MEAN_FROM:
    return LOWEST / 2
  if t < WARMUP:
    return lr * t / WARMUP
  if t > END:
    return LOWEST
  x = min(t - WARMUP + 1, END - WARMUP) / (END - WARMUP)
  top = lr * (WARMUP - 1) / WARMUP
  return LOWEST + (top - LOWEST) * (1 + math.cos(math.pi * x)) / 2


def main():
  rng = np.random.default_rng(0)
  start = parameters(rng)
  p = {k: torch.tensor(x, requires_grad=True) for k, x in start.items()}
  text = rng.integers(0, V, [B, n])
  drawn = rng.choice([3, 5, 6, 7], STEPS)
  first = {k: torch.zeros_like(x) for k, x in p.items()}
  second, mean = ({k: x.clone() for k, x in first.items()} for _ in range(2))
  losses, rates, norms, i = [], [], [], 0
  for t in range(1, STEPS + 1):
    length = min(drawn[t - 1], n - 1 - i)
    tokens = torch.tensor(text[:, i - min(E, i) : i + length])
    targets = torch.tensor(text[:, i + 1 : i + 1 + length])
    i = i + length if n - 1 - i - length > 1 else 0
    loss = loss_of(p, tokens, targets)
    grads = dict(zip(p, torch.autograd.grad(loss, [*p.values()])))
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
    own = {k: rate_of(LR_TABLE if 'table' in k else LR, t) for k in p}
    with torch.no_grad():
      for k, x in p.items():
        g = grads[k] * min(1, CLIP / (norm + 1e-6)) + L2 * x
        first[k] = 0.9 * first[k] + 0.1 * g
        second[k] = 0.999 * second[k] + 0.001 * g.square()
        m, s = first[k] / (1 - 0.9**t), second[k] / (1 - 0.999**t)
        x -= own[k] * drawn[t - 1] / T * m / (s.sqrt() + 1e-8)
        if t > MEAN_FROM:
          mean[k] += x / (STEPS - MEAN_FROM)
    losses.append(loss.item())
    rates.append([own['vocabulary/bias'], own['vocabulary/table']])
    norms.append(norm)
  print(f'norms of gradients: {norms}')
  end = {k: x.detach() for k, x in p.items()}
  np.savez_compressed(
    HERE / 'penn_treebank.npz',
    text=text.astype(np.int32),
    drawn=drawn.astype(np.int32),
    losses=losses,
    rates=rates,
    start=flat(start),
    end=flat(end),
    mean=flat(mean),
  )


if __name__ == '__main__':
  main()
