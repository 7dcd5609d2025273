"""The gated convolutional network against loops: one position, one tap."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from tests import direct, refusing
from tests.configs_test import PARAMETERS
from tests.models.baselines.recurrent import sigmoid
from tests.models.small import apply
from txl_jax import attention, models
from txl_jax.configs import gcnn as published
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.models import base
from txl_jax.models.baselines import gcnn
from txl_jax.program import settings
from txl_jax.training import optim

B, T, V, D = 3, 3, 11, 4

# As a text and as lists of (kernel, width); the last is as wide as D, and of
# its blocks the first alone keeps the width.
TEXT = '[3,4] [1,2 4,3 1,5]*2 [2,4]'
BLOCKS = [[(3, 4)], *[[(1, 2), (4, 3), (1, 5)]] * 2, [(2, 4)]]


GATES = {
  'glu': lambda a, g: a * sigmoid(g),
  'gtu': lambda a, g: np.tanh(a) * sigmoid(g),
  'bilinear': lambda a, g: a * g,
  'relu': lambda a, g: np.where(a > 0, a, 0),
  'tanh': lambda a, g: np.tanh(a),
  'linear': lambda a, g: a,
}


def build(**changes):
  fields = dict(d_model=D, blocks=TEXT, dropout=0.0, dtype='float64')
  return models.build({'name': 'gcnn', **fields, **changes}, V)


def convolve(p, xs, t):
  """Position t: what each tap finds there is added, nothing before the text."""
  v = p['kernel']
  k, C, F = v.shape
  y = np.array(p.get('bias', np.zeros(F)))
  for f, j, i in itertools.product(range(F), range(k), range(C)):
    g_over_norm = 1.0
    if 'scale' in p:
      g_over_norm = p['scale'][f] / math.sqrt((v[:, :, f] ** 2).sum())
    if t - (k - 1) + j >= 0:
      y[f] += g_over_norm * v[j, i, f] * xs[t - (k - 1) + j][i]
  return y


def states(params, tokens, gate='glu', drop=lambda x: x):
  """The final states [T, F] of a whole text."""
  xs = [drop(params['vocabulary']['table'][token]) for token in tokens]
  for n, shapes in enumerate(BLOCKS):
    p, ys = params[f'blocks_{n}'], xs
    for i, (k, F) in enumerate(shapes):
      made = []
      for t in range(len(ys)):
        a = convolve(p[f'w_{i}'], ys, t)
        g = convolve(p[f'v_{i}'], ys, t) if f'v_{i}' in p else None
        assert a.shape == (F,) and len(p[f'w_{i}']['kernel']) == k
        made.append(drop(GATES[gate](a, g)))
      ys = made
    if len(xs[0]) != len(ys[0]):
      xs = [convolve(p['shortcut'], xs, t) for t in range(len(xs))]
    xs = [x + y for x, y in zip(xs, ys)]
  return np.array([drop(x) for x in xs])


def text(segments, seed=0):
  """int32 [2, segments, B, T]: tokens and targets."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, V, [2, segments, B, T], np.int32)


def tied_nll(params, tokens, targets, **more):
  p = params['vocabulary']
  logits = states(params, tokens, **more) @ p['table'].T + p['bias']
  return direct.nll(logits, targets)


# Of the rows in each segment; None is without padding.
LENGTHS = np.array([[2, 3, 0], [1, 0, 0], [3, 2, 3]], np.int32)


