"""Vocabularies of bytes, whose symbols are byte values.

Where documents end with <eos>, it is the last symbol, END, which has no bytes.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np

from txl_jax.data.vocabularies.words import Decoder, Symbols
from txl_jax.program.errors import UserError

END = 256  # in place of a byte value


@dataclasses.dataclass(frozen=True, repr=False)
class Bytes(Symbols):
  """A vocabulary of byte values; ValueError for one invalid or repeated."""

  kind = 'bytes'  # not a field
  unit = 'bpc'
  end = END
  symbols: tuple[int, ...]
  counts: tuple[int, ...] = ()
  dropped: tuple[int, ...] = ()  # bytes that `encode` leaves out of any text
  raw: bool = False  # whether texts are any bytes, as with data.raw

  def __post_init__(self):
    super().__post_init__()
    values = self._values + self.dropped
    known = all(isinstance(v, int) and 0 <= v < 256 for v in values)
    if not known or len(set(values)) != len(values) or self.symbols == (END,):
      raise ValueError('byte values are not different integers from 0 to 255')

  @property
  def _values(self):
    """The symbols that are byte values."""
    return self.symbols if self.eos_id is None else self.symbols[:-1]

  @classmethod
  def all_bytes(cls) -> Self:
    """All 256 byte values, each its own token id: it encodes any text."""
    return cls(tuple(range(256)))

  @classmethod
  def from_counts(cls, counts: Mapping[int, int], dropped: bytes = b'') -> Self:
    """The values of {value: occurrences}, most frequent first."""
    ranked = collections.Counter(counts).most_common()
    kept = {value: n for value, n in ranked if value not in dropped}
    return cls(tuple(kept), tuple(kept.values()), tuple(dropped))

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, uint8 [n], fewer than bytes where some are dropped."""
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
    """A new decoder; bytes that `encode` dropped are not restored."""
    return Decoder(self.symbols, lambda x: bytes([x]) if x < END else b'')

  @property
  def sizes(self) -> np.ndarray | None:
    """See `Symbols`; None where every symbol is a byte."""
    if self.eos_id is None:
      return None
    return np.array([value < END for value in self.symbols], np.int64)

  @property
  def line_end(self) -> int | None:
    """Token id of a newline, None if there is none."""
    return self.symbols.index(10) if 10 in self.symbols else None

  @property
  def start(self) -> int:
    """The end of a document, else a newline, else a space, else token 0."""
    if self.eos_id is not None:
      return self.eos_id
    found = (self.symbols.index(s) for s in b'\n _' if s in self.symbols)
    return next(found, 0)


def count_bytes(chunks: Iterable[bytes]) -> dict[int, int]:
  """Occurrences of each byte value, with keys in order of first appearance."""
  counts = {}
  for chunk in chunks:
    here = np.bincount(np.frombuffer(chunk, np.uint8), minlength=256).tolist()
    new = [value for value, n in enumerate(here) if n and value not in counts]
    counts |= dict.fromkeys(sorted(new, key=chunk.index), 0)
    for value in counts:
      counts[value] += here[value]
  return counts
