"""Streams and segments of the text 0, 1, 2, …, where a token is its place."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.data import streams

quick = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)
DTYPES = [np.uint8, np.int64]


def text(n, dtype=np.int32):
  return np.arange(n).astype(dtype)


@st.composite
def corpora(draw):
  """(n, B, T) with at least one batch, at most some epochs of 60 steps."""
  B, T = draw(st.integers(1, 5)), draw(st.integers(1, 9))
  return draw(st.integers(B * T + 1, B * T * 8 + 1)), B, T


def real(batch, row):
  """How many tokens of a row are no padding, from the targets alone."""
  scored = batch.targets[row] >= 0
  n = int(scored.sum())
  assert scored[:n].all()  # padding follows the tokens
  assert (batch.targets[row, n:] == -1).all()
  return n


def epochs(s, count):
  """The batches of each of the first epochs, by their `reset`."""
  out, step = [], 0
  while True:
    batch = s.batch(step)
    assert batch.reset.all() == batch.reset.any()
    if batch.reset.all():
      assert s.first_step(len(out)) == step
      if len(out) == count:
        return out
      out.append([])
    out[-1].append(batch)
    assert s.locate(step) == (len(out) - 1, len(out[-1]) - 1)
    step += 1


@pytest.mark.parametrize('varlen', [False, True])
@quick
@hypothesis.given(corpora())
def test_an_epoch_reads_every_pair_of_every_row_once_in_order(varlen, corpus):
  n, B, T = corpus
  s = streams.Streams(text(n), B, T, varlen=varlen)
  L = (n - 1) // B
  for epoch in epochs(s, 3):
    for row in range(B):
      parts = [(batch, real(batch, row)) for batch in epoch]
      inputs = np.concatenate([b.inputs[row, :k] for b, k in parts])
      targets = np.concatenate([b.targets[row, :k] for b, k in parts])
      # Row b is the piece of L pairs that starts at b L, so the rows are
      # disjoint and leave out fewer than B pairs at the end of the corpus.
      np.testing.assert_array_equal(inputs, range(row * L, row * L + L))
      np.testing.assert_array_equal(targets, inputs + 1)


@pytest.mark.parametrize('varlen', [False, True])
@quick
@hypothesis.given(corpora())
def test_shapes_lengths_and_padding(varlen, corpus):
  n, B, T = corpus
  s = streams.Streams(text(n), B, T, varlen=varlen)
  widths = {T // 2 + 10, T + 5, T + 15} if varlen else {T}
  assert s.widths == sorted(x for x in widths if x <= T + 15)
  (epoch,) = epochs(s, 1)
  for batch in epoch:
    for array in (batch.inputs, batch.targets):
      assert array.dtype == np.int32
    assert batch.rate_scale is None
    count = [real(batch, row) for row in range(B)]
    width = min(x for x in s.widths if x >= max(count))
    assert batch.inputs.shape == batch.targets.shape == (B, width)
    if varlen:
      assert batch.lengths.dtype == np.int32
      assert batch.lengths.tolist() == count
    else:
      assert batch.lengths is None
      # Memory is emptied after padding: the next batch starts an epoch.
      assert batch is epoch[-1] or count == [T] * B


@pytest.mark.thorough
@pytest.mark.parametrize('varlen', [False, True])
@quick
@hypothesis.given(corpora(), st.lists(st.integers(0, 150), max_size=20))
def test_a_batch_depends_on_the_step_alone(varlen, corpus, order):
  n, B, T = corpus

  def make():
    return streams.Streams(text(n), B, T, varlen=varlen, seed=3)

  used = make()
  for step in order:
    got, expected = used.batch(step), make().batch(step)
    for name in 'inputs', 'targets', 'lengths', 'reset':
      x, y = getattr(got, name), getattr(expected, name)
      np.testing.assert_array_equal(x, y)
    assert used.locate(step) == make().locate(step)


@pytest.mark.parametrize('varlen', [False, True])
def test_some_rows_of_a_batch(varlen):
  s = streams.Streams(text(900), 6, 9, varlen=varlen)
  for step in range(40):
    whole, part = s.batch(step), s.batch(step, np.array([1, 4, 5]))
    np.testing.assert_array_equal(part.inputs, whole.inputs[[1, 4, 5]])
    np.testing.assert_array_equal(part.targets, whole.targets[[1, 4, 5]])
    if varlen:
      np.testing.assert_array_equal(part.lengths, whole.lengths[[1, 4, 5]])
    else:
      assert whole.lengths is part.lengths is None


@pytest.mark.default_cases('0-1')
@pytest.mark.parametrize('varlen, apart', [(0, 0), (1, 0), (0, 1), (1, 1)])
@quick
@hypothesis.given(corpora(), st.integers(1, 12))
def test_context_is_what_comes_before_in_the_row(varlen, apart, corpus, E):
  n, B, T = corpus
  n += B  # so that rows apart have a batch
  options = dict(varlen=bool(varlen), apart=bool(apart))
  plain = streams.Streams(text(n), B, T, **options)
  s = streams.Streams(text(n), B, T, context=E, **options)
  rows = [range(b * (n // B), (b + 1) * (n // B)) for b in range(B)]
  if not apart:
    L = (n - 1) // B
    rows = [range(b * L, b * L + L + 1) for b in range(B)]
  for epoch in epochs(s, 2):
    at = 0
    for batch in epoch:
      k, c = real(batch, 0), min(E, at)
      assert batch.context.tolist() == [c] * B
      assert batch.lengths.tolist() == [c + k] * B
      assert batch.inputs.shape == (B, E + batch.targets.shape[1])
      for row, tokens in enumerate(rows):
        expected = tokens[at - c : at + k]
        assert batch.inputs[row, : c + k].tolist() == [*expected]
        assert batch.targets[row, :k].tolist() == [*tokens[at + 1 :][:k]]
      at += k
    assert len(rows[0]) - 1 - at <= apart  # pairs that are left
  for step in range(20):
    a, b = s.batch(step), plain.batch(step)
    np.testing.assert_array_equal(a.targets, b.targets)
    assert s.locate(step) == plain.locate(step)


def drawn(s, count=1):
  """The lengths of whole epochs, without the cut-off last of each."""
  return [[real(batch, 0) for batch in e[:-1]] for e in epochs(s, count)]


def test_varlen_follows_the_distribution_of_the_paper():
  T = 200  # T/2 and T are far apart in deviations
  s = streams.Streams(text(T * 6000), 1, T, varlen=True)
  lengths = np.array(drawn(s)[0])
  halved = lengths < 150
  assert halved.mean() == pytest.approx(0.05, abs=0.012)
  # int() of a normal variable is half a token lower on average.
  assert lengths[~halved].mean() == pytest.approx(T - 0.5, abs=0.3)
  assert lengths[halved].mean() == pytest.approx(T / 2 - 0.5, abs=1.5)
  assert lengths[~halved].std() == pytest.approx(5, abs=0.3)
  assert lengths.max() == T + 15  # 3 deviations: one in 740 is cut


@pytest.mark.parametrize('n, B, T', [(929_589, 10, 70), (803, 4, 12)])
def test_an_epoch_of_penn_treebank(n, B, T):
  """The loop of its authors, for the lengths drawn; and what is padded."""
  options = dict(varlen=True, limit=0, rates=True, apart=True, context=T)
  s = streams.Streams(text(n), B, T, **options)
  R, step, computed, padded = n // B, 0, 0, 0
  for epoch in range(2):
    at = 0
    while at < R - 1 - 1:
      assert s.locate(step) == (epoch, step - s.first_step(epoch))
      batch = s.batch(step, [B - 1])
      drawn = round(float(batch.rate_scale[0]) * T)
      assert batch.rate_scale == np.float32(drawn / T) and drawn >= 5
      k = min(drawn, R - 1 - at)
      start = (B - 1) * R + at
      assert batch.targets[0, :k].tolist() == [*range(start + 1, start + k + 1)]
      assert real(batch, 0) == k
      computed += batch.inputs.size
      padded += batch.inputs.size - int(batch.lengths[0])
      at, step = at + drawn, step + 1
    assert s.first_step(epoch + 1) == step
  if T == 70:
    assert step / 2 == pytest.approx(1373, abs=6)
    assert padded / computed < 0.05  # 0.08 is allowed


def test_varlen_without_a_limit():
  """Above T + 15 once in 740 draws, above T + 30 never in so many."""
  s = streams.Streams(text(200 * 6000), 1, 200, varlen=True, limit=0)
  assert s.widths == [110, 205, 215, 230]
  assert 215 < max(drawn(s)[0]) <= 230
  near = streams.Streams(text(9000), 1, 20, varlen=True, limit=2)
  assert near.widths == [20, 22] and max(drawn(near)[0]) == 22


def test_a_batch_is_refused_before_its_rows_take_memory():
  """The starts of so many rows would take 8 TB."""
  said = refused(streams.Streams, text(99), 10**12, 6)
  assert 'smaller train.batch_size' in said


def test_rows_apart_need_a_token_more():
  streams.Streams(text(4 * 6), 4, 5, apart=True).batch(0)
  said = refused(streams.Streams, text(23), 4, 5, apart=True)
  assert 'has 23 tokens, one batch needs 24' in said


def test_varlen_segments_have_at_least_five_tokens():
  lengths = drawn(streams.Streams(text(9000), 1, 6, varlen=True))[0]
  assert min(lengths) == 5
  assert max(lengths) > 6


def test_varlen_lengths_depend_on_seed_and_epoch():
  def make(**options):
    return streams.Streams(text(900), 2, 9, varlen=True, **options)

  first, second = drawn(make(), 2)
  # Runs of earlier versions that are resumed have drawn these.
  assert second != first and first[:8] == [5, 17, 5, 12, 6, 5, 10, 14]
  assert drawn(make(seed=0))[0] == first
  assert drawn(make(seed=1))[0] != first


@pytest.mark.parametrize('varlen', [False, True])
@pytest.mark.parametrize('dtype', DTYPES)
def test_dtypes_of_the_corpus(dtype, varlen):
  n = 200
  narrow = streams.Streams(text(n, dtype), 3, 7, varlen=varlen)
  wide = streams.Streams(text(n), 3, 7, varlen=varlen)
  for step in range(20):
    a, b = narrow.batch(step), wide.batch(step)
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.targets, b.targets)


@pytest.mark.parametrize('varlen', [False, True])
def test_corpus_of_one_batch(varlen):
  streams.Streams(text(4 * 6 + 1), 4, 6, varlen=varlen).batch(0)
  message = refused(streams.Streams, text(4 * 6), 4, 6, varlen=varlen)
  for part in ('24 tokens', '25', 'train.batch_size (4)', 'segment_len (6)'):
    assert part in message


# segments


@st.composite
def splits(draw):
  """(n, B, T, G), also more rows than pairs."""
  number = st.integers(1, 6)
  return draw(st.integers(2, 120)), draw(number), draw(number), draw(number)


@pytest.mark.parametrize('dtype', DTYPES)
@quick
@hypothesis.given(splits())
def test_segments_hold_every_pair_once(dtype, split):
  n, B, T, G = split
  tokens = text(n, dtype)
  rows = [[] for _ in range(B)]
  calls = 0
  for inputs, targets, positions, *_ in streams.segments(tokens, B, T, G):
    calls += 1
    for array in (inputs, targets, positions):
      assert array.shape == (G, B, T)
    assert inputs.dtype == targets.dtype == np.int32
    scored = targets >= 0
    np.testing.assert_array_equal(targets[scored], positions[scored])
    np.testing.assert_array_equal(inputs[scored], positions[scored] - 1)
    np.testing.assert_array_equal(targets[~scored], -1)
    # Padding is behind everything that its row scores.
    whole = scored.swapaxes(0, 1).reshape(B, G * T)
    assert not (whole[:, 1:] & ~whole[:, :-1]).any()
    for g in range(G):
      for b in range(B):
        rows[b].extend(positions[g, b][scored[g, b]].tolist())
  L = math.ceil((n - 1) / B)
  assert calls == math.ceil(L / (G * T))
  assert list(itertools.chain(*rows)) == list(range(1, n))
  cut = [len(row) for row in rows if len(row) != L]
  assert cut == sorted(cut, reverse=True) and sum(x > 0 for x in cut) <= 1


@quick
@hypothesis.given(splits(), st.integers(1, 9))
def test_segments_after_their_context(split, E):
  n, B, T, G = split
  plain = streams.segments(text(n), B, T, G)
  found = streams.segments(text(n), B, T, G, E)
  row = math.ceil((n - 1) / B)
  for whole, (inputs, targets, positions, context, _) in zip(plain, found):
    np.testing.assert_array_equal(targets, whole[1])
    np.testing.assert_array_equal(positions, whole[2])
    assert inputs.shape == (G, B, E + T) and context.dtype == np.int32
    for g in range(G):
      for b in range(B):
        if k := int((targets[g, b] >= 0).sum()):
          start = int(targets[g, b, 0]) - 1  # in the text
          c = min(E, start - b * row)
          assert context[g, b] == c
          here = inputs[g, b, : c + k].tolist()
          assert here == [*range(start - c, start + k)]


@quick
@hypothesis.given(splits())
def test_segments_after_one_more_token(split):
  n, B, T, G = split
  whole = np.append(n, text(n))
  found = list(streams.segments(streams.Preceded(n, text(n)), B, T, G))
  expected = list(streams.segments(whole, B, T, G))
  assert len(found) == len(expected)
  for a, b in zip(found, expected):
    for got, wanted in zip(a, b):
      np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize('dtype', DTYPES)
def test_segments_by_hand(dtype):
  tokens = np.array([10, 11, 12, 13, 14, 15], dtype)  # 5 pairs
  (call,) = streams.segments(tokens, 2, 2, 2)
  inputs, targets, positions, context, begins = call
  assert not context.any()
  assert begins.tolist() == [[True, True], [False, False]]
  scored = targets >= 0
  assert inputs.tolist() == [[[10, 11], [13, 14]], [[12, 0], [0, 0]]]
  assert targets.tolist() == [[[11, 12], [14, 15]], [[13, -1], [-1, -1]]]
  found = np.where(scored, positions, 0).tolist()
  assert found == [[[1, 2], [4, 5]], [[3, 0], [0, 0]]]
