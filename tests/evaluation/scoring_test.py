"""Scoring against `direct`, which reads the same text row by row."""

import functools
import math
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import compilations, direct, programs
from tests.refusing import refused
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base, ring_model, windowed
from txl_jax.ops.kernels import proof, tpu_cached, tpu_shift
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.errors import UserError

V, T = 11, 4
N = 24  # tokens
FIELDS = dict(name='transformer_xl', n_layer=2, d_model=6, n_head=2, d_head=3)
FIELDS |= dict(d_ff=8, mem_len=6)


def make(longest=0, **changes):
  return models.build(FIELDS, V, **changes).at_test_time(longest)


@functools.cache
def params():
  return direct.random_params(make())


def tokens(n=N):
  return np.random.default_rng(1).integers(0, V, n).astype(np.uint8)


def logits(model, B, n=N, context=None, weights=None):
  """float64 [n - 1, V]: after tokens 0 to n - 2, each stream on its own.

  With a context, so many tokens are read before each segment, and no memory.
  """
  text, pairs = tokens(n).astype(np.int64), n - 1
  size, found = math.ceil(pairs / B), np.zeros([pairs, V])
  for start in range(0, pairs, size):
    memory, end = direct.init_memory(model), min(start + size, pairs)
    for at in range(start, end, T):
      first, stop = at, min(at + T, end)
      if context is not None:
        first, memory = max(at - context, start), direct.init_memory(model)
      read = weights or params(), text[first:stop], memory
      out, memory = direct.segment(model, *read)
      found[at:stop] = out[at - first :]
  return found


def expected(*args, **options):
  """float64 [n - 1]: the nll of tokens 1 to n - 1."""
  found = logits(*args, **options)
  return direct.nll(found, tokens(len(found) + 1)[1:])


def score(model, B=1, G=3, n=N, mesh=None, weights=None, **options):
  narrow = jax.tree.map(jnp.float32, weights or params())
  if mesh:
    narrow = jax.device_put(narrow, placement.replicated(mesh))
  cut = dict(batch_size=B, segment_len=T, segments_per_call=G)
  return scoring.score(model, narrow, tokens(n), mesh=mesh, **cut, **options)


