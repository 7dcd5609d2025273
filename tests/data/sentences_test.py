"""Sentences in one array and in random order, beside lists of sentences."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_jax.data import sentences, streams

EOS = 0
quick = settings(max_examples=60, deadline=None, derandomize=True)
corpora = st.lists(
  st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=12
)


def laid_out(corpus, boundaries, per_part=3):
  """The array and the starts, from parts of a few sentences."""
  lines = [[*sentence, EOS] for sentence in corpus]
  parts = [
    np.concatenate(lines[i : i + per_part]).astype(np.int32)
    for i in range(0, len(lines), per_part)
  ]
  found = list(sentences.lay_out(parts, EOS, boundaries))
  return tuple(np.concatenate(part) for part in zip(*found))


def units_of(corpus, boundaries):
  """The tokens that go with each sentence."""
  return [
    [EOS, *sentence, EOS][: len(sentence) + boundaries] for sentence in corpus
  ]


@pytest.mark.parametrize('boundaries', [1, 2])
@quick
@given(corpora, st.integers(1, 4))
def test_boundaries(boundaries, corpus, per_part):
  tokens, starts = laid_out(corpus, boundaries, per_part)
  units = units_of(corpus, boundaries)
  last = [EOS] if boundaries == 1 else []
  assert tokens.tolist() == [*itertools.chain(*units), *last]
  pairs = itertools.pairwise(starts)
  assert [tokens[a:b].tolist() for a, b in pairs] == units


@pytest.mark.parametrize('boundaries', [1, 2])
@quick
@given(corpora, st.integers(0, 3))
def test_shuffled_is_a_permutation_of_the_sentences(boundaries, corpus, seed):
  tokens, starts = laid_out(corpus, boundaries)
  text = sentences.Shuffled(tokens, starts, [seed, 0])
  assert len(text) == len(tokens)
  found = text[0 : len(text)].tolist()
  ends = [EOS] if boundaries == 1 else []
  units = units_of(corpus, boundaries)
  order = np.random.default_rng([seed, 0, 1]).permutation(len(corpus))
  expected = [t for i in order for t in units[i]] + ends
  assert found == expected
  for a in range(len(found) + 1):
    for b in range(a, len(found) + 1, 3):
      assert text[a:b].tolist() == found[a:b]


def test_orders_depend_on_seed_and_epoch():
  tokens, starts = laid_out([[1 + i % 9] * (1 + i) for i in range(30)], 1)

  def whole(*seed):
    return sentences.Shuffled(tokens, starts, seed)[0:300].tolist()

  assert whole(0, 0) == whole(0, 0)
  assert len({str(whole(*s)) for s in ((0, 0), (0, 1), (1, 0))}) == 3


def many():
  rng = np.random.default_rng(0)
  return [rng.integers(1, 10, rng.integers(1, 9)).tolist() for _ in range(90)]


@pytest.mark.parametrize('varlen', [False, True])
@pytest.mark.parametrize('boundaries', [1, 2])
def test_streams_read_every_sentence_once_an_epoch(boundaries, varlen):
  tokens, starts = laid_out(many(), boundaries)

  def make():
    return streams.Streams(
      tokens.astype(np.uint16), 3, 7, varlen=varlen, seed=5, sentences=starts
    )

  s, step, orders = make(), 0, []
  L = (len(tokens) - 1) // 3
  for epoch in range(3):
    rows = [[] for _ in range(3)]
    while s.locate(step)[0] == epoch:
      batch = s.batch(step)
      assert (batch.reset == (not rows[0])).all()
      for b in range(3):
        n = int((batch.targets[b] >= 0).sum())
        if not rows[b]:
          rows[b] = [int(batch.inputs[b, 0])]
        assert batch.inputs[b, 0] == rows[b][-1]
        np.testing.assert_array_equal(
          batch.inputs[b, 1:n], batch.targets[b, : n - 1]
        )
        rows[b] += batch.targets[b, :n].tolist()
      step += 1
    text = sentences.Shuffled(tokens, starts, [5, epoch])
    for b in range(3):
      assert rows[b] == text[b * L : b * L + L + 1].tolist()
    orders.append(rows)
  assert orders[0] != orders[1]
  for step in (40, 3, 17, 40):
    a, b = s.batch(step), make().batch(step)
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.targets, b.targets)


def test_the_same_from_mapped_files(tmp_path):
  arrays, mapped = laid_out(many(), 1), []
  for i, array in enumerate(arrays):
    array.tofile(tmp_path / f'{i}')
    mapped.append(np.memmap(tmp_path / f'{i}', array.dtype, 'r'))
  for sentences_ in (True, False):
    a, b = (
      streams.Streams(t, 3, 7, sentences=s if sentences_ else None)
      for t, s in (arrays, mapped)
    )
    for step in range(50):
      x, y = a.batch(step), b.batch(step)
      np.testing.assert_array_equal(x.inputs, y.inputs)
      np.testing.assert_array_equal(x.targets, y.targets)
      assert type(y.inputs) is np.ndarray
