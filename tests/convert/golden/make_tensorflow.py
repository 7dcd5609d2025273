"""Makes tf_*: checkpoints with the variables of the original TensorFlow code.

  python make_tensorflow.py

needs tensorflow (made with 2.21, whose tf.compat.v1 writes what TensorFlow 1
wrote). Variables have the names and shapes that tf/model.py of
github.com/kimiyoung/transformer-xl gives them, and random values;
tf.compat.v1.train.Saver saves them. Beside each checkpoint is tf_*.npz:

  config   JSON text, in the names of the original's flags
  ids      int8 [segments, B, T + 1]: inputs, and one more for targets
  nll      float64 [segments, B, T], computed below from the formulas

The formulas are written out for one query at a time, in float64: memory starts
as zeros that are attended to, a query sees M + 1 keys itself included, the
epsilon of the norms is 1e-12, and the logits behind the head's words stand for
the tails in ascending order.
"""

import itertools
import json
import os
import pathlib
import shutil
import tempfile

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
HERE = pathlib.Path(__file__).parent
SEGMENTS, B, T, M = 4, 2, 3, 5
BASE = dict(
  n_token=11, cutoffs=[], n_layer=2, d_model=8, d_embed=8, n_head=2, d_head=3,
  d_inner=10, div_val=1, untie_r=False, proj_share_all_but_first=False,
  proj_same_dim=True, clamp_len=-1, mem_len=M, tgt_len=T, same_length=True,
)  # fmt: skip
BINS = dict(n_token=23, cutoffs=[5, 9])
CASES = {
  'tf_plain': dict(clamp_len=4),
  'tf_narrow': dict(**BINS, d_embed=6, proj_share_all_but_first=True),
  'tf_one_width': dict(**BINS),
  'tf_div4': dict(
    **BINS, div_val=4, d_model=16, d_embed=16, untie_r=True, clamp_len=3,
    proj_share_all_but_first=True,
  ),
  'tf_same_width': dict(
    **BINS, div_val=2, untie_r=True, proj_same_dim=False, same_length=False
  ),
}  # fmt: skip


def shapes(c):
  """{name: shape} of the variables, without the scope `transformer`."""
  N, D, H, K, F = (
    c[k] for k in ('n_layer', 'd_model', 'n_head', 'd_head', 'd_inner')
  )
  d = c['d_embed']
  layers = [N] if c['untie_r'] else []
  found = {'r_w_bias': [*layers, H, K], 'r_r_bias': [*layers, H, K]}
  edges = [0, *c['cutoffs'], c['n_token']]
  if c['div_val'] == 1:
    found['adaptive_embed/lookup_table'] = [c['n_token'], d]
    if d != D:
      found['adaptive_embed/proj_W'] = [d, D]
  for i, (a, b) in enumerate(itertools.pairwise(edges)):
    width = d // c['div_val'] ** i
    bare = width == D and (c['div_val'] == 1 or not c['proj_same_dim'])
    scope = f'cutoff_{i}/'
    if c['div_val'] > 1:
      found[f'adaptive_embed/{scope}lookup_table'] = [b - a, width]
      if not bare:
        found[f'adaptive_embed/{scope}proj_W'] = [width, D]
    if not c['cutoffs']:
      found['adaptive_softmax/bias'] = [c['n_token']]
      continue
    found[f'adaptive_softmax/{scope}b'] = [b - a]
    if not bare and not (c['proj_share_all_but_first'] and i):
      found[f'adaptive_softmax/{scope}proj'] = [width, D]
    if i == 0:
      tails = len(c['cutoffs'])
      found[f'adaptive_softmax/{scope}cluster_W'] = [tails, d]
      found[f'adaptive_softmax/{scope}cluster_b'] = [tails]
  for n in range(N):
    layer = f'layer_{n}/'
    found |= {
      layer + 'rel_attn/qkv/kernel': [D, 3 * H * K],
      layer + 'rel_attn/r/kernel': [D, H * K],
      layer + 'rel_attn/o/kernel': [H * K, D],
      layer + 'ff/layer_1/kernel': [D, F],
      layer + 'ff/layer_1/bias': [F],
      layer + 'ff/layer_2/kernel': [F, D],
      layer + 'ff/layer_2/bias': [D],
    }
    for part in 'rel_attn', 'ff':
      found[f'{layer}{part}/LayerNorm/gamma'] = [D]
      found[f'{layer}{part}/LayerNorm/beta'] = [D]
  return found


def norm(x, w, name):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
  return x * w[name + '/LayerNorm/gamma'] + w[name + '/LayerNorm/beta']


def softmax(x):
  x = np.exp(x - x.max())
  return x / x.sum()


def sinusoid(c, distance):
  if c['clamp_len'] > 0:
    distance = min(distance, c['clamp_len'])
  D = c['d_model']
  angles = distance * 10000.0 ** (-np.arange(0, D, 2) / D)
  return np.concatenate([np.sin(angles), np.cos(angles)])


