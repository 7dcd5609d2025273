"""Tokens of documents, cut into segments that each lie in one document.

Documents lie in one array, each after the <eos> that ends the previous one,
the first also after an <eos> (like sentences with `boundaries` 1, see
`data.sentences`):

  <eos> a b <eos> c d e <eos>

A document of n tokens is scored from the <eos> before it: n + 1 tokens, with
its own <eos>. Its segments have T tokens, the last one whatever is left. A
memory is carried from one to the next, and emptied before the first.

Shapes: n tokens, T segment length.
"""

import numpy as np


class Documents:
  """Tokens [n] and where documents start: integers [documents + 1].

  The last entry is where a further document would start.
  """

  def __init__(self, tokens: np.ndarray, starts: np.ndarray):
    self.base, self.starts = tokens, starts

  def __len__(self) -> int:
    return len(self.base)

  def __getitem__(self, at: slice | np.ndarray) -> np.ndarray:
    """Indexes the tokens like an array."""
    return self.base[at]

  def first(self, count: int) -> 'Documents':
    """The first `count` tokens, 0 for all; the last document may be cut."""
    if not 0 < count < len(self):
      return self
    starts = np.asarray(self.starts)
    starts = np.append(starts[starts < count - 1], count - 1)
    return Documents(self.base[:count], starts)


class Segments:
  """The segments of documents, in order."""

  def __init__(self, starts: np.ndarray, segment_len: int):
    """Starts are as in `Documents`."""
    self._T, self._starts = segment_len, np.asarray(starts)
    counts = -(-np.diff(self._starts) // segment_len)
    self.first = np.append(0, np.cumsum(counts))  # segment of each document

  def __len__(self) -> int:
    return int(self.first[-1])

  def cut(self, rows: int) -> np.ndarray:
    """Where each of B rows begins, and the last one ends, int64 [B + 1].

    Rows hold whole documents, with the numbers of segments as equal as
    possible.
    """
    wanted = np.arange(rows + 1) * len(self) // rows
    return self.first[np.searchsorted(self.first, wanted)]

  def locate(
    self, index: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The start and length of segments, and the tokens before in the document.

    The indices are integers of any shape. A segment reads from its start;
    targets are the tokens that follow the ones it reads.
    """
    document = np.searchsorted(self.first, index, side='right') - 1
    before = (index - self.first[document]) * self._T
    start = self._starts[document] + before
    left = self._starts[document + 1] - start
    return start, np.minimum(left, self._T), before
