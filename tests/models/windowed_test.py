"""A moving window against `direct`, which reads each window by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.cases import CASES
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.generation import decoding, sampling
from txl_jax.models import base, windowed
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement

V, B, T = 11, 3, 13
FIELDS = dict(CASES['transformer_xl'].small, name='transformer_xl', mem_len=0)
# One token, fewer than a segment has, and more than there are.
WINDOWS = [1, 4, 20]


pytestmark = pytest.mark.usefixtures('x64')


@functools.cache
def plain(dtype='float64'):
  return models.build(FIELDS, V, dtype=dtype)


@functools.cache
def params():
  return direct.random_params(plain())


def make(window, dtype='float64'):
  model = plain(dtype).at_test_time()
  return windowed.Windowed(V, model.config, model=model, window=window)


def text(n=T, seed=0):
  """int32 [B, n + 1]."""
  return np.random.default_rng(seed).integers(0, V, [B, n + 1], np.int32)


@functools.cache
def after(window):
  """Logits [V] of the next token after that window, a tuple, and no more."""
  memory = direct.init_memory(plain())
  tokens = np.array(window, np.int64)
  return direct.segment(plain(), params(), tokens, memory)[0][-1]


def logits_by_hand(tokens, W):
  """[n, V]: after each token of int [n], from the W last ones."""
  ends = range(1, len(tokens) + 1)
  return np.stack([after(tuple(tokens[max(0, n - W) : n])) for n in ends])


@functools.cache
def program(model, method, **options):
  """The jitted (arguments, lengths) -> what a method returns."""
  apply = functools.partial(
    model.apply, {'params': params()}, method=method, **options
  )
  return jax.jit(lambda args, lengths: apply(*args, lengths=lengths))


def run(model, method, *args, lengths=None, **options):
  return program(model, method, **options)(args, lengths)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'W, padded',
  [
    *((W, False) for W in WINDOWS),
    pytest.param(1, True, marks=pytest.mark.slow),
    *((W, True) for W in WINDOWS[1:]),
  ],
)
def test_each_token_is_of_its_window_alone(W, padded):
  """Nll and logits in two calls; padded rows of any length, none included."""
  model = make(W)
  memory, rows = model.init_memory(B), [[] for _ in range(B)]
  for seed, lengths in enumerate([[2, 6, 1], [0, 3, 6]]):
    tokens = text(6, seed)[:, :6]
    real = np.array(lengths if padded else [6] * B, np.int32)
    options = dict(lengths=real if padded else None)
    logits, end = run(model, 'logits', tokens, memory, **options)
    last, same = run(model, 'logits', tokens, memory, last=True, **options)
    targets = np.where(np.arange(6) < real[:, None], 2, -1)
    out = run(
      model, '__call__', tokens, targets, memory, train=False, **options
    )
    assert out.aux.tolist() == [0, 0]
    for b, n in enumerate(real):
      before = len(rows[b])
      rows[b] += tokens[b, :n].tolist()
      expected = logits_by_hand(rows[b], W)
      close(logits[b, :n], expected[before:])
      close(last[b], expected[-1])
      close(out.nll[b, :n], direct.nll(expected[before:], targets[b, :n]))
      np.testing.assert_array_equal(out.nll[b, n:], 0)
      kept = end.tokens[b, W - int(end.filled[b]) :]
      np.testing.assert_array_equal(kept, rows[b][-W:])
    for memory in same, out.memory, end:
      jax.tree.map(np.testing.assert_array_equal, memory, end)


@pytest.mark.slow
def test_parameters_are_those_of_the_model():
  model = make(4)
  key = jax.random.key(3)
  own = jax.jit(lambda: base.init_params(plain(), key))()
  through = jax.jit(lambda: base.init_params(model, key))()
  jax.tree.map(np.testing.assert_array_equal, own, through)
  assert model.inference_params(own) is own


@pytest.mark.thorough
@pytest.mark.parametrize('devices', [1, 8])
def test_a_split_is_scored(devices):
  """With streams that the devices cannot divide."""
  W, n, model = 4, 40, make(4, 'float32')
  tokens = np.random.default_rng(2).integers(0, V, n).astype(np.uint8)
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:devices])
  narrow = jax.tree.map(jnp.float32, params())
  with jax.enable_x64(False):
    everywhere = jax.device_put(narrow, placement.replicated(mesh))
    cut = dict(batch_size=3, segment_len=5, segments_per_call=2)
    found = scoring.score(model, everywhere, tokens, mesh=mesh, **cut)
  expected = 0.0
  for start in 0, 13, 26:
    stream = tokens[start : start + 14]
    logits = logits_by_hand(stream[:-1].tolist(), W)
    expected += direct.nll(logits, stream[1:]).sum()
  assert found.scored == n - 1
  assert found.nll == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('W', WINDOWS)
def test_text_is_written_from_the_window(W):
  prompt = [3, 1, 4, 1, 5, 9]
  settings = dict(max_new_tokens=8, seed=0, segment_len=4, samples=2, chunk=3)
  settings['sampling'] = sampling.Sampling(temperature=0)
  pieces = decoding.generate(make(W), params(), prompt, **settings)
  text = list(prompt)
  for _ in range(8):
    logits = after(tuple(text[-W:]))
    assert np.diff(np.sort(logits)[-2:]) > 1e-4
    text.append(int(logits.argmax()))
  found = np.concatenate(list(pieces), axis=1)
  np.testing.assert_array_equal(found, [text[len(prompt) :]] * 2)


def test_overrides_reach_the_model():
  model = make(3).at_test_time(same_length='M', clamp_len=2)
  assert (model.config.same_length, model.config.clamp_len) == ('M', 2)
  assert model.model.config == model.config
