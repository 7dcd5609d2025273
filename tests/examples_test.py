import importlib.util
import itertools
import math
import re
import sys

import jax
import numpy as np
import pytest

from tests import direct, programs

FRAMEWORKS = {'jax': 'jax', 'nnx': 'flax', 'equinox': 'equinox'}
FRAMEWORKS |= {'haiku': 'haiku'}  # of dm-haiku
SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in [*FRAMEWORKS][1:]]


@pytest.mark.thorough
def test_quickstart():
  done = programs.run([sys.executable, 'examples/quickstart.py'])
  assert done.returncode == 0, done.stderr
  score, text = done.stdout.splitlines()
  nats = float(re.match(r'([\d.]+) nats per byte', score)[1])
  assert abs(nats - math.log(256)) < 0.2  # untrained
  assert text.startswith(("b'", 'b"'))


def example(name):
  """The module examples/NAME.py."""
  path = programs.ROOT / f'examples/{name}.py'
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.thorough
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('name', ['jax', *SLOW])
def test_attention_in_other_models(name, capsys):
  """All compute the same, and learn what only a memory tells."""
  pytest.importorskip(FRAMEWORKS[name])
  bare, module = example('attention_in_jax'), example(f'attention_in_{name}')
  weights = bare.init(jax.random.key(3))
  tokens = jax.random.randint(jax.random.key(4), (2, 23), 0, bare.V)
  expected = bare.score(weights, tokens)
  found = module.score(module.from_weights(weights), tokens)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  module.main()
  first, _, last = re.findall(r': ([\d.]+) nats', capsys.readouterr().out)
  assert float(first) > 2 and float(last) < 0.05


@pytest.mark.thorough
def test_memory_of_the_example():
  """Segments and their memory are as one long segment that sees as far."""
  bare = example('attention_in_jax')
  weights = bare.init(jax.random.key(3))
  tokens = jax.random.randint(jax.random.key(4), (2, 14), 0, bare.V)
  segments = jax.jit(bare.score)(weights, tokens)
  bare.T = 13
  whole = jax.jit(lambda *x: bare.score(*x))(weights, tokens)
  np.testing.assert_allclose(segments, whole, rtol=1e-5, atol=1e-5)


def test_music(tmp_path):
  """Pieces come back from their ids; both files are written."""
  music = example('music')
  soprano = [(72, 0, 2), (72, 2, 4), (74, 5, 6)]  # repeated; a rest
  parts = [soprano, [(67, 0, 6)], [(60, 0, 6)], [(48, 1, 6)]]
  ids = music.to_ids(parts)
  assert ids[:8] == [72, 67, 60, 0, 200, 195, 188, 48]
  assert music.to_parts(ids) == parts
  assert music.to_parts(music.transpose(ids, 2))[3] == [(50, 1, 6)]
  assert music.to_parts([200, 0, 0, 0, 9])[0] == [(72, 0, 1)]
  pytest.importorskip('matplotlib')
  music.save_picture(parts, tmp_path / 'x.png', given=2)
  assert (tmp_path / 'x.png').stat().st_size > 1000
  mido = pytest.importorskip('mido')
  music.save_midi(parts, tmp_path / 'x.mid', quarters_per_minute=60)
  assert mido.MidiFile(tmp_path / 'x.mid').length == pytest.approx(1.5)


@pytest.fixture(scope='module')
def gtrxl():
  module = example('gtrxl')
  module.B = 4
  return module


def random_like(params):
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(0, 0.4, x.shape), params)


def gate(p, x, y):
  """Of one step: x and y [D]."""

  def sigmoid(x):
    return 1 / (1 + np.exp(-x))

  W = {name: p[name]['kernel'] for name in p if name != 'b'}
  r = sigmoid(y @ W['w_r'] + x @ W['u_r'])
  z = sigmoid(y @ W['w_z'] + x @ W['u_z'] - p['b'])
  return (1 - z) * x + z * np.tanh(y @ W['w_h'] + (r * x) @ W['u_h'])


def gated(c, p, observations, begins, T):
  """Logits and values of one row, [n, A + 1], one step after the other.

  begins: the steps at which episodes begin.
  """
  u, v_bias = p['biases']['u'], p['biases']['v']
  x = observations @ p['see']['kernel'] + p['see']['bias']
  for n in range(c.n_layer):
    w = p[f'layers_{n}']
    W = {name: w['attention'][name]['kernel'] for name in 'qkvro'}
    states, out = direct.layer_norm(x, w['norm1'], c.ln_eps), []
    q, k, v = (np.einsum('sd,dhk->shk', states, W[name]) for name in 'qkv')
    for t in range(len(x)):
      oldest = (
        t - c.mem_len if c.same_length == 'M+1' else t - t % T - c.mem_len
      )
      oldest = max(oldest, *(b for b in begins if b <= t))
      seen = slice(oldest, t + 1)
      heads = direct.attend(q[t : t + 1], k[seen], v[seen], W['r'], u, v_bias)
      a = np.einsum('hk,hkd->d', heads[0], W['o'])
      y = gate(w['gate1'], x[t], np.maximum(a, 0))
      f = direct.feed_forward(
        direct.layer_norm(y, w['norm2'], c.ln_eps), w['ff']
      )
      out.append(gate(w['gate2'], y, np.maximum(f, 0)))
    x = np.stack(out)
  heads = p['policy'], p['value']
  return np.hstack([x @ head['kernel'] + head['bias'] for head in heads])


