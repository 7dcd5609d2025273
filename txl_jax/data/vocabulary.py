"""Vocabularies: which token id stands for what.

There are two kinds with the same methods, told apart by `kind` in their JSON
form: bytes, here, where every symbol is one byte value, and words, in
`data.words`. A token id is the symbol's place in the vocabulary.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from txl_jax.data.words import Words
from txl_jax.errors import UserError

_OUTSIDE = -1
_DROPPED = -2


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """A vocabulary of byte values.

  Attributes:
    symbols: the byte values, 0 to 255, in the order of their token ids.
    counts: how often each symbol occurs in the corpus, in the same order, or
      empty where the vocabulary was not counted.
    dropped: byte values that `encode` leaves out of any text without an error.

  Raises:
    ValueError: a value is out of range or occurs twice, or the number of
      counts is neither 0 nor the number of symbols.
  """

  unit = 'bpc'  # in which an nll per token is told; not a field

  symbols: tuple[int, ...]
  counts: tuple[int, ...] = ()
  dropped: tuple[int, ...] = ()

  def __post_init__(self):
    values = self.symbols + self.dropped
    if not all(isinstance(v, int) and 0 <= v < 256 for v in values):
      raise ValueError('a byte value is not an integer from 0 to 255')
    if len(set(values)) != len(values):
      raise ValueError('a byte value occurs twice')
    if len(self.counts) not in (0, len(self.symbols)):
      raise ValueError(
        f'{len(self.counts)} counts for {len(self.symbols)} symbols'
      )

  @classmethod
  def all_bytes(cls) -> 'Vocabulary':
    """All 256 byte values, each its own token id: it encodes any text."""
    return cls(tuple(range(256)))

  @classmethod
  def from_counts(
    cls, counts: Mapping[int, int], dropped: Iterable[int] = ()
  ) -> 'Vocabulary':
    """The byte values that occur, the most frequent one first.

    Args:
      counts: occurrences of each byte value, as `count_bytes` gives them.
        Values with equal counts keep the order that they have here.
      dropped: byte values to leave out of the vocabulary and of all texts.
    """
    dropped = tuple(dropped)
    kept = [(v, n) for v, n in counts.items() if v not in dropped and n > 0]
    kept.sort(key=lambda pair: -pair[1])  # stable
    return cls(tuple(v for v, _ in kept), tuple(n for _, n in kept), dropped)

  def __len__(self) -> int:
    return len(self.symbols)

  @functools.cached_property
  def _ids(self) -> np.ndarray:
    """[256] int16: the id of each byte value, _DROPPED or _OUTSIDE."""
    ids = np.full(256, _OUTSIDE, np.int16)
    ids[list(self.symbols)] = np.arange(len(self.symbols))
    ids[list(self.dropped)] = _DROPPED
    return ids

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids of a text.

    Args:
      text: n bytes.
      source: what the text is, for the error message.

    Returns:
      uint8 [n], or fewer where the text holds dropped bytes.

    Raises:
      UserError: a byte is neither in the vocabulary nor dropped.
    """
    ids = self._ids[np.frombuffer(text, np.uint8)]
    outside = np.flatnonzero(ids == _OUTSIDE)
    if outside.size:
      at = int(outside[0])
      raise UserError(
        f'{source}: byte 0x{text[at]:02x} at position {at} is not among the '
        f'{len(self)} byte values of the vocabulary'
      )
    return ids[ids >= 0].astype(np.uint8)

  def decode(self, ids: Iterable[int]) -> bytes:
    """The text of token ids; bytes that `encode` dropped do not come back.

    Args:
      ids: integers [n].

    Raises:
      ValueError: an id is not in [0, len(self)).
    """
    ids = np.asarray(ids, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
      raise ValueError(
        f'token ids from {ids.min()} to {ids.max()}, not in [0, {len(self)})'
      )
    return np.array(self.symbols, np.uint8)[ids].tobytes()

  def decoder(self) -> 'Decoder':
    """A decoder that takes the ids of one text in pieces."""
    return Decoder(self)

  # Words that bytes do not have; see `data.words`.
  eos_id = None
  unk_id = None

  @property
  def line_end(self) -> int | None:
    """Token id of a newline, None if there is none."""
    return self.symbols.index(10) if 10 in self.symbols else None

  @property
  def start(self) -> int:
    """A token after which a text begins: a newline, else a space."""
    first = next((s for s in b'\n _' if s in self.symbols), None)
    return 0 if first is None else self.symbols.index(first)

  def entry(self) -> dict:
    """What a manifest says about the vocabulary: all of it."""
    return self.to_json()

  def to_json(self) -> dict:
    """The vocabulary as a dict of JSON types."""
    return {
      'kind': 'bytes',
      'symbols': list(self.symbols),
      'counts': list(self.counts),
      'dropped': list(self.dropped),
    }

  @classmethod
  def from_json(cls, fields: Mapping) -> 'Vocabulary':
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: it is not what `to_json` writes.
    """
    if fields['kind'] != 'bytes':
      raise ValueError(f"kind is {fields['kind']!r}, not 'bytes'")
    return cls(
      tuple(fields['symbols']),
      tuple(fields['counts']),
      tuple(fields['dropped']),
    )


class Decoder:
  """Token ids in pieces to bytes, with the methods of `words.Decoder`."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary

  def push(self, ids: Iterable[int]) -> bytes:
    """The bytes of these ids; ValueError as in `Vocabulary.decode`."""
    return self._vocabulary.decode(ids)


def from_json(fields: Mapping) -> Vocabulary | Words:
  """The vocabulary, of either kind, that `to_json` has written.

  Raises:
    KeyError, TypeError, ValueError: it is none.
  """
  kind = Words if fields['kind'] == 'words' else Vocabulary
  return kind.from_json(fields)


def count_bytes(chunks: Iterable[bytes]) -> dict[int, int]:
  """Occurrences of each byte value, keys in the order of first appearance."""
  counts = collections.Counter()
  for chunk in chunks:
    here = np.bincount(np.frombuffer(chunk, np.uint8), minlength=256)
    new = [v for v in np.flatnonzero(here).tolist() if v not in counts]
    for value in sorted(new, key=lambda v: chunk.index(v)):
      counts[value] = 0
    for value in counts:
      counts[value] += int(here[value])
  return dict(counts)
