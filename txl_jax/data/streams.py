"""Batches from contiguous token streams, as a function of the step.

Shapes: B rows, T segment length, E context length, n tokens, L pairs of
(token, target) per row.

The corpus is cut into B consecutive pieces of equal length. Row b reads piece b
from left to right, T tokens at a time, so the memory carried from batch to
batch holds the preceding text. A model without memory may also read up to E
preceding tokens with each segment, as context that never crosses the start of a
piece or document. An epoch is one pass over all pieces.
Sentences (see `data.sentences`) are shuffled in each epoch. Documents (see
`data.documents`) are cut into segments, some shorter than T. The numbers of
segments of two pieces differ by at most one, so some rows of the last batch of
an epoch may be empty.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from txl_jax.data.documents import Documents
from txl_jax.data.sentences import Shuffled
from txl_jax.program.errors import UserError, refuse

# Variable lengths (`train.varlen`), as in the paper's code: normal around T, or
# around T / 2 in one of twenty steps.
_HALVED = 0.05  # probability of T / 2
_DEVIATION = 5  # standard deviation
_SHORTEST = 5
# Padded widths as (fraction of T, margin): 2, 1, 3 and 6 standard deviations
# above the means. About one length in a billion would exceed the largest.
_WIDTHS = (0.5, 10), (1, 5), (1, 15), (1, 30)


def widest(T: int, limit: int) -> int:
  """The largest width of a segment of varying length, see `Streams`."""
  return T + (limit or _WIDTHS[-1][1])


@dataclasses.dataclass(frozen=True)
class Batch:
  """One segment of each of b streams."""

  # int32 [b, E + T]: context, segment, padding.
  inputs: np.ndarray
  # int32 [b, T]: the next token of each segment token; -1 for padding.
  targets: np.ndarray
  # int32 [b]: number of real tokens in each row. None if only the last batch of
  # an epoch can be padded, which is harmless, as the memory is then reset.
  lengths: np.ndarray | None
  reset: np.ndarray  # bool [b]: rows whose memory is reset before this segment
  context: np.ndarray | None = None  # int32 [b]: context tokens; None if E = 0
  # float32 [b]: factor of the learning rate, equal in all rows; None is 1.
  rate_scale: np.ndarray | None = None


@dataclasses.dataclass(eq=False)
class Streams:
  """The training batches of a split; UserError if too short for one batch."""

  tokens: Any  # integers [n], usually memory-mapped; or Documents
  batch_size: int  # B
  segment_len: int  # T
  _: dataclasses.KW_ONLY
  varlen: bool = False  # draw the length of each segment around T
  limit: int = 15  # maximum length minus T; 0 means 30
  rates: bool = False  # set `rate_scale` to (drawn length) / T
  # Whether rows share no token, and a leftover segment of one pair is dropped;
  # else the last target of a row is the first token of the next row.
  apart: bool = False
  context: int = 0  # E
  seed: int = 0  # for drawn lengths and the order of sentences
  # Integers [sentences + 1], starts of sentences to shuffle in each epoch; None
  # reads the text in order.
  sentences: np.ndarray | None = None

  def __post_init__(self):
    n, B, T = len(self.tokens), self.batch_size, self.segment_len
    self._row_len = n // B - 1 if self.apart else (n - 1) // B  # L
    self._start_limit = max(self._row_len - self.apart, 1)  # exclusive
    self.widths = [T]  # possible widths of targets
    of_documents = isinstance(self.tokens, Documents)
    # Whether batches may be padded and therefore need lengths.
    self.padded = self.varlen or of_documents or self.context > 0
    if of_documents:
      if self.varlen:
        refuse('train.varlen', True, 'False with data.documents')
      if self.apart:
        refuse('train.rows', 'apart', 'joined with data.documents')
    elif self._row_len < T:
      least = B * (T + 1) if self.apart else B * T + 1
      raise UserError(
        f'the training split has {n} tokens, one batch needs {least}; '
        f'allowed: smaller train.batch_size ({B}) or train.segment_len ({T})'
      )
    elif self.varlen:
      longest = widest(T, self.limit)
      widths = {min(int(x * T) + margin, longest) for x, margin in _WIDTHS}
      self.widths = sorted(widths | {longest})
    if of_documents:
      self._segments = Segments(self.tokens.starts, T)
      self.tokens = self.tokens.base
    else:  # each row is read like a document of L tokens
      self._segments = Segments(np.arange(B + 1) * self._row_len, T)
    steps = len(self._segments) / B if of_documents else self._start_limit / T
    self._per_epoch = None if self.varlen else math.ceil(steps)
    self.tokens = np.asarray(self.tokens)  # slices of a memmap are slow
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
    """The epoch of a step, and its index in the epoch."""
    if self._per_epoch:
      return divmod(step, self._per_epoch)
    first = self._first_step
    while first[-1] <= step:
      self.first_step(len(first))
    epoch = int(np.searchsorted(first, step, side='right')) - 1
    return epoch, step - first[epoch]

  def _varying(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges int64 [segments + 1 or more] and drawn lengths of an epoch."""
    if epoch not in self._varied:
      rng = np.random.default_rng([self.seed, epoch])
      count = self._row_len // _SHORTEST + 1  # enough for the shortest lengths
      mean = self.segment_len * np.where(rng.random(count) < _HALVED, 0.5, 1)
      noise = _DEVIATION * rng.standard_normal(count)
      longest = self.widths[-1]
      lengths = np.clip((mean + noise).astype(np.int64), _SHORTEST, longest)
      edges = np.append(0, np.cumsum(lengths))
      n = int(np.searchsorted(edges, self._start_limit))
      edges = np.minimum(edges, self._row_len)
      self._varied = {epoch: (edges, lengths[:n])}  # caches a single epoch
    return self._varied[epoch]

  def _text(self, epoch: int) -> np.ndarray | Shuffled:
    """The tokens [n] of an epoch, in order or with sentences shuffled."""
    if self.sentences is None:
      return self.tokens
    if epoch not in self._shuffled:
      self._shuffled = {}  # frees the previous epoch first
      seed = [self.seed, epoch]
      self._shuffled[epoch] = Shuffled(self.tokens, self.sentences, seed)
    return self._shuffled[epoch]

  def batch(self, step: int, rows: Any = None) -> Batch:
    """The Batch of a step, of all rows or only of `rows`, integers [b].

    Row b goes on in piece b where the batch before it ended.
    """
    epoch, index = self.locate(step)
    T, E = self.segment_len, self.context
    rows = np.arange(self.batch_size) if rows is None else np.asarray(rows)
    text = self._text(epoch)
    drawn = T
    if self.varlen:
      edges, lengths = self._varying(epoch)
      first, end = edges[index : index + 2]
      drawn = lengths[index]
      start = rows * self._row_len + first
      n, before = np.full_like(rows, end - first), np.full_like(rows, first)
    else:
      N, B = len(self._segments), self.batch_size
      ends = (rows + 1) * N // B  # the first segment of the next row
      start, n, before = self._segments.locate(rows * N // B + index, ends)
      before = np.minimum(before, index * T)  # tokens of the same row
    start += rows * self.apart
    c = np.minimum(before, E)
    width = next(x for x in self.widths if x >= n.max())
    batch = self.empty(len(rows), width)
    for i, (at, past, new) in enumerate(zip(start, c, n)):
      piece = text[at - past : at + new + 1]
      batch.inputs[i, : past + new] = piece[:-1]
      batch.targets[i, :new] = piece[past + 1 :]
    batch.reset[:] = before == 0
    if batch.lengths is not None:
      batch.lengths[:] = c + n
    if batch.context is not None:
      batch.context[:] = c
    if batch.rate_scale is not None:
      batch.rate_scale[:] = drawn / T
    return batch

  def empty(self, rows: int, width: int) -> Batch:
    """A Batch of segments of `width` tokens that are all padding."""

    def each(used):
      return np.zeros(rows, np.int32) if used else None

    return Batch(
      inputs=np.zeros((rows, self.context + width), np.int32),
      targets=np.full((rows, width), -1, np.int32),
      lengths=each(self.padded),
      reset=np.zeros(rows, bool),
      context=each(self.context),
      rate_scale=np.ones(rows, np.float32) if self.rates else None,
    )


class Segments:
  """The segments of documents, or of the rows of a text, in order."""

  def __init__(self, starts: np.ndarray, segment_len: int):
    """`starts` is as in `Documents`, one for each row of another text."""
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


class Preceded:
  """Tokens [n] after one extra token, so that all n of them are scored."""

  def __init__(self, first: int, tokens: np.ndarray):
    self._first, self.base = first, tokens  # base: the array this is a view of

  def __len__(self) -> int:
    return len(self.base) + 1

  def __getitem__(self, at: np.ndarray) -> np.ndarray:
    """Tokens at an integer array of indices, int32 of the same shape."""
    tokens = self.base[at - 1].astype(np.int32)  # any at 0
    return np.where(at == 0, self._first, tokens)


Scored: TypeAlias = np.ndarray | Preceded | Documents  # tokens [n]


def segments(
  tokens: Scored, B: int, T: int, G: int, E: int = 0, empty: int = 0
) -> Iterator[tuple[np.ndarray, ...]]:
  """Cuts a split for scoring: each pair (token, next token) once, in order.

  The n - 1 pairs of integers [n], n >= 2, are cut into B consecutive pieces of
  equal length, but the last ones may be shorter or empty; for Documents, each
  piece consists of whole documents. Yields, for each group of G segments,

    inputs     int32 [G, B, E + T]: up to E context tokens, which precede the
               segment in its piece or document, then the segment
    targets    int32 [G, B, T]; -1 for padding, which follows all scored tokens
               of a row, or document
    positions  int64 [G, B, T], the index of each target in tokens
    context    int32 [G, B], number of context tokens
    begins     bool [G, B], whether the segment begins a piece, or document

  The yielded arrays have B + `empty` rows; the extra rows contain no tokens.
  """
  if isinstance(tokens, Documents):
    each = Segments(tokens.starts, T)
    rows = each.cut(B)
  else:
    pairs = len(tokens) - 1
    starts = np.arange(B + 1) * math.ceil(pairs / B)
    each = Segments(np.minimum(starts, pairs), T)
    rows = each.first_segment
  rows = np.pad(rows, (0, empty), mode='edge')
  for index in range(0, int(np.max(np.diff(rows))), G):
    number = index + np.arange(G)[:, None] + rows[:-1]  # of segments, [G, B]
    start, n, before = each.locate(number, rows[1:])
    c = np.minimum(before, E)
    column = np.arange(E + T)
    whole = column < (c + n)[..., None]
    at = np.where(whole, (start - c)[..., None] + column, 0)
    inputs = np.where(whole, tokens[at].astype(np.int32), 0)
    scored = column[:T] < n[..., None]
    at = np.where(scored, start[..., None] + column[:T], 0) + 1
    targets = np.where(scored, tokens[at].astype(np.int32), -1)
    begins = (n > 0) & (before == 0)
    yield inputs, targets, at, c.astype(np.int32), begins
