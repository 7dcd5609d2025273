"""Contiguous streams of tokens, as a function of the step.

Shapes: B rows, T segment length, n tokens, L pairs in a row.

The corpus is cut into B equal consecutive pieces; row b reads piece b from
left to right, T tokens at a time, so a memory carried from one batch to the
next holds what came before in the text. An epoch is one pass over the pieces.
A stream of sentences (see `data.sentences`) is put into another order before
it is cut, a new one in each epoch.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_jax.data import sentences as sentences_lib
from txl_jax.errors import UserError

# Variable lengths (`train.varlen`), as in the paper's code: the mean is
# halved once in twenty steps, the length normally distributed around it.
_HALVED = 0.05
_DEVIATION = 5
_SHORTEST = 5
_LONGEST = 15  # above T


@dataclasses.dataclass(frozen=True)
class Batch:
  """One segment of each of b streams."""

  inputs: np.ndarray  # int32 [b, T]
  targets: np.ndarray  # int32 [b, T], the tokens after these; -1 where padded
  # Real tokens of each row, int32 [b]; None without variable lengths, where
  # padding ends an epoch and memory is emptied after it.
  lengths: np.ndarray | None
  reset: bool  # whether the streams start here: memory is to be emptied


class Streams:
  """The batches that training reads."""

  def __init__(
    self,
    tokens: np.ndarray,
    batch_size: int,
    segment_len: int,
    *,
    varlen: bool = False,
    seed: int = 0,
    sentences: np.ndarray | None = None,
  ):
    """Cuts integers [n], usually mapped from a file, into B streams.

    With varlen the length of each segment is drawn around T. Sentences are
    integers [sentences + 1], where they start, to read them in another order in
    each epoch; None reads the text as it is. The seed is of both. A UserError
    tells of a corpus that is shorter than a batch.
    """
    needed = batch_size * segment_len + 1
    if len(tokens) < needed:
      raise UserError(
        f'the training split has {len(tokens)} tokens, one batch needs '
        f'{needed}; allowed: smaller train.batch_size ({batch_size}) or '
        f'train.segment_len ({segment_len})'
      )
    self._tokens = np.asarray(tokens)  # slices of a memmap are slow
    self._B, self._T = batch_size, segment_len
    self._row_len = (len(tokens) - 1) // batch_size  # L
    self._varlen, self._seed = varlen, seed
    self._first_step, self._starts = [0], {}
    self._sentences, self._shuffled = sentences, {}

  @property
  def width(self) -> int:
    """Columns of every batch: the longest segment there can be."""
    return self._T + (_LONGEST if self._varlen else 0)

  def locate(self, step: int) -> tuple[int, int]:
    """The epoch of a step, and the index of its segment in the epoch."""
    if not self._varlen:
      return divmod(step, math.ceil(self._row_len / self._T))
    first = self._first_step
    while first[-1] <= step:
      first.append(first[-1] + len(self._varying(len(first) - 1)) - 1)
    epoch = int(np.searchsorted(first, step, side='right')) - 1
    return epoch, step - first[epoch]

  def _varying(self, epoch):
    """int64 [segments + 1]: where segments of varying length start, and L."""
    if epoch not in self._starts:
      rng = np.random.default_rng([self._seed, epoch])
      count = self._row_len // _SHORTEST + 1  # enough, however short
      mean = np.where(rng.random(count) < _HALVED, self._T / 2, self._T)
      noise = _DEVIATION * rng.standard_normal(count)
      lengths = (mean + noise).astype(np.int64)
      lengths = np.clip(lengths, _SHORTEST, self.width)
      starts = np.append(0, np.cumsum(lengths))
      starts = np.append(starts[starts < self._row_len], self._row_len)
      self._starts = {epoch: starts}  # the last one makes room
    return self._starts[epoch]

  def _text(self, epoch):
    """What is cut into rows: an array, or what is sliced like one."""
    if self._sentences is None:
      return self._tokens
    if epoch not in self._shuffled:
      self._shuffled = {}  # before another one is made
      self._shuffled[epoch] = sentences_lib.Shuffled(
        self._tokens, self._sentences, [self._seed, epoch]
      )
    return self._shuffled[epoch]

  def batch(self, step: int, rows: Any = None) -> Batch:
    """The Batch of a step, whatever was read before, of B or these rows [b]."""
    epoch, index = self.locate(step)
    text = self._text(epoch)
    if self._varlen:
      start, end = self._varying(epoch)[index : index + 2]
    else:
      start, end = index * self._T, min((index + 1) * self._T, self._row_len)
    rows = range(self._B) if rows is None else rows
    n = end - start
    inputs = np.empty((len(rows), self.width), np.int32)
    targets = np.empty_like(inputs)
    inputs[:, n:], targets[:, n:] = 0, -1
    for i, row in enumerate(rows):
      at = row * self._row_len + start
      piece = text[at : at + n + 1]
      inputs[i, :n], targets[i, :n] = piece[:-1], piece[1:]
    lengths = np.full([len(rows)], n, np.int32) if self._varlen else None
    return Batch(inputs, targets, lengths, index == 0)


def arrays(batches: list[Batch]) -> dict[str, np.ndarray | None]:
  """What a training step reads, of K batches, without the axis K if K = 1.

  It has inputs, targets [K, B, T]; lengths [K, B] or None; reset [K, B].
  """

  def stack(parts):
    return parts[0] if len(parts) == 1 else np.stack(parts)

  B, varlen = len(batches[0].inputs), batches[0].lengths is not None
  return {
    'inputs': stack([b.inputs for b in batches]),
    'targets': stack([b.targets for b in batches]),
    'lengths': stack([b.lengths for b in batches]) if varlen else None,
    'reset': stack([np.full([B], b.reset) for b in batches]),
  }


class Preceded:
  """Tokens [n] with one before them, so that scoring scores all of them."""

  def __init__(self, first: int, tokens: np.ndarray):
    self._first, self._tokens = first, tokens

  def __len__(self) -> int:
    return len(self._tokens) + 1

  def __getitem__(self, at: np.ndarray) -> np.ndarray:
    """The tokens at an integer array of places, int32 of its shape."""
    found = self._tokens[np.maximum(at - 1, 0)].astype(np.int32)
    return np.where(at == 0, self._first, found)


def segments(
  tokens: np.ndarray | Preceded, batch_size: int, segment_len: int, group: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """A split for scoring: every pair of neighbours once, in order.

  The n - 1 pairs (token, next token) of integers [n], n >= 2, are cut into B
  consecutive pieces of equal length, the last one possibly shorter. It yields,
  for a group of G segments, inputs int32 [G, B, T]; targets int32 [G, B, T], -1
  where padded, which is behind all that is scored in its row; and positions
  int64 [G, B, T], the index of each target in tokens.
  """
  B, T, G = batch_size, segment_len, group
  pairs = len(tokens) - 1
  L = math.ceil(pairs / B)
  ends = np.minimum((np.arange(B) + 1) * L, pairs)[:, None]  # [B, 1]

  def fold(x):
    return x.reshape(B, G, T).swapaxes(0, 1)

  for start in range(0, L, G * T):
    at = start + np.arange(G * T) + (np.arange(B) * L)[:, None]  # [B, G T]
    real = at < ends
    at = np.where(real, at, 0)
    inputs = np.where(real, tokens[at].astype(np.int32), 0)
    targets = np.where(real, tokens[at + 1].astype(np.int32), -1)
    yield fold(inputs), fold(targets), fold(at + 1)
