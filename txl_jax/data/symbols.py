"""What every vocabulary offers; there are those of bytes and of words.

A token id is the place of its symbol in the vocabulary.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np


@dataclasses.dataclass(frozen=True)
class Symbols(abc.ABC):
  """A vocabulary of V symbols; ValueError if one occurs twice."""

  kind: ClassVar[str]  # 'bytes' or 'words', in its JSON form
  unit: ClassVar[str]  # in which an nll per token is reported, bpc or ppl
  # Token ids of the word that ends a line or sentence, and of the one that
  # stands for all others; None without one.
  eos_id: ClassVar[int | None] = None
  unk_id: ClassVar[int | None] = None

  symbols: tuple  # in the order of their token ids
  counts: tuple[int, ...] = ()  # of each in the text, if one was counted

  def __post_init__(self):
    V, n = len(self.symbols), len(self.counts)
    if len(set(self.symbols)) != V:
      raise ValueError('a symbol occurs twice')
    if n not in (0, V):
      raise ValueError(f'{n} counts for {V} symbols')

  def __len__(self) -> int:
    return len(self.symbols)

  @abc.abstractmethod
  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, integers [n]; a UserError names what has none, and source."""

  @abc.abstractmethod
  def decoder(self) -> 'Decoder':
    """A new decoder, for the token ids of one text."""

  def decode(self, ids: Iterable[int]) -> bytes:
    """The text of token ids, as by `Decoder.push`."""
    return self.decoder().push(ids)

  @property
  def line_end(self) -> int | None:
    """Token id of a newline, None if there is none."""
    return self.eos_id

  @property
  def start(self) -> int:
    """A token after which a text begins: the end of a line if there is one."""
    return self.line_end or 0

  def entry(self) -> dict:
    """The vocabulary in the manifest of a prepared corpus."""
    return self.to_json()

  def to_json(self) -> dict:
    """The whole vocabulary as a dict of JSON types."""
    found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {'kind': self.kind} | {
      k: list(x) if isinstance(x, tuple) else x for k, x in found.items()
    }

  @classmethod
  def from_json(cls, fields: Mapping) -> Self:
    """The inverse of `to_json`; else a KeyError, TypeError or ValueError."""
    if fields['kind'] != cls.kind:
      raise ValueError(f'kind is {fields["kind"]!r}, not {cls.kind!r}')
    found = (fields[f.name] for f in dataclasses.fields(cls))
    return cls(*(tuple(x) if isinstance(x, list) else x for x in found))


class Decoder:
  """Token ids of one text to its bytes, piece by piece."""

  def __init__(self, symbols: tuple, shown: Callable[[Any], bytes]):
    """Starts a text; `shown` gives the bytes that the next symbol adds."""
    self._symbols, self._shown = symbols, shown

  def push(self, ids: Iterable[int]) -> bytes:
    """The bytes that integers [n] add; ValueError for one not in [0, V)."""
    ids, V = np.asarray(ids, np.int64), len(self._symbols)
    if ids.size and not 0 <= ids.min() <= ids.max() < V:
      raise ValueError(
        f'token ids from {ids.min()} to {ids.max()}, not in [0, {V})'
      )
    return b''.join(self._shown(self._symbols[i]) for i in ids.tolist())