@pytest.mark.default_cases('2-2-off-6')
@pytest.mark.parametrize(
  'n_layer, mem_len, same_length, T',
  [
    (1, 5, 'off', 4),
    (2, 5, 'off', 4),
    (2, 5, 'M+1', 4),
    (2, 5, 'M+1', 1),  # as an agent acts
    (2, 2, 'off', 6),
    (2, 0, 'off', 4),
  ],
)
def test_gtrxl_is_its_equations(gtrxl, n_layer, mem_len, same_length, T):
  """In segments of T; episodes begin at their starts and within them."""
  agent = gtrxl.build(mem_len)
  sizes = dict(n_layer=n_layer, d_model=8, d_head=3, d_ff=10, dtype='float64')
  agent = agent.with_keys(same_length=same_length, **sizes)
  observations = np.random.default_rng(1).normal(size=(3, 12, 6))
  begins = [0, 2, 3], [0, 4, 9], [0, 0]
  first = np.zeros([3, 12], bool)
  for row in (0, 1):  # the third begins without a flag
    first[row, begins[row]] = True
  with jax.enable_x64(True):
    memory, found = agent.init_memory(3), []
    inputs = observations[:, :T], first[:, :T], memory
    params = random_like(jax.eval_shape(agent.init, jax.random.key(0), *inputs))
    apply = jax.jit(agent.apply)
    for start in range(0, 12, T):
      now = np.s_[:, start : start + T]
      logits, values, memory = apply(
        params, observations[now], first[now], memory
      )
      found.append(np.concatenate([logits, values[..., None]], axis=-1))
  found = np.concatenate(found, axis=1)
  for row in range(3):
    expected = gated(
      agent.config, params['params'], observations[row], begins[row], T
    )
    np.testing.assert_allclose(found[row], expected, rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_gtrxl_reset_between_segments(gtrxl):
  """Of one row, with initial parameters, whose gates nearly copy."""
  agent, empty = gtrxl.build(), gtrxl.build().init_memory(2)
  observations = np.random.default_rng(1).normal(size=(2, 4, 6))
  first = np.zeros([2, 4], bool)
  params = agent.init(jax.random.key(0), observations, first, empty)
  assert (params['params']['layers_0']['gate1']['b'] == 2).all()
  apply = jax.jit(
    lambda memory: agent.apply(params, observations, first, memory)
  )
  logits, _, memory = apply(empty)
  again = apply(agent.reset_memory(memory, np.array([True, False])))[0]
  np.testing.assert_array_equal(again[0], logits[0])
  np.testing.assert_array_equal(again[1], apply(memory)[0][1])
  assert abs(again[1] - logits[1]).max() > 1e-3


def test_maze(gtrxl):
  """The signal at the first step is the answer at the last, after 10 to 30."""
  stream = gtrxl.segments(seed=0, length=400)
  observations, first, answer = next(stream)
  assert first[:, 0].all()
  lengths, distractors = set(), set()
  for row in range(gtrxl.B):
    begins = np.flatnonzero(first[row])
    for a, b in itertools.pairwise(begins):
      episode, signals = observations[row, a:b], observations[row, a:b, 2:]
      np.testing.assert_array_equal(episode[:, 0], np.arange(b - a) == 0)
      np.testing.assert_array_equal(
        episode[:, 1], np.arange(b - a) == b - a - 1
      )
      cue = signals[0].argmax()
      assert answer[row, b - 1] == cue and (answer[row, a : b - 1] == -1).all()
      assert (signals[:-1].sum(axis=1) == 1).all() and not signals[-1].any()
      lengths.add(b - a - 2)
      distractors.add((cue, signals[1].argmax()))
  assert min(lengths) >= 10 > gtrxl.T and max(lengths) <= 30 < gtrxl.M
  assert len(lengths) > 10 and len(distractors) > 10


@pytest.mark.thorough
def test_gtrxl_runs(gtrxl, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['gtrxl.py', '--updates=100'])
  gtrxl.main()
  lines = capsys.readouterr().out.splitlines()
  found = [x.split(':')[0] for x in lines[:3]]
  assert found == ['with memory', '  update 100', 'with memory']
  assert re.fullmatch(r'without memory: [\d.]+% right, .*', lines[5])


@pytest.mark.slow
def test_gtrxl_needs_its_memory():
  done = programs.run([sys.executable, 'examples/gtrxl.py'])
  assert done.returncode == 0, done.stderr
  recalled, guessed = re.findall(r'memory: ([\d.]+)% right', done.stdout)
  assert float(recalled) > 98 and abs(float(guessed) - 25) < 5
