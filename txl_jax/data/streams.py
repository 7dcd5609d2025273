"""Contiguous streams of tokens, as a function of the step.

Shapes: B rows, T segment length, n tokens, L pairs in a row.

The corpus is cut into B equal consecutive pieces; row b reads piece b from
left to right, T tokens at a time, so a memory carried from one batch to the
next holds what came before in the text. An epoch is one pass over the pieces.
A stream of sentences (see `data.sentences`) gets a new order in each epoch.
With documents (see `data.documents`) the pieces have equally many segments,
some of them shorter than T; if that is impossible, some rows of the last batch
of an epoch are empty.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from txl_jax.data.documents import Documents, Segments
from txl_jax.data.sentences import Shuffled
from txl_jax.program.errors import UserError
from txl_jax.program.settings import refuse

# Variable lengths (`train.varlen`), as in the paper's code: the mean is halved
# once in twenty steps; the length is normally distributed around it.
_HALVED = 0.05
_DEVIATION = 5
_SHORTEST = 5
_LONGEST = 15  # above T


@dataclasses.dataclass(frozen=True)
class Batch:
  """One segment of each of b streams."""

  inputs: np.ndarray  # int32 [b, T]
  targets: np.ndarray  # int32 [b, T], the tokens that follow; -1 for padding
  # Real tokens of each row, int32 [b]; None if padding is only possible at the
  # end of an epoch, after which memory is emptied.
  lengths: np.ndarray | None
  reset: np.ndarray  # bool [b], the rows whose memory is to be emptied first


@dataclasses.dataclass(eq=False)
class Streams:
  """The batches that training reads; UserError if there is not even one."""

  tokens: Any  # integers [n], usually mapped from a file; or Documents
  batch_size: int  # B
  segment_len: int  # T
  _: dataclasses.KW_ONLY
  varlen: bool = False  # draw the length of each segment around T
  seed: int = 0  # for these lengths, and for the order of the sentences
  # Integers [sentences + 1], where sentences start, to read them in a new
  # order in each epoch; None reads the text as it is.
  sentences: np.ndarray | None = None

  def __post_init__(self):
    n, B, T = len(self.tokens), self.batch_size, self.segment_len
    self._segments = None
    if isinstance(self.tokens, Documents):
      self._segments = Segments(self.tokens.starts, T)
      self.tokens = self.tokens.base
    if self._segments is not None:
      if self.varlen:
        refuse('train.varlen', True, 'False with data.documents')
    elif n < B * T + 1:
      raise UserError(
        f'the training split has {n} tokens, one batch needs {B * T + 1}; '
        f'allowed: smaller train.batch_size ({B}) or train.segment_len ({T})'
      )
    self.tokens = np.asarray(self.tokens)  # slices of a memmap are slow
    self._row_len = (n - 1) // B  # L
    self.width = T + (_LONGEST if self.varlen else 0)  # columns of every batch
    self.padded = self.varlen or self._segments is not None  # may any batch be
    self._first_step, self._starts, self._shuffled = [0], {}, {}

  def locate(self, step: int) -> tuple[int, int]:
    """The epoch of a step, and the index of its segment in the epoch."""
    if self._segments is not None:
      return divmod(step, -(-len(self._segments) // self.batch_size))
    if not self.varlen:
      return divmod(step, math.ceil(self._row_len / self.segment_len))
    first = self._first_step
    while first[-1] <= step:
      first.append(first[-1] + len(self._varying(len(first) - 1)) - 1)
    epoch = int(np.searchsorted(first, step, side='right')) - 1
    return epoch, step - first[epoch]

  def _varying(self, epoch):
    """int64 [segments + 1]: starts of segments of varying length, then L."""
    if epoch not in self._starts:
      rng = np.random.default_rng([self.seed, epoch])
      count = self._row_len // _SHORTEST + 1  # enough, however short
      mean = self.segment_len * np.where(rng.random(count) < _HALVED, 0.5, 1)
      noise = _DEVIATION * rng.standard_normal(count)
      lengths = np.clip((mean + noise).astype(np.int64), _SHORTEST, self.width)
      starts = np.append(0, np.cumsum(lengths))
      starts = np.append(starts[starts < self._row_len], self._row_len)
      self._starts = {epoch: starts}  # replaces that of the previous epoch
    return self._starts[epoch]

  def _text(self, epoch):
    """What is cut into rows: an array, or something sliced like one."""
    if self.sentences is None:
      return self.tokens
    if epoch not in self._shuffled:
      self._shuffled = {}  # before another one is made
      seed = [self.seed, epoch]
      self._shuffled[epoch] = Shuffled(self.tokens, self.sentences, seed)
    return self._shuffled[epoch]

  def batch(self, step: int, rows: Any = None) -> Batch:
    """The Batch of a step, whatever was read before; of all rows or of [b]."""
    epoch, index = self.locate(step)
    rows = range(self.batch_size) if rows is None else rows
    if self._segments is not None:
      return self._of_documents(self._segments, index, np.asarray(rows))
    text = self._text(epoch)
    if self.varlen:
      start, end = self._varying(epoch)[index : index + 2]
    else:
      start = index * self.segment_len
      end = min(start + self.segment_len, self._row_len)
    n = end - start
    inputs = np.empty((len(rows), self.width), np.int32)
    targets = np.empty_like(inputs)
    inputs[:, n:], targets[:, n:] = 0, -1
    for i, row in enumerate(rows):
      at = row * self._row_len + start
      piece = text[at : at + n + 1]
      inputs[i, :n], targets[i, :n] = piece[:-1], piece[1:]
    lengths = np.full([len(rows)], n, np.int32) if self.varlen else None
    return Batch(inputs, targets, lengths, np.full(len(rows), index == 0))

  def _of_documents(self, segments, index, rows):
    """The Batch of these rows, integers [b], for a segment of an epoch."""
    N, B = len(segments), self.batch_size
    at = rows * N // B + index
    real = at < (rows + 1) * N // B
    start, n, new = segments.locate(np.where(real, at, 0))
    n = np.where(real, n, 0)
    inputs, targets, _ = _padded(self.tokens, start, n, self.segment_len)
    return Batch(inputs, targets, n.astype(np.int32), new | (index == 0))


def _padded(tokens, start, n, T):
  """Segments of n tokens from start, integers [...], padded to T.

  Returns inputs and targets int32 [..., T], targets -1 where padded, and the
  place of each target.
  """
  places = np.arange(T)
  real = places < n[..., None]
  at = np.where(real, start[..., None] + places, 0)
  inputs = np.where(real, tokens[at].astype(np.int32), 0)
  return inputs, np.where(real, tokens[at + 1].astype(np.int32), -1), at + 1


class Preceded:
  """Tokens [n] preceded by one more, so that all of them are scored."""

  def __init__(self, first: int, tokens: np.ndarray):
    self._first, self.base = first, tokens  # base: the array this is a view of

  def __len__(self) -> int:
    return len(self.base) + 1

  def __getitem__(self, at: np.ndarray) -> np.ndarray:
    """The tokens at an integer array of places, int32 in its shape."""
    found = self.base[np.maximum(at - 1, 0)].astype(np.int32)
    return np.where(at == 0, self._first, found)


Scored: TypeAlias = np.ndarray | Preceded | Documents  # tokens [n]


def segments(
  tokens: np.ndarray | Preceded, batch_size: int, segment_len: int, group: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """A split for scoring: every pair of neighbours once, in order.

  The n - 1 pairs (token, next token) of integers [n], n >= 2, are cut into B
  consecutive pieces of equal length, the last one possibly shorter. Yields,
  for each group of G segments, inputs int32 [G, B, T]; targets int32 [G, B, T],
  -1 for padding, which comes after everything scored in its row; and positions
  int64 [G, B, T], the index of each target in tokens.
  """
  B, T, G = batch_size, segment_len, group
  pairs = len(tokens) - 1
  L = math.ceil(pairs / B)
  rows = np.arange(B) * L
  ends = np.minimum(rows + L, pairs)
  for index in range(0, L, G * T):
    start = index + np.arange(G)[:, None] * T + rows  # [G, B]
    n = np.clip(np.minimum(ends - start, T), 0, None)
    yield _padded(tokens, start, n, T)


def document_segments(
  tokens: Documents, batch_size: int, segment_len: int, group: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
  """The same for documents, cut into B pieces between documents.

  Padding comes after everything scored in a document, and a last array is bool
  [G, B]: which memories are to be emptied first.
  """
  B, T, G = batch_size, segment_len, group
  each = Segments(tokens.starts, T)
  rows = each.cut(B)
  for index in range(0, int(np.max(np.diff(rows))), G):
    at = index + np.arange(G)[:, None] + rows[:-1]  # [G, B]
    real = at < rows[1:]
    start, n, new = each.locate(np.where(real, at, 0))
    n = np.where(real, n, 0)
    yield *_padded(tokens.base, start, n, T), new & real
