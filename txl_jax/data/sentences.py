"""A corpus of independent sentences in one array, shuffled in training.

The word <S> precedes each sentence. Between two sentences the array has one or
two <S> (data.boundaries):

  1   <S> a b <S> c d e <S>            n + 1 targets for a sentence of n words:
                                       the words and the <S> that ends it
  2   <S> a b <S> <S> c d e <S>        n + 2 targets: also the <S> that begins
                                       the sentence, which follows an <S>

The PyTorch original uses 1, the TensorFlow original 2; neither scores the first
token of a split. Evaluation reads the array in order. In each epoch, training
shuffles the units '<S> a b' with 1 or '<S> a b <S>' with 2; with 1, a final <S>
is added, so that every epoch contains the same tokens.
"""

from collections.abc import Iterable, Iterator

import numpy as np


def lay_out(
  parts: Iterable[np.ndarray], eos: int, boundaries: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields pieces of the array, int32, with starts of sentences, int64.

  Parts are integers [n], in which eos, the token id of <S>, ends each sentence;
  with boundaries 2, parts consist of whole sentences.
  """
  size = boundaries % 2  # length of the array so far
  yield np.full([size], eos, np.int32), np.zeros([1], np.int64)
  for ids in parts:
    ends = np.flatnonzero(ids == eos)
    if boundaries == 2:
      ids = np.insert(ids, np.append(0, ends[:-1] + 1), eos)
      starts = ends + np.arange(len(ends)) + 2
    else:
      starts = ends
    yield ids, size + starts
    size += len(ids)


class Shuffled:
  """Tokens [n] with their sentences shuffled; can be sliced like an array.

  `starts` is integers [sentences + 1], the final entry the end of the last one.
  Uses 12 bytes per sentence: 0.4 GB for the 30 million of lm1b.
  """

  def __init__(self, tokens: np.ndarray, starts: np.ndarray, seed: list[int]):
    # Elements of a memmap are slow to index.
    self._tokens, self._starts = np.asarray(tokens), np.asarray(starts)
    count = len(starts) - 1
    # With the 1, the order is independent of segment lengths drawn from `seed`.
    rng = np.random.default_rng([*seed, 1])
    self._order = rng.permutation(np.arange(count, dtype=np.int32))
    lengths = np.diff(starts).astype(np.int32)
    self._ends = np.cumsum(lengths[self._order], dtype=np.int64)

  def __len__(self):
    return len(self._tokens)

  def __getitem__(self, part: slice) -> np.ndarray:
    """The tokens of a slice that has start and stop, in the array's dtype."""
    a, b = part.start, part.stop
    first, last = np.searchsorted(self._ends, (a, b), side='right')
    # Adding `shift` to a shuffled index gives the index in the array.
    ends = self._ends[first : last + 1]
    shift = self._starts[self._order[first : last + 1] + 1] - ends
    edges = np.minimum(np.append(a, ends), b)
    at = np.arange(a, edges[-1]) + np.repeat(shift, np.diff(edges))
    tokens = self._tokens[at]
    if len(tokens) < b - a:
      # The <S> that ends the last sentence.
      tokens = np.append(tokens, self._tokens[-1])
    return tokens
