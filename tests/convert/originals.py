"""Models of the original PyTorch code, by its arguments: tensors and figures.

`state` has what its constructors make, in their order and shapes (transposed as
torch has them). `score` is its forward pass from these tensors, in float64, one
token and one key at a time: written from the formulas, without shift or mask.

Letters: N layers, H heads, K head width, D model width, F feed-forward width,
V vocabulary, L rows of a table, T tokens, M memory.
"""

import math

import numpy as np

DEFAULTS = dict(
  n_token=31, n_layer=2, n_head=2, d_model=8, d_head=3, d_inner=10,
  tie_weight=True, d_embed=8, div_val=1, tie_projs=(False,), pre_lnorm=False,
  tgt_len=4, mem_len=5, cutoffs=(), same_length=False, attn_type=0,
  clamp_len=-1,
)  # fmt: skip
ADAPTIVE = dict(cutoffs=(7, 15), tie_projs=(False, True, True))
CASES = {
  'default': dict(),
  'pre_norm': dict(pre_lnorm=True, same_length=True, clamp_len=3),
  'untied': dict(tie_weight=False, d_embed=6),
  'adaptive': dict(ADAPTIVE),
  'adaptive_narrow': dict(  # as many bins as in the published models
    cutoffs=(7, 15, 22), tie_projs=(False, True, True, True), d_embed=6,
    pre_lnorm=True,
  ),
  'adaptive_div4': dict(ADAPTIVE, div_val=4, d_embed=16),
  'two_bins': dict(cutoffs=(7,), tie_projs=(False, True), div_val=2, d_embed=4),
  'adaptive_div4_untied': dict(
    cutoffs=(7, 15), tie_projs=(False,) * 3, div_val=4, d_embed=16,
    tie_weight=False,
  ),
  'shaw': dict(attn_type=1),
  'shaw_pre_norm': dict(
    attn_type=1, pre_lnorm=True, same_length=True, clamp_len=3, **ADAPTIVE
  ),
  'shaw_untied': dict(attn_type=1, tie_weight=False, tgt_len=3, mem_len=2),
  'vaswani': dict(attn_type=2, mem_len=0),
  'vaswani_pre_norm': dict(
    attn_type=2, mem_len=0, pre_lnorm=True, div_val=4, d_embed=16, **ADAPTIVE
  ),
  'vaswani_untied': dict(attn_type=2, mem_len=0, tie_weight=False),
  'al_rfou': dict(attn_type=3, mem_len=0, d_head=4),
  'al_rfou_pre_norm': dict(
    attn_type=3, mem_len=0, d_head=4, pre_lnorm=True, d_embed=10
  ),
  'al_rfou_untied': dict(
    attn_type=3, mem_len=0, d_head=4, tie_weight=False, div_val=2, **ADAPTIVE
  ),
}  # fmt: skip


def arguments(case):
  return DEFAULTS | CASES[case]