@pytest.mark.default_cases('relu-None', 'glu-lengths6')
@pytest.mark.parametrize(
  'gate, lengths', [*((gate, None) for gate in GATES), ('glu', LENGTHS)]
)
def test_segments_are_a_text_by_hand(x64, gate, lengths):
  model = build(gate=gate)
  params = direct.random_params(model)
  assert ('v_0' in params['blocks_0']) == (gate in ('glu', 'gtu', 'bilinear'))
  memory, (tokens, targets), nll = model.init_memory(B), text(3), []
  assert [x.shape for x in memory] == [
    (B, 2, 4), (B, 3, 2), (B, 3, 2), (B, 1, 5),
  ]  # fmt: skip
  real = np.full([3, B], T, np.int32) if lengths is None else lengths
  targets = np.where(np.arange(T) < real[..., None], targets, -1)
  run = jax.jit(functools.partial(model.apply, {'params': params}, train=False))
  for n in range(3):
    padded = None if lengths is None else lengths[n]
    out = run(tokens[n], targets[n], memory, lengths=padded)
    memory = out.memory
    nll.append(out.nll)
  for b in range(B):
    rows = [
      np.concatenate([x[n][b, : real[n, b]] for n in range(3)])
      for x in (tokens, targets, nll)
    ]
    expected = tied_nll(params, *rows[:2], gate=gate)
    np.testing.assert_allclose(rows[2], expected, rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_gradients_are_finite_differences(x64):
  """Along a direction of each parameter, with a memory that is not zero."""
  model = build(tie_weights=False, cutoffs=(4, 7), div_val=2)
  params = direct.random_params(model)
  rng, (tokens, targets) = np.random.default_rng(1), text(1)
  memory = [rng.normal(size=x.shape) for x in model.init_memory(B)]

  @jax.jit
  @jax.value_and_grad
  def loss(params):
    args = {'params': params}, tokens[0], targets[0], memory
    return model.apply(*args, train=False).nll.sum()

  _, grads = loss(params)
  assert all(np.any(x) for x in jax.tree.leaves(grads))
  value = lambda params: loss(params)[0]
  direct.assert_slopes(value, params, grads, step=1e-5, rtol=1e-4)


def test_a_softmax_of_its_own(x64):
  """One table for the input; tails of F / 2 and F / 4, the head as it is."""
  cutoffs, F = (4, 7), 9
  model = build(tie_weights=False, cutoffs=cutoffs, div_val=2, blocks='[2,9]')
  params = direct.random_params(model)
  p = params['vocabulary']
  assert {name: x.shape for name, x in p.items() if 'bias' not in name} == {
    'table': (V, D),
    'output_0': (4, F), 'output_1': (3, 4), 'output_2': (4, 2),
    'out_proj_1': (4, F), 'out_proj_2': (2, F), 'tail_weights': (2, F),
  }  # fmt: skip
  (tokens, _), memory = text(1), model.init_memory(B)
  read = jax.jit(functools.partial(model.apply, method='logits'))
  logits, _ = read({'params': params}, tokens[0], memory)
  block = params['blocks_0']
  for b, t in itertools.product(range(B), range(T)):
    xs = p['table'][tokens[0, b]]
    h = GATES['glu'](*(convolve(block[x], xs, t) for x in ('w_0', 'v_0')))
    h = h + convolve(block['shortcut'], xs, t)
    head = np.concatenate([p['output_0'], p['tail_weights']]) @ h
    head += np.concatenate([p['bias_0'], p['tail_biases']])
    head = np.log(direct.softmax(head))
    parts = [head[:4]]
    for i in 1, 2:
      tail = p[f'output_{i}'] @ (p[f'out_proj_{i}'] @ h) + p[f'bias_{i}']
      parts.append(head[3 + i] + np.log(direct.softmax(tail)))
    np.testing.assert_allclose(logits[b, t], np.concatenate(parts), rtol=1e-10)


@pytest.mark.parametrize('locked', [False, True])
def test_places_of_dropout(x64, monkeypatch, locked):
  """Embeddings, what each layer makes, final states; not the sums."""

  def fake(x, rate, key, shared=()):
    assert shared == ((1,) if locked else ())
    return x * (1 + rate)

  monkeypatch.setattr(attention, 'dropout', fake)
  model = build(dropout=0.25, locked_dropout=locked)
  params = direct.random_params(model)
  (tokens, targets), memory = text(1), model.init_memory(B)
  args = {'params': params}, tokens[0], targets[0], memory
  out = apply(model, *args, train=True, rngs={'dropout': jax.random.key(0)})
  for b in range(B):
    row = tokens[0, b], targets[0, b]
    expected = tied_nll(params, *row, drop=lambda x: 1.25 * x)
    np.testing.assert_allclose(out.nll[b], expected, rtol=1e-10)


@pytest.mark.thorough
def test_initial_weights():
  """He et al. 2015; their normalisation leaves them as they are."""
  key, (tokens, targets) = jax.random.key(0), text(1)
  changes = dict(dtype='float32', d_model=64, blocks='[5,96] [1,64]')
  out, params = [], {}
  for weight_norm in True, False:
    model = build(weight_norm=weight_norm, **changes)
    params[weight_norm] = jax.jit(lambda m=model: base.init_params(m, key))()
    args = {'params': params[weight_norm]}, tokens[0], targets[0]
    out.append(apply(model, *args, model.init_memory(B), train=False))
  np.testing.assert_allclose(out[0].nll, out[1].nll, rtol=1e-5)
  assert 'scale' not in params[False]['blocks_0']['w_0']
  block = params[True]['blocks_0']
  for name, fan_in in ('w_0', 5 * 64), ('v_0', 5 * 64), ('shortcut', 64):
    x = block[name]['kernel']
    assert abs(x.std() / math.sqrt(2 / fan_in) - 1) < 5 / math.sqrt(2 * x.size)
  assert not block['w_0']['bias'].any() and 'bias' not in block['shortcut']


@pytest.mark.thorough
def test_bfloat16(matrix_units):
  """Products of bfloat16 numbers; parameters and nll are float32."""
  (tokens, targets), nll = text(1), {}
  for dtype in 'float32', 'bfloat16':
    model = build(dtype=dtype)
    memory = model.init_memory(B)
    assert all(x.dtype == model.config.state_dtype for x in memory)
    params = jax.tree.map(np.float32, direct.random_params(model))
    args = {'params': params}, tokens[0], targets[0], memory
    made = apply(model, *args, train=False)
    assert [x.dtype for x in made.memory] == [x.dtype for x in memory]
    nll[dtype] = np.asarray(made.nll)
  assert nll['bfloat16'].dtype == np.float32
  apart = np.abs(nll['bfloat16'] - nll['float32']).max()
  assert 1e-4 < apart < 0.1


def test_without_memory():
  """Kernels of 1 see their position alone: there is nothing to keep."""
  model = build(blocks='[1,6 1,4]*2')
  assert not model.remembers() and not model.init_memory(B)


def test_matrices_alone_decay():
  model = build(tie_weights=False)
  params = direct.random_params(model)
  decays = optim.decays(params, model.NOT_DECAYED)
  for path, acts in jax.tree_util.tree_leaves_with_path(decays):
    assert acts == (path[-1].key in ('kernel', 'table', 'output'))


# Of the paper, typed again: corpus, D, and how often each block.
ONCE = {
  '8': ('wt103', 280, [(8, [(4, 900)])]),
  '14': (
    'wt103', 280,
    [
      (3, [(6, 850)]), (1, [(1, 850)]), (4, [(5, 850)]), (1, [(1, 850)]),
      (3, [(4, 850)]), (1, [(4, 1024)]), (1, [(4, 2048)]),
    ],
  ),
  '13': ('lm1b', 128, [(13, [(4, 1268)])]),
  '14b': (
    'lm1b', 128,
    [
      (1, [(5, 512)]), (3, [(1, 128), (5, 128), (1, 512)]),
      (3, [(1, 512), (5, 512), (1, 1024)]),
      (6, [(1, 1024), (5, 1024), (1, 2048)]),
      (1, [(1, 1024), (5, 1024), (1, 4096)]),
    ],
  ),
  '9': ('lm1b', 128, [(1, [(4, 807)]), (4, [(4, 807), (4, 807)])]),
  '8b': (
    'lm1b', 128,
    [
      (1, [(1, 512)]), (3, [(1, 128), (5, 128), (1, 512)]),
      (3, [(1, 256), (5, 256), (1, 512)]),
      (1, [(1, 1024), (1, 1024), (1, 2048)]),
    ],
  ),
}  # fmt: skip


@pytest.mark.parametrize('variant', ONCE)
def test_parameters_of_the_published_models(variant):
  """By hand; tests/configs_test.py counts what a config makes."""
  corpus, width, repeated = ONCE[variant]
  c = published.get_config(variant)
  blocks = [block for times, block in repeated for _ in range(times)]
  assert gcnn.parse(c.model.blocks) == blocks
  V = preparation.vocab_size(sections.read(c).data)
  edges, total, C = [0, *c.model.cutoffs], V * width, width
  for block in blocks:
    start = C
    for k, F in block:
      total += 2 * (k * C * F + 2 * F)  # W, b, g, and the same of the gate
      C = F
    total += start * C + C if start != C else 0
  total += edges[1] * (C + 1) + 3 * (C + 1)
  for i, (first, end) in enumerate(itertools.pairwise([*edges[1:], V]), 1):
    total += (end - first) * (C // 4**i + 1) + C // 4**i * C
  assert total == PARAMETERS[f'gcnn:{variant}']
  assert c.data.corpus == corpus and len(repeated) <= 7
  o = c.optim
  found = o.name, o.momentum, o.nesterov, o.clip, c.model.gate
  assert found == ('sgd', 0.99, True, 0.1, 'glu') and 1 <= o.lr <= 2
  assert c.model.weight_norm and not c.model.tie_weights


def refused(**changes):
  c = sections.compose('gcnn')
  c.model.update(changes)
  return refusing.refused(sections.read, c)


@pytest.mark.parametrize(
  'blocks',
  [
    '', ' ', '[]', '4,900', '[4,900', '[4 900]', '[4,900] ', ' [4,900]',
    '[4,900][4,900]', '[4,900]  [4,900]', '[0,900]', '[4,0]', '[04,9]',
    '[4,900]*0', '[4,900]*', '[4,900]*-1', '[4,900]*2*2', '[4,9.5]',
    '[4,1234567]', '[4,٣]', '[4,900]\n', '[1,128  5,128]',
    '[1,128, 5,128]', '[4,5]]', '[4,5] *2', '[4,5] x',
  ],
)  # fmt: skip
def test_blocks_that_are_none(blocks):
  said = refused(blocks=blocks)
  start = f'model.blocks is {blocks!r}; allowed: blocks like [5,512] or '
  assert said.startswith(start)


def test_keys_that_do_not_go_together():
  c = sections.compose('gcnn')
  sections.read(c)
  c.model.blocks = '[4,512]*1000'
  sections.read(c)
  c.model.update(tie_weights=False, blocks='[1,1 4,100]', cutoffs=(5, 9))
  c.model.div_val = 10
  sections.read(c)
  assert refused(tie_weights=False, cutoffs=(5, 9), div_val=23).endswith(
    'model.div_val is 23; allowed: numbers with div_val^2 at most 512'
  )
  assert refused(blocks='[4,512] [1,100]') == (
    'model.tie_weights is True; allowed: False, because the last block has '
    'width 100, not model.d_model'
  )
  assert 'has width 600' in refused(blocks='[4,512] [1,600]')
  assert refused(tie_weights=False, d_embed=512).startswith(
    'model.d_embed is 512; allowed: 0 without model.tie_weights'
  )
  assert refused(tie_weights=False, tie_projs=(True,)).startswith(
    'model.tie_projs is (True,); allowed: () without model.tie_weights'
  )
  # Tied, it is as with any model: narrower embeddings are projected.
  assert settings.read(gcnn.Config, dict(d_embed=128)).d_softmax == 0
