"""Documents, cut into segments that do not cross document boundaries.

Documents are stored in one array, separated by <eos>, with an <eos> before the
first and after the last (like sentences with `boundaries` 1, see
`data.sentences`):

  <eos> a b <eos> c d e <eos>

A document of n tokens starts at the <eos> before it and has n + 1 targets,
including its own <eos>. All its segments have T tokens, except the last.
The memory is carried from segment to segment, and reset before each document.

Shapes: n tokens, T segment length.
"""

from typing import Any

import numpy as np


class Documents:
  """Tokens [n] and the starts of documents, integers [documents + 1].

  The final entry of `starts` is the end of the last document.
  """

  def __init__(self, tokens: np.ndarray, starts: np.ndarray):
    self.base, self.starts = tokens, starts

  def __len__(self) -> int:
    return len(self.base)

  def __getitem__(self, at: slice | np.ndarray) -> np.ndarray:
    """Indexes the tokens like an array."""
    return self.base[at]

  def truncated(self, count: int) -> 'Documents':
    """The first `count` tokens (0 for all); may truncate the last document."""
    if not 0 < count < len(self):
      return self
    starts = np.asarray(self.starts)
    starts = np.append(starts[starts < count - 1], count - 1)
    return Documents(self.base[:count], starts)


class Segments:
  """The segments of documents, in order."""

  def __init__(self, starts: np.ndarray, segment_len: int):
    """`starts` is as in `Documents`."""
    self._T = segment_len
    self._starts = np.asarray(starts)
    counts = -(-np.diff(self._starts) // segment_len)
    # Index of each document's first segment, then the number of segments.
    self.first_segment = np.append(0, np.cumsum(counts))

  def __len__(self) -> int:
    return int(self.first_segment[-1])

  def cut(self, rows: int) -> np.ndarray:
    """Index of the first segment of each row, then the number of segments.

    int64 [rows + 1]. Rows consist of whole documents, with roughly equal
    numbers of segments.
    """
    targets = np.arange(rows + 1) * len(self) // rows
    return self.first_segment[np.searchsorted(self.first_segment, targets)]

  def locate(
    self, index: np.ndarray, end: Any = np.inf
  ) -> tuple[np.ndarray, ...]:
    """Start, length, and number of preceding tokens in the document, by index.

    `index` is an integer array of any shape; indices that are not below `end`
    get length 0. The inputs of a segment begin at its start; the targets are
    shifted by one token.
    """
    real = index < end
    index = np.where(real, index, 0)
    document = np.searchsorted(self.first_segment, index, side='right') - 1
    before = (index - self.first_segment[document]) * self._T
    start = self._starts[document] + before
    remaining = self._starts[document + 1] - start
    return start, np.where(real, np.minimum(remaining, self._T), 0), before
