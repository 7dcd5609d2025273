"""Documents as segments, for training and for scoring, beside plain loops."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from txl_jax.data import streams
from txl_jax.data.documents import Documents, Segments
from txl_jax.program.errors import UserError

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
@hypothesis.given(sizes, st.integers(1, 5), st.integers(1, 4))
def test_batches(lengths, T, B):
  documents, each = lay_out(lengths)
  expected = [*segments_of(each, T)]
  N = len(expected)
  n = -(-N // B)
  read = streams.Streams(documents, B, T)
  for step in range(2 * n):  # two epochs
    batch = read.batch(step)
    assert read.locate(step) == divmod(step, n)
    for row in range(B):
      at = row * N // B + step % n
      inputs, targets, new = [], [], None
      if at < (row + 1) * N // B:
        inputs, targets, new = expected[at]
      k = len(inputs)
      assert batch.inputs[row, :k].tolist() == inputs
      assert batch.targets[row].tolist() == targets + [-1] * (T - k)
      assert batch.lengths[row] == k
      if k:
        assert batch.reset[row] == (new or step % n == 0)
    part = read.batch(step, [B - 1])
    for name in 'inputs', 'targets', 'lengths', 'reset':
      found, whole = getattr(part, name), getattr(batch, name)
      np.testing.assert_array_equal(found, whole[-1:])


@quick
@hypothesis.given(
  sizes, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)
)
def test_what_is_scored(lengths, T, B, G):
  documents, each = lay_out(lengths)
  expected = [*segments_of(each, T)]
  rows, places = [[] for _ in range(B)], []
  for inputs, targets, at, new in streams.document_segments(documents, B, T, G):
    assert inputs.shape == targets.shape == at.shape == (G, B, T)
    real = targets >= 0
    places += at[real].tolist()
    np.testing.assert_array_equal(documents[at[real]], targets[real])
    for g in range(G):
      for b in range(B):
        if k := int(real[g, b].sum()):
          segment = inputs[g, b, :k], targets[g, b, :k]
          rows[b].append((*(x.tolist() for x in segment), bool(new[g, b])))
  assert [*itertools.chain(*rows)] == expected
  assert all(row[0][2] for row in rows if row)  # no document is cut
  assert sorted(places) == [*range(1, len(documents))]


@quick
@hypothesis.given(sizes, st.integers(0, 30))
def test_the_first_tokens(lengths, count):
  documents, _ = lay_out(lengths)
  hypothesis.assume(count != 1)
  some = documents.first(count)
  n = min(count or len(documents), len(documents))
  assert some[:].tolist() == documents[:n].tolist()
  starts = documents.starts.tolist()
  assert some.starts.tolist() == [x for x in starts if x < n - 1] + [n - 1]
  assert sum(Segments(some.starts, 1).locate(np.arange(n - 1))[1]) == n - 1


def test_what_is_refused():
  documents, _ = lay_out([3, 3])
  with pytest.raises(UserError, match='allowed: False with data'):
    streams.Streams(documents, 1, 4, varlen=True)
