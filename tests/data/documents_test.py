"""Documents as segments, for training and for scoring, beside plain loops."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np

from tests.refusing import refused
from txl_jax.data import streams
from txl_jax.data.documents import Documents

EOS = 0
quick = hypothesis.settings(
  max_examples=80, deadline=None, derandomize=True, database=None
)
sizes = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def lay_out(lengths):
  """Documents of so many tokens, each token another number; and each alone."""
  each, n = [], 1
  for length in lengths:
    each.append([*range(n, n + length)])
    n += length
  tokens, starts = [EOS], [0]
  for document in each:
    tokens += [*document, EOS]
    starts.append(len(tokens) - 1)
  return Documents(np.array(tokens), np.array(starts)), each


def segments_of(each, T):
  """(inputs, targets, whether memory is new) of all segments."""
  for document in each:
    pairs = [*zip([EOS, *document], [*document, EOS])]
    for at in range(0, len(pairs), T):
      yield *map(list, zip(*pairs[at : at + T])), at == 0


@quick
@hypothesis.given(
  sizes, st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, 1, 4, 9])
)
def test_batches(lengths, T, B, E):
  documents, each = lay_out(lengths)
  expected = [*segments_of(each, T)]
  N = len(expected)
  n = -(-N // B)
  read = streams.Streams(documents, B, T, context=E)
  for step in range(2 * n):  # two epochs
    batch = read.batch(step)
    assert (batch.context is None) == (E == 0)
    assert read.locate(step) == divmod(step, n)
    for row in range(B):
      at = row * N // B + step % n
      inputs, targets, new, before = [], [], None, []
      if at < (row + 1) * N // B:
        inputs, targets, new = expected[at]
        # What the row has read of the document.
        for one, _, begins in expected[row * N // B : at]:
          before = [*one] if begins else before + one
        before = [] if new or not E else before[-E:]
      c, k = len(before), len(before) + len(inputs)
      assert E == 0 or batch.context[row] == c
      assert batch.inputs[row, :k].tolist() == before + inputs
      assert batch.inputs.shape == (B, E + T)
      assert batch.lengths[row] == k
      k = len(inputs)
      assert batch.targets[row].tolist() == targets + [-1] * (T - k)
      if k:
        assert batch.reset[row] == (new or step % n == 0)
    part = read.batch(step, [B - 1])
    for name in 'inputs', 'targets', 'lengths', 'reset':
      found, whole = getattr(part, name), getattr(batch, name)
      np.testing.assert_array_equal(found, whole[-1:])


@quick
@hypothesis.given(
  *(sizes, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
  st.sampled_from([0, 1, 4, 9]),
)
def test_what_is_scored(lengths, T, B, G, E):
  documents, each = lay_out(lengths)
  expected = [*segments_of(each, T)]
  rows, places = [[] for _ in range(B)], []
  read_of = [[] for _ in range(B)]  # of the document, so far
  parts = streams.segments(documents, B, T, G, E)
  for inputs, targets, at, before, new in parts:
    assert targets.shape == at.shape == (G, B, T)
    assert inputs.shape == (G, B, E + T)
    real = targets >= 0
    places += at[real].tolist()
    np.testing.assert_array_equal(documents[at[real]], targets[real])
    for g in range(G):
      for b in range(B):
        if k := int(real[g, b].sum()):
          c, read = before[g, b], [] if new[g, b] else read_of[b]
          assert inputs[g, b, :c].tolist() == (read[-E:] if E else [])
          segment = inputs[g, b, c : c + k], targets[g, b, :k]
          rows[b].append((*(x.tolist() for x in segment), bool(new[g, b])))
          read_of[b] = read + rows[b][-1][0]
  assert [*itertools.chain(*rows)] == expected
  assert all(row[0][2] for row in rows if row)  # no document is cut
  assert sorted(places) == [*range(1, len(documents))]


@quick
@hypothesis.given(sizes, st.integers(0, 30))
@hypothesis.example([2], 1)
def test_the_first_tokens(lengths, count):
  documents, _ = lay_out(lengths)
  some = documents.truncated(count)
  n = min(count or len(documents), len(documents))
  assert some[:].tolist() == documents[:n].tolist()
  starts = documents.starts.tolist()
  assert some.starts.tolist() == [x for x in starts if x < n - 1] + [n - 1]
  segments = streams.Segments(some.starts, 1)
  assert sum(segments.locate(np.arange(n - 1))[1]) == n - 1


def test_rows_have_about_as_many_segments():
  cut = streams.Segments([0, 1, 3, 6, 10, 15], 1).cut
  assert cut(3).tolist() == [0, 6, 10, 15]
  assert cut(4).tolist() == [0, 3, 10, 15, 15]


def test_what_is_refused():
  documents, _ = lay_out([3, 3])
  said = refused(streams.Streams, documents, 1, 4, varlen=True)
  assert 'allowed: False with data' in said
  said = refused(streams.Streams, documents, 1, 4, apart=True)
  assert "rows is 'apart'; allowed: joined" in said
