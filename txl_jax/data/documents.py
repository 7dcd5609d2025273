"""A text of documents, whose segments do not cross document boundaries.

Documents are stored in one array, separated by <eos>, with an <eos> before the
first and after the last (like sentences with `boundaries` 1, see
`data.sentences`):

  <eos> a b <eos> c d e <eos>

A document of n tokens starts at the <eos> before it and has n + 1 targets,
including its own <eos>. All its segments (`streams.Segments`) have T tokens,
except the last. The memory is carried from segment to segment, and reset before
each document.

Shapes: n tokens, T segment length.
"""

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