@pytest.mark.thorough
@pytest.mark.parametrize('meshed', [False, True])
@pytest.mark.parametrize('longest', [0, T])
def test_with_the_kernel_of_tpus(longest, meshed, monkeypatch):
  """And the ring that it needs, which segments do not divide."""
  slots = ring_model.WithRing._slots.fget
  monkeypatch.setattr(
    ring_model.WithRing, '_slots', property(lambda m: -(-slots(m) // 128) * 128)
  )
  calls, move = [], tpu_shift._rotated
  monkeypatch.setattr(
    tpu_shift, '_rotated', lambda *given: calls.append(0) or move(*given)
  )
  monkeypatch.setattr(tpu_shift, 'why_not', lambda case: '')
  monkeypatch.setattr(proof, 'at_test_time', lambda attention: 'tpu_shift')
  model, B = make(longest=longest), 4
  mesh = mesh_lib.make_mesh(dict(data=4, tensor=2)) if meshed else None
  found = score(model, B, mesh=mesh)
  right = expected(make(longest=longest), B)
  assert calls and found.nll == pytest.approx(right.sum(), rel=1e-5)


@pytest.mark.parametrize('meshed', [False, True])
def test_with_the_kernel_for_segments(meshed, monkeypatch):
  """Which has keys and values in the order of positions."""
  monkeypatch.setattr(ring_model.WithOrderedKeys, 'works', lambda model: True)
  monkeypatch.setattr(tpu_cached, 'UNIT', 128)
  model, B = make(longest=T), 4
  assert isinstance(model, ring_model.WithOrderedKeys)
  mesh = mesh_lib.make_mesh(dict(data=4, tensor=2)) if meshed else None
  found = score(model, B, mesh=mesh)
  right = expected(make(longest=0), B)
  assert found.nll == pytest.approx(right.sum(), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('name', ['transformer_xl', 'vaswani', 'al_rfou'])
@pytest.mark.parametrize('B, E', [(1, 5), (3, 2), (2, 40)])
def test_a_context_is_read_anew(name, B, E):
  """Each segment by itself, after the tokens of its stream before it."""
  fields = FIELDS | dict(name=name, mem_len=0)
  if name != 'transformer_xl':
    del fields['mem_len']
  model = models.build(fields, V).at_test_time()
  random = direct.random_params(model)
  right = expected(model, B, context=E, weights=random)
  for mesh in None, mesh_lib.make_mesh():
    nll = np.zeros(N - 1, np.float32)
    each = nll.__setitem__
    found = score(model, B, 2, mesh=mesh, context=E, each=each, weights=random)
    assert found.scored == N - 1
    np.testing.assert_allclose(nll, right, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize('longest', [0, T])
@pytest.mark.parametrize('meshed', [False, True])
def test_the_most_likely_tokens(longest, meshed):
  """Those of each stream's logits, at the place of each target."""
  B, K, model = 3, 4, make(longest=longest)
  scores = logits(model, B)
  right = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
  found = np.zeros([N - 1, K], np.float32), np.zeros([N - 1, K], np.int32)

  def each(at, nll, *best):
    for array, values in zip(found, best, strict=True):
      array[at] = values

  mesh = mesh_lib.make_mesh() if meshed else None
  score(model, B, mesh=mesh, top=K, each=each)
  logprobs, ids = found
  best = np.sort(right, axis=1)[:, ::-1][:, :K]
  np.testing.assert_allclose(logprobs, best, rtol=1e-5, atol=1e-5)
  there = np.take_along_axis(right, ids, axis=1)
  np.testing.assert_allclose(logprobs, there, rtol=1e-5, atol=1e-5)


def test_the_count_of_the_logs_of_penn_treebank():
  """As configs/ptb.py converts it: rows of R tokens, the sum divided by R."""
  B, E, model = 3, 5, make(mem_len=0)
  R, total, text = N // B, 0.0, tokens().astype(np.int64).reshape(B, -1)
  for at in range(0, R - 1, T):
    first, k, here = max(at - E, 0), min(T, R - 1 - at), []
    for row in text:
      empty = direct.init_memory(model)
      found, _ = direct.segment(model, params(), row[first : at + k], empty)
      nll = direct.nll(found[at - first :], row[at + 1 : at + 1 + k])
      here.append(nll.mean())
    total += np.mean(here) * k
  nll = np.zeros(N - 1, np.float32)
  score(model, B, context=E, each=nll.__setitem__)
  within = np.arange(1, N) % R != 0  # not the first of a row
  ours = nll[within].mean() * (R - 1) / R
  assert ours == pytest.approx(total / R, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('changes', [{}, dict(mem_len=0)])
def test_logits_over_a_temperature(changes):
  model, t = make(**changes), 1.08
  nll = direct.nll(logits(model, 1) / t, tokens()[1:])
  found = score(model.at_temperature(t))
  assert found.nll == pytest.approx(nll.sum(), rel=1e-5)
  assert abs(score(model).nll - nll.sum()) > 0.01
  if not changes:
    return
  # A window of T + 1 tokens.
  text, nll = tokens().astype(np.int64), 0.0
  window = windowed.Windowed(V, model.config, model=model, window=T + 1)
  for i in range(1, N):
    empty = direct.init_memory(model)
    read = text[max(i - T - 1, 0) : i]
    found, _ = direct.segment(model, params(), read, empty)
    nll += direct.nll(found[-1:] / t, text[i : i + 1]).sum()
  found = score(window.at_temperature(t))
  assert found.nll == pytest.approx(nll, rel=1e-5)


def test_a_memory_and_a_context_are_refused():
  expected = r'^eval\.context is 2; allowed: 0, since'
  with pytest.raises(UserError, match=expected):
    scoring.check(make(), tokens(), 1, T, 2)


def reaching(tokens):
  """A model without memory, for as many tokens at a time."""
  return types.SimpleNamespace(reach=lambda: tokens, remembers=lambda: False)


@pytest.mark.parametrize(
  'n, B, T, E, found',
  [
    (4, 3, 3, 5, None),
    (3, 3, 3, 0, 'eval.batch_size is 3: that many streams need 4 tokens, but '
     'there are only 3; allowed: fewer streams'),
    (99, 1, 8, 0, None),
    (99, 1, 9, 0, 'eval.segment_len is 9; allowed: at most 8 for this model'),
    (99, 1, 6, 2, None),
    (99, 1, 7, 2, 'eval.segment_len is 7; allowed: at most 8 minus '
     'eval.context (2) for this model'),
  ],
)  # fmt: skip
def test_what_does_not_fit(n, B, T, E, found):
  call = scoring.check, reaching(8), np.zeros(n), B, T, E
  assert (refused(*call) if found else call[0](*call[1:])) == found


@pytest.mark.parametrize(
  'pairs, B, reach, shape',
  [
    (1, 1, 99, (1, 1, 1)),
    (5, 1, 99, (1, 1, 8)),
    (8, 1, 99, (1, 1, 8)),
    (5, 1, 8, (1, 1, 8)),
    (5, 1, 7, (1, 1, 5)),  # 8 would be too long for the model
    (81, 1, 99, (4, 1, 16)),
    (31, 4, 99, (1, 4, 8)),
  ],
)
def test_shapes_of_calls(pairs, B, reach, shape):
  """Short texts have fewer and shorter segments than 4 of 16 tokens."""
  cut = np.zeros(pairs + 1, int), B, 16, 4, 0, None
  rows, calls = scoring.batches(reaching(reach), *cut)
  assert rows == B
  for (inputs, targets, begins, context), positions in calls:
    assert inputs.shape == targets.shape == positions.shape == shape
    assert begins is context is None


@pytest.mark.default_cases('1-changes0', '2-changes1', '3-changes2')
@pytest.mark.parametrize(
  'B, changes',
  [
    *((B, {}) for B in (1, 2, 3)),
    (1, dict(longest=T)),
    (1, dict(same_length='M', clamp_len=3, mem_len=9, longest=T + 1)),
    (1, dict(mem_len=0)),
  ],
)
def test_the_whole_split_is_scored_in_text_order(B, changes):
  """23 pairs: the last segment is short, and so is the last stream."""
  model, written, seen = make(**changes), np.zeros(N - 1, np.float32), []
  each, begin = written.__setitem__, time.monotonic()
  found = score(model, B, 2, each=each, progress=seen.append)
  np.testing.assert_allclose(written, expected(model, B), rtol=1e-5)
  assert found.scored == N - 1 == seen[-1] and seen == sorted(set(seen))
  assert found.nll == pytest.approx(written.sum(dtype=np.float64), rel=1e-12)
  assert found.nats == pytest.approx(found.nll / found.scored, rel=1e-12)
  assert 0 < found.seconds <= time.monotonic() - begin
  rate = found.scored / found.seconds
  assert found.tokens_per_second == pytest.approx(rate) and rate > 0


@pytest.mark.default_cases('6')
@pytest.mark.parametrize('n', [2, 3, T + 1, T + 2])
def test_short_splits(n):
  found = score(make(), n=n)
  assert found.scored == n - 1
  assert found.nll == pytest.approx(expected(make(), 1, n).sum(), rel=1e-5)


def test_segments_in_a_call_do_not_matter():
  nll = [score(make(), 3, G).nll for G in (1, 2, 1000)]
  assert nll == pytest.approx([nll[0]] * 3, rel=1e-6)


@pytest.mark.default_cases('10-2-0')
@pytest.mark.parametrize('mem_len', [6, 0])
@pytest.mark.parametrize('B, rows', [(3, 1), (10, 2)])
def test_devices_share_the_streams(monkeypatch, B, rows, mem_len):
  """Each has as many rows, some of them empty; that changes no figure."""
  mesh, n = mesh_lib.make_mesh(), 60
  assert mesh.size == 8
  model, jit_score = make(T, mem_len=mem_len), scoring.jit_score
  on_one = []

  def spy(params, memory, *arguments, **options):
    after, nll = jit_score(params, memory, *arguments, **options)
    for axis, *leaves in zip(*map(jax.tree.leaves, (axes, memory, after))):
      heads = FIELDS['n_head'] if leaves[0].ndim > 1 else 1
      shapes = [x.sharding.shard_shape(x.shape) for x in leaves]
      if axis != base.SHARED:
        on_one.extend(shape[axis] // heads for shape in shapes)
    on_one.append(nll.sharding.shard_shape(nll.shape)[1])
    return after, nll

  axes, nll = model.row_axes(), np.zeros(n - 1, np.float32)
  monkeypatch.setattr(scoring, 'jit_score', spy)
  found = score(model, B, 2, n, mesh=mesh, each=nll.__setitem__)
  right = expected(make(mem_len=mem_len), B, n)
  assert set(on_one) == {rows}
  assert found.scored == n - 1
  assert found.nll == pytest.approx(right.sum(), rel=1e-5)
  np.testing.assert_allclose(nll, right, rtol=1e-5)


def test_texts_of_up_to_a_power_of_two_share_a_program():
  model = make(T)
  cut = dict(batch_size=1, segment_len=64, segments_per_call=1)
  with compilations.counted() as compiled:
    for pairs in 5, 8:
      found = scoring.score(model, params(), tokens(pairs + 1), **cut)
      assert found.scored == pairs
  assert compiled.count('jit(score_segments)') == 1


@pytest.mark.thorough
@pytest.mark.parametrize('sizes', [dict(data=8), dict(data=4, tensor=2)])
def test_one_compilation_serves_all_segments(sizes):
  mesh, model = mesh_lib.make_mesh(sizes), make(T, n_head=4)
  params = base.init_params(model, jax.random.key(0))
  places = placement.by_rules(params, mesh, model.SHARDING)
  with compilations.counted() as compiled:
    cut = dict(batch_size=2, segment_len=T, segments_per_call=1)
    params = jax.device_put(params, places)
    found = scoring.score(model, params, tokens(), mesh=mesh, **cut)
  assert found.scored == N - 1
  assert compiled.count('jit(score_segments)') == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_memory_does_not_grow_with_the_text(tmp_path):
  """Two lengths, 16 MB of tokens apart, each in a process."""
  script = """
import pathlib, sys
import numpy as np
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base, windowed
import jax

folder, n = pathlib.Path(sys.argv[1]), int(sys.argv[2])
np.arange(n, dtype=np.uint32).__mod__(11).tofile(folder / str(n))
tokens = np.memmap(folder / str(n), np.uint32, 'r')
model = models.build(
  dict(
    name='transformer_xl', n_layer=1, d_model=4, n_head=1, d_head=2, d_ff=4,
    mem_len=0,
  ),
  11,
)
params = base.init_params(model, jax.random.key(0))
sizes = []

def note(scored):
  status = pathlib.Path('/proc/self/status').read_text().splitlines()
  sizes.append(next(int(s.split()[1]) for s in status if 'RssAnon' in s))

score = scoring.score(
  model, params, tokens, batch_size=64, segment_len=16, segments_per_call=64,
  progress=note,
)
assert score.scored == n - 1
print(max(sizes))
"""
  peaks = []
  # The first compiles, which takes memory; the others find it compiled.
  for n in (200_000, 200_000, 4_200_000):
    command = [sys.executable, '-c', script, str(tmp_path), str(n)]
    done = programs.run(command)
    assert done.returncode == 0, done.stderr
    peaks.append(int(done.stdout) / 1024)  # MiB
  assert peaks[2] - peaks[1] < 12


def test_what_progress_raises_ends_the_scoring():
  seen = []

  def stop(scored):
    seen.append(scored)
    if len(seen) == 2:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    score(make(), 1, 1, progress=stop)
  assert seen == [T, 2 * T]


@pytest.mark.thorough
def test_a_short_text_in_longer_segments():
  """It is padded, to be the program of others; the figures are its own."""
  one = dict(batch_size=1, segments_per_call=1)
  for n in 6, 9:
    these = tokens(24)[:n]
    found, expected = np.zeros([2, n - 1])
    for nll, T in (found, 64), (expected, n - 1):
      more = dict(segment_len=T, each=nll.__setitem__, **one)
      scoring.score(make(), params(), these, **more)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