def state(a, seed=0):
  """{name: float32 array}; tied tensors are there twice, as the same array."""
  rng = np.random.default_rng(seed)
  found = {}

  def make(name, *shape, about=0.0):
    x = about + 0.3 * rng.normal(size=shape)
    found[name] = x.astype(np.float32)
    return found[name]

  N, H, K = a['n_layer'], a['n_head'], a['d_head']
  D, F, V = a['d_model'], a['d_inner'], a['n_token']
  L = a['tgt_len'] + a['mem_len']
  if a['attn_type'] == 0:
    make('r_w_bias', H, K)
    make('r_r_bias', H, K)
  elif a['attn_type'] == 1:
    make('r_emb', N, L, H, K)
    make('r_w_bias', N, H, K)
    make('r_bias', N, L, H)
  elif a['attn_type'] == 3:
    make('r_emb', N, L, H, K)
  d, edges = a['d_embed'], [0, *a['cutoffs'], V]
  bins = range(len(edges) - 1)
  if a['div_val'] == 1:
    make('word_emb.emb_layers.0.weight', V, d)
    if d != D:
      make('word_emb.emb_projs.0', D, d)
  else:
    for i in bins:
      make(
        f'word_emb.emb_layers.{i}.weight',
        edges[i + 1] - edges[i],
        d // a['div_val'] ** i,
      )
    for i in bins:
      make(f'word_emb.emb_projs.{i}', D, d // a['div_val'] ** i)
  for n in range(N):
    own = f'layers.{n}.dec_attn.'
    if a['attn_type'] < 2:
      make(f'{own}qkv_net.weight', 3 * H * K, D)
    else:
      make(f'{own}q_net.weight', H * K, D)
      make(f'{own}kv_net.weight', 2 * H * K, D)
    make(f'{own}o_net.weight', D, H * K)
    make(f'{own}layer_norm.weight', D, about=1)
    make(f'{own}layer_norm.bias', D)
    if a['attn_type'] == 0:
      make(f'{own}r_net.weight', H * K, D)
    own = f'layers.{n}.pos_ff.'
    make(f'{own}CoreNet.0.weight', F, D)
    make(f'{own}CoreNet.0.bias', F)
    make(f'{own}CoreNet.3.weight', D, F)
    make(f'{own}CoreNet.3.bias', D)
    make(f'{own}layer_norm.weight', D, about=1)
    make(f'{own}layer_norm.bias', D)
  if a['cutoffs']:
    make('crit.cluster_weight', len(a['cutoffs']), d)
    make('crit.cluster_bias', len(a['cutoffs']))
  for i in bins if a['div_val'] > 1 else [0]:
    table = found[f'word_emb.emb_layers.{i}.weight']
    name = f'crit.out_layers.{i}.weight'
    if a['tie_weight']:
      found[name] = table
    else:
      make(name, *table.shape)
    make(f'crit.out_layers.{i}.bias', len(table))
  if d != D or a['div_val'] > 1:
    for i, tied in enumerate(a['tie_projs']):
      of = found[f'word_emb.emb_projs.{i if a["div_val"] > 1 else 0}']
      if tied:
        found[f'crit.out_projs.{i}'] = of
      else:
        make(f'crit.out_projs.{i}', *of.shape)
  if a['attn_type'] in (0, 2):
    w = [10000 ** (-2 * k / D) for k in range(D // 2)]
    found['pos_emb.inv_freq'] = np.array(w, np.float32)
  return found


def score(a, w, tokens, descending=True, zeros=False, eps=1e-5, longer=0):
  """Nll [n] of tokens [n + 1], in segments of tgt_len, with memory.

  The logits of tails are in descending order, as in PyTorch, or ascending;
  memory starts empty or as zeros; with same_length a query sees `longer` more
  keys than PyTorch's.
  """
  w = {name: x.astype(np.float64) for name, x in w.items()}
  T, M, D, found = a['tgt_len'], a['mem_len'], a['d_model'], []
  memory = [np.zeros([M if zeros else 0, D])] * a['n_layer']
  for start in range(0, len(tokens) - 1, T):
    inputs = tokens[start : start + T][: len(tokens) - 1 - start]
    targets = tokens[start + 1 :][: len(inputs)]
    h, memory = _segment(a, w, inputs, memory, eps, longer)
    found += [_nll(a, w, x, t, descending) for x, t in zip(h, targets)]
  return np.array(found)


def _segment(a, w, tokens, memory, eps, longer):
  T, kind = len(tokens), a['attn_type']
  x = np.stack([_embed(a, w, t) for t in tokens])
  if kind == 2:
    x += np.stack([_sinusoid(T - 1 - i, a['d_model']) for i in range(T)])
  new = []
  for n in range(a['n_layer']):
    keep = np.concatenate([memory[n], x])
    new.append(keep[len(keep) - min(len(keep), a['mem_len']) :])
    if kind == 3:
      table = w['r_emb'][n].reshape(-1, a['d_model'])
      x = x + table[len(table) - T :]
    x = _layer(a, w, n, x, memory[n], eps, longer)
  return x, new


def _layer(a, w, n, x, past, eps, longer):
  kind, H, K = a['attn_type'], a['n_head'], a['d_head']
  own = f'layers.{n}.dec_attn.'
  norm = lambda y: _norm(w, f'{own}layer_norm', y, eps)
  states = np.concatenate([past, x])
  seen = norm(states) if a['pre_lnorm'] else states
  if kind < 2:
    q, k, v = np.split(seen @ w[f'{own}qkv_net.weight'].T, 3, axis=-1)
    q = q[len(past) :]
  else:  # queries of states without norm
    q = x @ w[f'{own}q_net.weight'].T
    k, v = np.split(seen @ w[f'{own}kv_net.weight'].T, 2, axis=-1)
  q, k, v = (y.reshape(-1, H, K) for y in (q, k, v))
  span = a['mem_len'] + longer if a['same_length'] else math.inf
  out = np.zeros([len(x), H, K])
  for i in range(len(x)):
    scores, values = [], []
    for j in range(len(states)):
      d = i + len(past) - j
      if 0 <= d < span:
        scores.append(_score(a, w, n, q[i], k[j], d) / math.sqrt(K))
        values.append(v[j])
    e = np.exp(np.stack(scores) - np.max(scores, axis=0))
    out[i] = np.einsum('jh,jhk->hk', e / e.sum(axis=0), np.stack(values))
  attended = out.reshape(-1, H * K) @ w[f'{own}o_net.weight'].T
  y = x + attended if a['pre_lnorm'] else norm(x + attended)
  own = f'layers.{n}.pos_ff.'
  norm = lambda y: _norm(w, f'{own}layer_norm', y, eps)
  z = norm(y) if a['pre_lnorm'] else y
  hidden = z @ w[f'{own}CoreNet.0.weight'].T + w[f'{own}CoreNet.0.bias']
  z = np.maximum(hidden, 0) @ w[f'{own}CoreNet.3.weight'].T
  z = y + z + w[f'{own}CoreNet.3.bias']
  return z if a['pre_lnorm'] else norm(z)


def _score(a, w, n, q, k, d):
  """[H], of a query and a key at a distance."""
  kind, clamp = a['attn_type'], a['clamp_len']
  if kind == 0:
    near = min(d, clamp) if clamp > 0 else d
    r = w[f'layers.{n}.dec_attn.r_net.weight'] @ _sinusoid(near, a['d_model'])
    r, own = r.reshape(q.shape), f'layers.{n}.dec_attn.'
    u, v = (w[x] if x in w else w[own + x] for x in ('r_w_bias', 'r_r_bias'))
    return ((q + u) * k + (q + v) * r).sum(axis=-1)
  if kind == 1:
    table, bias = w['r_emb'][n], w['r_bias'][n]
    if clamp > 0:
      table, bias = table[-clamp:], bias[-clamp:]
    row = max(len(table) - 1 - d, 0)  # the farthest first
    return ((q + w['r_w_bias'][n]) * k + q * table[row]).sum(-1) + bias[row]
  return (q * k).sum(axis=-1)


def _sinusoid(d, D):
  angles = [d * 10000 ** (-2 * k / D) for k in range(D // 2)]
  return np.array([*map(math.sin, angles), *map(math.cos, angles)])


def _norm(w, name, x, eps):
  mean = x.mean(axis=-1, keepdims=True)
  var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
  return (x - mean) / np.sqrt(var + eps) * w[f'{name}.weight'] + w[
    f'{name}.bias'
  ]


def _bin(a, token):
  """Which bin a token is in, and which of its words it is."""
  edges = [0, *a['cutoffs'], a['n_token']]
  i = next(i for i in range(len(edges)) if token < edges[i + 1])
  return i, token - edges[i], edges


def _embed(a, w, token):
  i, row, _ = _bin(a, token)
  table, of = (row, i) if a['div_val'] > 1 else (token, 0)
  x = w[f'word_emb.emb_layers.{of}.weight'][table]
  if f'word_emb.emb_projs.{of}' in w:
    x = w[f'word_emb.emb_projs.{of}'] @ x
  return x * math.sqrt(a['d_model'])


def _nll(a, w, h, target, descending):
  i, row, edges = _bin(a, target)

  def logits(i, extra=()):
    rows = slice(edges[i], edges[i + 1]) if a['div_val'] == 1 else slice(None)
    of = i if a['div_val'] > 1 else 0
    weight = w[f'crit.out_layers.{of}.weight'][rows]
    bias = w[f'crit.out_layers.{of}.bias'][rows]
    for more_weight, more_bias in extra:
      weight = np.concatenate([weight, more_weight])
      bias = np.concatenate([bias, more_bias])
    name = f'crit.out_projs.{i}'
    return weight @ (w[name].T @ h if name in w else h) + bias

  def log_softmax(x):
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()

  if not a['cutoffs']:
    return -log_softmax(logits(0))[target]
  head = log_softmax(
    logits(0, [(w['crit.cluster_weight'], w['crit.cluster_bias'])])
  )
  if i == 0:
    return -head[row]
  column = -i if descending else edges[1] + i - 1
  return -head[column] - log_softmax(logits(i))[row]
