"""Vocabularies of bytes, whose symbols are byte values.

If documents end with <eos>, it is the last symbol, END, which has no bytes.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np

from txl_jax.data.vocabularies.base import Decoder, Symbols
from txl_jax.program.errors import UserError

END = 256  # the symbol <eos>, not a byte value


@dataclasses.dataclass(frozen=True, repr=False)
class Bytes(Symbols):
  """A vocabulary of byte values; ValueError if one is invalid or repeated."""

  kind = 'bytes'  # not a field
  unit = 'bpc'
  end = END
  symbols: tuple[int, ...]
  counts: tuple[int, ...] = ()
  dropped: tuple[int, ...] = ()  # bytes that `encode` drops
  raw: bool = False  # whether texts are arbitrary bytes, as with data.raw

  def __post_init__(self):
    super().__post_init__()
    values = self._values + self.dropped
    known = all(isinstance(v, int) and 0 <= v < 256 for v in values)
    if not known or len(set(values)) != len(values) or self.symbols == (END,):
      raise ValueError('byte values must be distinct integers from 0 to 255')

  @property
  def _values(self):
    """The symbols without END."""
    return self.symbols if self.eos_id is None else self.symbols[:-1]

  @classmethod
  def all_bytes(cls) -> Self:
    """The vocabulary of all 256 byte values, whose token ids are the values."""
    return cls(tuple(range(256)))

  @classmethod
  def from_counts(cls, counts: Mapping[int, int], dropped: bytes = b'') -> Self:
    """The vocabulary of {value: count}, most frequent values first."""
    ranked = collections.Counter(counts).most_common()
    kept = {value: n for value, n in ranked if value not in dropped}
    return cls(tuple(kept), tuple(kept.values()), tuple(dropped))

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, uint8 [n], of all bytes that are not dropped."""
    symbols, dropped = bytes(self._values), bytes(self.dropped)
    if outside := text.translate(None, symbols + dropped):
      at = text.index(outside[0])
      raise UserError(
        f'{source}: byte 0x{outside[0]:02x} at position {at} is not among the '
        f'{len(symbols)} byte values of the vocabulary'
      )
    table = bytes.maketrans(symbols, bytes(range(len(symbols))))
    return np.frombuffer(text.translate(table, dropped), np.uint8).copy()

  def decoder(self) -> Decoder:
    """A new decoder; dropped bytes are not restored."""
    return Decoder(self.symbols, lambda x: bytes([x]) if x < END else b'')

  @property
  def sizes(self) -> np.ndarray | None:
    """See `Symbols`; None if every symbol is a byte."""
    if self.eos_id is None:
      return None
    return np.array([value < END for value in self.symbols], np.int64)

  @property
  def line_end(self) -> int | None:
    """Token id of the newline, or None."""
    return self._index.get(ord('\n'))

  @property
  def start(self) -> int:
    """<eos>, else a newline, else a space or '_', else token 0."""
    if self.eos_id is not None:
      return self.eos_id
    return next((self._index[x] for x in b'\n _' if x in self._index), 0)


def count_bytes(chunks: Iterable[bytes]) -> dict[int, int]:
  """Counts of byte values, with keys in order of first occurrence."""
  counts = {}
  for chunk in chunks:
    added = np.bincount(np.frombuffer(chunk, np.uint8), minlength=256).tolist()
    new = [value for value, n in enumerate(added) if n and value not in counts]
    counts |= dict.fromkeys(sorted(new, key=chunk.index), 0)
    for value in counts:
      counts[value] += added[value]
  return counts