def attention(c, w, n, memory, x):
  """[T, D] of one row: every query looks at its keys one by one."""
  H, K, name = c['n_head'], c['d_head'], f'layer_{n}/rel_attn'
  keys = np.concatenate([memory, x])
  q, k, v = np.split(keys @ w[name + '/qkv/kernel'], 3, -1)
  q, k, v = (y.reshape(-1, H, K) for y in (q, k, v))
  u, b = w['r_w_bias'], w['r_r_bias']
  if c['untie_r']:
    u, b = u[n], b[n]
  out = []
  for i in range(len(x)):
    here = len(memory) + i  # the query's place among the keys
    first = here - c['mem_len'] if c['same_length'] else 0
    seen = range(max(first, 0), here + 1)  # M + 1 keys
    heads = []
    for h in range(H):
      scores = []
      for j in seen:
        r = sinusoid(c, here - j) @ w[name + '/r/kernel']
        r = r.reshape(H, K)[h]
        score = (q[here, h] + u[h]) @ k[j, h] + (q[here, h] + b[h]) @ r
        scores.append(score / np.sqrt(K))
      heads.append(softmax(np.array(scores)) @ v[list(seen), h])
    out.append(np.concatenate(heads) @ w[name + '/o/kernel'])
  return norm(x + np.array(out), w, name)


def feed_forward(w, n, x):
  name = f'layer_{n}/ff'
  h = x @ w[name + '/layer_1/kernel'] + w[name + '/layer_1/bias']
  h = np.maximum(h, 0) @ w[name + '/layer_2/kernel']
  return norm(x + h + w[name + '/layer_2/bias'], w, name)


def bin_of(c, token):
  """The bin of a token, and its number there."""
  edges = [0, *c['cutoffs']]
  i = max(i for i, edge in enumerate(edges) if token >= edge)
  return i, token - edges[i]


def table(c, w, i):
  """The embeddings of a bin, before any projection."""
  if c['div_val'] > 1:
    return w[f'adaptive_embed/cutoff_{i}/lookup_table']
  edges = [0, *c['cutoffs'], c['n_token']]
  return w['adaptive_embed/lookup_table'][edges[i] : edges[i + 1]]


def input_projection(c, w, i):
  scope = f'cutoff_{i}/' if c['div_val'] > 1 else ''
  return w.get(f'adaptive_embed/{scope}proj_W')


def embed(c, w, token):
  i, place = bin_of(c, token)
  x, projection = table(c, w, i)[place], input_projection(c, w, i)
  if projection is not None:
    x = x @ projection
  return x * np.sqrt(c['d_model'])


def logits(c, w, i, h):
  """Those of the words of a bin; those of the tails follow the head's."""
  tied = (c['proj_share_all_but_first'] and i > 0) or not c['cutoffs']
  name = f'adaptive_softmax/cutoff_{i}/'
  projection = input_projection(c, w, i) if tied else w.get(name + 'proj')
  if projection is not None:
    h = projection @ h
  words = table(c, w, i) @ h
  if not c['cutoffs']:
    return words + w['adaptive_softmax/bias']
  words = words + w[name + 'b']
  if i:
    return words
  tails = w[name + 'cluster_W'] @ h + w[name + 'cluster_b']
  return np.concatenate([words, tails])


def nll(c, w, h, token):
  i, place = bin_of(c, token)
  head = softmax(logits(c, w, 0, h))
  if i == 0:
    return -np.log(head[place])
  tail = len(table(c, w, 0)) + i - 1  # ascending
  return -np.log(head[tail]) - np.log(softmax(logits(c, w, i, h))[place])


def scores(c, w, ids):
  """float64 [segments, B, T]."""
  out = np.zeros([SEGMENTS, B, T])
  for row in range(B):
    memory = np.zeros([c['n_layer'], c['mem_len'], c['d_model']])
    for s in range(SEGMENTS):
      tokens = ids[s, row]
      x = np.array([embed(c, w, t) for t in tokens[:-1]])
      for n in range(c['n_layer']):
        before = memory[n].copy()
        memory[n] = np.concatenate([before, x])[-c['mem_len'] :]
        x = feed_forward(w, n, attention(c, w, n, before, x))
      out[s, row] = [nll(c, w, h, t) for h, t in zip(x, tokens[1:])]
  return out


def save(name, values):
  """Variables within the scope `transformer`, as a Saver writes them."""
  with tf1.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
    with tf1.variable_scope('transformer'):
      made = [
        tf1.get_variable(k, initializer=tf1.constant(x))
        for k, x in values.items()
      ]
    if name == 'tf_plain':  # with what training keeps
      step = tf1.train.get_or_create_global_step()
      loss = tf1.reduce_sum(made[0] ** 2)
      tf1.train.AdamOptimizer().minimize(loss, step, made[:1])
    with tf1.Session() as session:
      session.run(tf1.global_variables_initializer())
      path = f'{folder}/{name}.ckpt-0'
      tf1.train.Saver().save(session, path, write_meta_graph=False)
    for file in pathlib.Path(folder).glob(f'{name}.*'):
      shutil.copy(file, HERE / file.name)


def main():
  tf1.disable_eager_execution()
  for seed, (name, changes) in enumerate(CASES.items()):
    c = {**BASE, **changes}
    rng = np.random.default_rng(seed)
    values = {
      k: rng.normal(k.endswith('gamma'), 0.4, shape).astype(np.float32)
      for k, shape in shapes(c).items()
    }
    length = SEGMENTS * T + 1
    stream = rng.integers(0, c['n_token'], [B, length])
    ids = np.stack([stream[:, s * T :][:, : T + 1] for s in range(SEGMENTS)])
    exact = {k: x.astype(np.float64) for k, x in values.items()}
    save(name, values)
    np.savez(
      HERE / f'{name}.npz',
      config=np.array(json.dumps(c)),
      ids=ids.astype(np.int8),
      nll=scores(c, exact, ids),
    )


if __name__ == '__main__':
  main()
