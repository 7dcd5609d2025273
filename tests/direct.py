"""Transformer-XL written out in numpy, one row, one query, one key at a time.

The oracle of the attention and model tests. It knows no masks, no shift and
no fixed memory shape: the memory of a row is the list of states it really
holds, and the position term is computed for each pair from its distance.
Paper: Dai et al. 2019, Section 3.3.

Letters: T queries, S keys, H heads, K head width, D model width, N layers,
V vocabulary, m memory states of a row, at most M.
"""

import functools
import math

import flax.traverse_util
import jax
import numpy as np

from tests.models import cases


def undropped(place, x):
  """Dropout that is off."""
  return x


def sinusoid(d, D):
  """[D]: sin(d w_k) for all k, then cos(d w_k), w_k = 10000^(-2k/D)."""
  w = [10000.0 ** (-2 * k / D) for k in range(D // 2)]
  return np.array([math.sin(d * x) for x in w] + [math.cos(d * x) for x in w])


def softmax(x):
  e = np.exp(x - x.max(axis=0))
  return e / e.sum(axis=0)


def attend(q, k, v, W_r, u, v_bias, span=math.inf, clamp_len=0, drop=undropped):
  """q [T, H, K]; k, v [S, H, K], all real; W_r [D, H, K] -> [T, H, K]."""

  def score(q, k, d):
    near = min(d, clamp_len) if clamp_len > 0 else d
    R = drop('positions', sinusoid(near, len(W_r)))
    r = np.einsum('d,dhk->hk', R, W_r)
    return ((q + u) * k + (q + v_bias) * r).sum(axis=-1)

  return attend_by(score, q, k, v, span, drop)


def attend_by(score, q, k, v, span=math.inf, drop=undropped):
  """The same with any score(q_i, k_j, distance) -> [H], not yet scaled."""
  T, S, K = len(q), len(k), q.shape[-1]
  out = np.zeros(q.shape)
  for i in range(T):
    scores, values = [], []
    for j in range(S):
      d = i + (S - T) - j
      if d < 0 or d >= span:
        continue
      scores.append(score(q[i], k[j], d) / math.sqrt(K))
      values.append(v[j])
    probs = drop('probabilities', softmax(np.stack(scores)))  # [visible, H]
    out[i] = np.einsum('jh,jhk->hk', probs, np.stack(values))
  return out


def layer_norm(x, p, eps):
  mean, norm = x.mean(axis=-1, keepdims=True), p['norm']
  var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
  return (x - mean) / np.sqrt(var + eps) * norm['scale'] + norm['bias']


def feed_forward(x, p, drop=undropped):
  hidden = np.maximum(x @ p['w1']['kernel'] + p['w1']['bias'], 0)
  hidden = drop('ff hidden', hidden)
  return hidden @ p['w2']['kernel'] + p['w2']['bias']


def span_of(model):
  if not model.config.mem_len and model.config.span is None:
    return math.inf
  M, choice = model.config.mem_len, getattr(model.config, 'same_length', 'off')
  return {'off': math.inf, 'M': max(M, 1), 'M+1': M + 1}[choice]


def scores_of(model, p, biases, drop):
  """The function (q_i [H, K], k_j [H, K], distance) -> [H] of a layer."""
  c, name = model.config, model.config.name

  def transformer_xl(q, k, d):
    near = min(d, c.clamp_len) if c.clamp_len > 0 else d
    R = drop('positions', sinusoid(near, c.d_model))
    if c.tie_positions:  # (W_q x_i + W_q r_0) . (W_k x_j + W_k r_d)
      R_0 = drop('positions', sinusoid(0, c.d_model))
      q = q + drop('position queries', project('q', R_0))
      r = drop('position keys', project('k', R))
      return (q * (k + r)).sum(axis=-1)
    r = project('r', R)
    return ((q + biases['u']) * k + (q + biases['v']) * r).sum(axis=-1)

  def project(name, x):
    return np.einsum('d,dhk->hk', x, p['attention'][name]['kernel'])

  if name == 'transformer_xl':
    return transformer_xl
  return cases.CASES[name].score(c, p['attention'])


def layer(model, p, biases, x, past, drop):
  """x [T, D], past [m, D] -> [T, D]."""
  if model.config.name == 'al_rfou':
    table = p['positions']
    x = np.stack([y + table[len(table) - len(x) + i] for i, y in enumerate(x)])

  def norm(name, y):
    return layer_norm(y, p[name], model.config.ln_eps)

  w = {name: p['attention'][name]['kernel'] for name in 'qkvo'}
  states = np.concatenate([past, x])
  if model.config.pre_norm:
    states = norm('norm1', states)

  def project(name, y):
    names = {'q': 'queries', 'k': 'keys', 'v': 'values'}
    return drop(names[name], np.einsum('sd,dhk->shk', y, w[name]))

  heads = attend_by(
    scores_of(model, p, biases, drop),
    project('q', states[len(past) :] if model.config.norm_queries else x),
    project('k', states),
    project('v', states),
    span_of(model),
    drop,
  )
  a = drop('attention output', np.einsum('thk,hkd->td', heads, w['o']))
  if model.config.pre_norm:
    y = x + a
    return y + drop('ff output', feed_forward(norm('norm2', y), p['ff'], drop))
  y = norm('norm1', x + a)
  return norm('norm2', y + drop('ff output', feed_forward(y, p['ff'], drop)))


def init_memory(model):
  """The memory of one row: N arrays [m, D], m = 0 or M zero states."""
  m = model.config.mem_len if model.config.memory_init == 'zeros' else 0
  return [np.zeros([m, model.config.d_model])] * model.config.n_layer


def segment(model, params, tokens, memory, drop=undropped):
  """One row: tokens [T], N arrays [m, D] -> logits [T, V], new memory."""
  p = params['vocabulary']
  x = drop('words', p['table'])[tokens]
  if model.config.dropped_words == 'zero':
    x[:1] = p['table'][tokens[:1]]  # the first word is never dropped
  x = x * math.sqrt(model.config.d_model)
  if model.config.name == 'vaswani':
    left = range(len(x) - 1, -1, -1)
    x = x + np.stack([sinusoid(n, model.config.d_model) for n in left])
  x = drop('embeddings', x)
  new_memory = []
  for n in range(model.config.n_layer):
    pn = params[f'layers_{n}']
    keep = np.concatenate([memory[n], x])
    new_memory.append(keep[max(0, len(keep) - model.config.mem_len) :])
    biases = pn.get('biases', params.get('biases'))
    x = layer(model, pn, biases, x, memory[n], drop)
  x = drop('final states', drop('final states, plain', x))
  weights = p['table'] if model.config.tie_weights else p['output']
  return x @ weights.T + p['bias'], new_memory


def nll(logits, targets):
  """[T, V], [T] -> [T], -log softmax at the targets."""
  probs = softmax(logits.T)  # [V, T]
  return -np.log(probs[targets, range(len(targets))])


def score_rows(model, params, segments):
  """Nll [B, T] of each (inputs, targets, lengths, reset), and the memories.

  Rows one by one, each with only its real tokens.
  """
  rows = len(segments[0][0])
  memories = [init_memory(model)] * rows
  out = []
  for inputs, targets, lengths, reset in segments:
    scored = np.zeros(inputs.shape)
    for b in range(rows):
      if reset[b]:
        memories[b] = init_memory(model)
      n = inputs.shape[1] if lengths is None else lengths[b]
      if not n:
        continue
      logits, memories[b] = segment(model, params, inputs[b, :n], memories[b])
      at = np.flatnonzero(targets[b, :n] >= 0)
      scored[b, at] = nll(logits[at], targets[b, at]) if at.size else 0
    out.append(scored)
  return out, memories


def assert_memory(memory, memories):
  """A memory against those of `score_rows`."""
  filled = [len(row[0]) for row in memories]
  np.testing.assert_array_equal(memory.filled, filled)
  for b, row in enumerate(memories):
    for n, states in enumerate(row):
      if len(states):
        kept = memory.states[n, b, -len(states) :]
        np.testing.assert_allclose(kept, states, rtol=1e-4, atol=1e-5)


def assert_slopes(f, at, gradient, step=1e-6, **error):
  """A gradient of f(tree), each leaf along a direction, against differences."""
  leaves, tree = jax.tree.flatten(at)
  rng = np.random.default_rng(9)  # no other's: a direction is none of the leaf
  for n, grad in enumerate(jax.tree.leaves(gradient)):
    direction, ends = rng.normal(size=grad.shape), []
    for s in step, -step:
      moved = [*leaves[:n], leaves[n] + s * direction, *leaves[n + 1 :]]
      ends.append(float(f(tree.unflatten(moved))))
    expected = (ends[0] - ends[1]) / (2 * step)
    found = np.sum(np.asarray(grad) * direction)
    np.testing.assert_allclose(found, expected, err_msg=f'leaf {n}', **error)


@functools.cache
def _shapes(model):
  """{path: shape} of the parameters; tests ask again for the same model."""
  tokens = np.zeros([1, 1], np.int32)
  with jax.enable_x64(True):
    memory = model.init_memory(1)
    key = jax.random.key(0)

    def init():
      return model.init(key, tokens, tokens, memory, train=False)

    shapes = jax.eval_shape(init)['params']
  flat = flax.traverse_util.flatten_dict(shapes)
  return {path: x.shape for path, x in flat.items()}


def random_params(model, seed=0, std=0.3):
  """float64 parameters of a model, every one large enough to matter."""
  shapes = _shapes(model)
  rng = np.random.default_rng(seed)

  def draw(path):
    return (path[-1] == 'scale') + std * rng.normal(size=shapes[path])

  return flax.traverse_util.unflatten_dict(
    {path: draw(path) for path in shapes}
  )
