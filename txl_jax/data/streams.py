"""Contiguous streams of tokens, as a function of the step.

Shapes: B rows, T segment length, E tokens of context, n tokens, L pairs in a
row.

The corpus is cut into B equal consecutive pieces; row b reads piece b from
left to right, T tokens at a time, so a memory carried from one batch to the
next holds what came before in the text. A model without a memory may read up
to E tokens before each segment anew: its context, which ends where the piece or
the document begins. An epoch is one pass over the pieces.
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
# Columns of a batch: the first of these that holds the segment, 2, 1, 3 and 6
# deviations above the means. The last is exceeded once in a billion draws.
_WIDTHS = (0.5, 10), (1, 5), (1, 15), (1, 30)


@dataclasses.dataclass(frozen=True)
class Batch:
  """One segment of each of b streams."""

  # int32 [b, E + T]: the context, the segment, padding.
  inputs: np.ndarray
  # int32 [b, T], the tokens that follow those of the segment; -1 for padding.
  targets: np.ndarray
  # Real tokens of each row, int32 [b]; None if padding is only possible at the
  # end of an epoch, after which memory is emptied.
  lengths: np.ndarray | None
  reset: np.ndarray  # bool [b], the rows whose memory is to be emptied first
  context: np.ndarray | None = None  # int32 [b], tokens of it; None if E is 0
  # float32 [b], what the learning rate is multiplied by, equal in all rows;
  # None for 1.
  rate_scale: np.ndarray | None = None


@dataclasses.dataclass(eq=False)
class Streams:
  """The batches that training reads; UserError if there is not even one."""

  tokens: Any  # integers [n], usually mapped from a file; or Documents
  batch_size: int  # B
  segment_len: int  # T
  _: dataclasses.KW_ONLY
  varlen: bool = False  # draw the length of each segment around T
  limit: int = 15  # how far lengths may be above T; 0 is no limit
  rates: bool = False  # set `rate_scale` to the length drawn, over T
  # Whether a row ends with its last token, which is a target; else the next one
  # is that target. No segment then has the last pair of a row alone.
  apart: bool = False
  context: int = 0  # E
  seed: int = 0  # for these lengths, and for the order of the sentences
  # Integers [sentences + 1], where sentences start, to read them in a new
  # order in each epoch; None reads the text as it is.
  sentences: np.ndarray | None = None

  def __post_init__(self):
    n, B, T = len(self.tokens), self.batch_size, self.segment_len
    self._segments, self._per_epoch = None, None
    least = B * (T + 1) if self.apart else B * T + 1
    if isinstance(self.tokens, Documents):
      self._segments = Segments(self.tokens.starts, T)
      self._per_epoch = -(-len(self._segments) // B)
      self.tokens = self.tokens.base
    if self._segments is not None:
      if self.varlen:
        refuse('train.varlen', True, 'False with data.documents')
    elif n < least:
      raise UserError(
        f'the training split has {n} tokens, one batch needs {least}; '
        f'allowed: smaller train.batch_size ({B}) or train.segment_len ({T})'
      )
    self.tokens = np.asarray(self.tokens)  # slices of a memmap are slow
    self._row_len = n // B - 1 if self.apart else (n - 1) // B  # L
    self._last = max(self._row_len - self.apart, 1)  # segments start before it
    self.widths = [T]  # the columns that targets may have
    if self.varlen:
      most = T + (self.limit or _WIDTHS[-1][1])
      wide = {min(int(part * T) + more, most) for part, more in _WIDTHS}
      self.widths = sorted(wide | {most})
    elif self._segments is None:
      self._per_epoch = math.ceil(self._last / T)
    # Whether any batch may be padded, so that rows have lengths.
    self.padded = self.varlen or self._segments is not None or self.context > 0
    self._first_step, self._varied, self._shuffled = [0], {}, {}

  def first_step(self, epoch: int) -> int:
    """The first step of an epoch."""
    if self._per_epoch:
      return epoch * self._per_epoch
    first = self._first_step
    while len(first) <= epoch:
      _, lengths = self._varying(len(first) - 1)
      first.append(first[-1] + len(lengths))
    return first[epoch]

  def locate(self, step: int) -> tuple[int, int]:
    """The epoch of a step, and the index of its segment in the epoch."""
    if self._per_epoch:
      return divmod(step, self._per_epoch)
    first = self._first_step
    while first[-1] <= step:
      self.first_step(len(first))
    epoch = int(np.searchsorted(first, step, side='right')) - 1
    return epoch, step - first[epoch]

  def _varying(self, epoch):
    """Segments of varying length: edges int64 [segments + 1], lengths drawn."""
    if epoch not in self._varied:
      rng = np.random.default_rng([self.seed, epoch])
      count = self._row_len // _SHORTEST + 1  # enough, however short
      mean = self.segment_len * np.where(rng.random(count) < _HALVED, 0.5, 1)
      noise = _DEVIATION * rng.standard_normal(count)
      most = self.widths[-1]
      lengths = np.clip((mean + noise).astype(np.int64), _SHORTEST, most)
      edges = np.append(0, np.cumsum(lengths))
      n = int(np.searchsorted(edges, self._last))
      edges = np.minimum(edges[: n + 1], self._row_len)
      self._varied = {epoch: (edges, lengths[:n])}  # not the previous epoch's
    return self._varied[epoch]

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
    text, T = self._text(epoch), self.segment_len
    start, end, drawn = index * T, index * T + T, T
    if self.varlen:
      edges, lengths = self._varying(epoch)
      (start, end), drawn = edges[index : index + 2], lengths[index]
    n = min(end, self._row_len) - start
    c = min(self.context, start)
    width = next(x for x in self.widths if x >= n)
    inputs = np.zeros((len(rows), self.context + width), np.int32)
    targets = np.full((len(rows), width), -1, np.int32)
    for i, row in enumerate(rows):
      at = row * (self._row_len + self.apart) + start
      piece = text[at - c : at + n + 1]
      inputs[i, : c + n], targets[i, :n] = piece[:-1], piece[c + 1 :]

    def each(value, dtype: Any = np.int32):
      return np.full(len(rows), value, dtype)

    lengths = each(c + n) if self.padded else None
    context = each(c) if self.context else None
    rate = each(drawn / T, np.float32) if self.rates else None
    reset = each(index == 0, bool)
    return Batch(inputs, targets, lengths, reset, context, rate)

  def _of_documents(self, segments, index, rows):
    """The Batch of these rows, integers [b], for a segment of an epoch."""
    N, B, E, T = len(segments), self.batch_size, self.context, self.segment_len
    at = rows * N // B + index
    real = at < (rows + 1) * N // B
    start, n, before = segments.locate(np.where(real, at, 0))
    n, new = np.where(real, n, 0), before == 0
    c = np.where(real, np.minimum(before, min(E, index * T)), 0)
    inputs, targets, _ = _padded(self.tokens, start, n, T, c, E)
    lengths, context = (x.astype(np.int32) for x in (c + n, c))
    reset = new | (index == 0)
    return Batch(inputs, targets, lengths, reset, context if E else None)


def _padded(tokens, start, n, T, context, E):
  """Segments of n tokens from start, after some of context, padded.

  All three are integers [...]. Returns inputs int32 [..., E + T], targets int32
  [..., T], -1 where padded, and the place of each target.
  """
  places = np.arange(E + T)
  real = places < (context + n)[..., None]
  at = np.where(real, (start - context)[..., None] + places, 0)
  inputs = np.where(real, tokens[at].astype(np.int32), 0)
  real = places[:T] < n[..., None]
  at = np.where(real, start[..., None] + places[:T], 0) + 1
  return inputs, np.where(real, tokens[at].astype(np.int32), -1), at


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
  tokens: Scored, B: int, T: int, G: int, E: int = 0
) -> Iterator[tuple[np.ndarray, ...]]:
  """A split for scoring: every pair of neighbours once, in order.

  The n - 1 pairs (token, next token) of integers [n], n >= 2, are cut into B
  consecutive pieces of equal length, the last one possibly shorter; those of
  documents between two documents. Yields, for each group of G segments, inputs
  int32 [G, B, E + T], the up to E tokens of the piece or document before the
  segment, and the segment; targets int32 [G, B, T], -1 for padding, which comes
  after everything scored in its row or document; positions int64 [G, B, T], the
  index of each target in tokens; int32 [G, B], how many tokens of context there
  are; and bool [G, B], which memories are to be emptied first.
  """
  if isinstance(tokens, Documents):
    tokens, each = tokens.base, Segments(tokens.starts, T)
    rows = each.cut(B)
  else:
    pairs = len(tokens) - 1
    starts = np.arange(B + 1) * math.ceil(pairs / B)
    each = Segments(np.minimum(starts, pairs), T)
    rows = each.first
  for index in range(0, int(np.max(np.diff(rows))), G):
    at = index + np.arange(G)[:, None] + rows[:-1]  # [G, B]
    real = at < rows[1:]
    start, n, before = each.locate(np.where(real, at, 0))
    n, new = np.where(real, n, 0), real & (before == 0)
    c = np.where(real, np.minimum(before, E), 0).astype(np.int32)
    yield *_padded(tokens, start, n, T, c, E), c, new
