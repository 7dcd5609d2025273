"""The base class of vocabularies, and their decoder.

A token id is the index of its symbol in the vocabulary.
"""

import abc
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from txl_jax.program.errors import shown

_LATER = 'documents', 'raw'  # newer fields, absent from JSON if False


@dataclasses.dataclass(frozen=True)
class Symbols(abc.ABC):
  """A vocabulary of V symbols; ValueError if one occurs twice."""

  kind: ClassVar[str]  # 'bytes', 'words', 'subwords' or 'ids', in its JSON
  unit: ClassVar[str]  # unit of the reported nll per token, bpc or ppl
  unk_id: ClassVar[int | None] = None  # token id of the unknown word
  end: ClassVar[Any] = None  # the symbol for <eos>, which has no bytes
  raw = False  # not a field; whether texts are arbitrary bytes (data.raw)
  symbols: tuple  # in order of token ids
  counts: tuple[int, ...] = ()  # occurrences of each symbol, if counted

  def __post_init__(self):
    V, n = len(self.symbols), len(self.counts)
    if len(set(self.symbols)) != V:
      raise ValueError('a symbol occurs twice')
    if n not in (0, V):
      raise ValueError(f'{n} counts for {V} symbols')
    if any(count < 0 for count in self.counts):
      raise ValueError('a count is below 0')

  def __len__(self) -> int:
    return len(self.symbols)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({len(self):,} {self.kind})'

  @abc.abstractmethod
  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, integers [n]; a UserError names source and unknown symbol."""

  def normal(self, text: bytes) -> bytes:
    """The text that `encode` reads: in Unicode's NFC, if its tokenizer asks."""
    return text

  @property
  def sizes(self) -> np.ndarray | None:
    """Bytes per symbol, int64 [V]; None if all 1 or spaces separate."""
    return None

  @functools.cached_property
  def _index(self) -> dict[Any, int]:
    """{symbol: token id}."""
    return {symbol: i for i, symbol in enumerate(self.symbols)}

  def map_ids(self, other: 'Symbols') -> np.ndarray:
    """Maps the ids of another vocabulary, int64 [its V]; -1 if missing."""
    theirs = other.symbols
    if getattr(self, 'lower', False):
      theirs = map(str.lower, theirs)
    ids = np.array([self._index.get(x, -1) for x in theirs], np.int64)
    roles = (other.eos_id, self.eos_id), (other.unk_id, self.unk_id)
    for their_id, own_id in roles:
      if their_id is not None and own_id is not None:
        ids[their_id] = own_id
    return ids

  def unknown(self, text: bytes, name: str) -> str:
    """A message if words become <unk> or the text is normalised, else ''."""
    return ''

  @property
  def eos_id(self) -> int | None:
    """Token id of the end of a line, sentence or document, or None."""
    return len(self) - 1 if self.symbols[-1:] == (self.end,) else None

  @property
  def document_end(self) -> int | None:
    """Token id of an <eos> that only ends documents, or None."""
    return self.eos_id

  def of_documents(self) -> Self:
    """The same vocabulary, with an <eos> that ends documents."""
    if self.eos_id is not None:
      return self
    return dataclasses.replace(self, symbols=(*self.symbols, self.end))

  @abc.abstractmethod
  def decoder(self) -> 'Decoder':
    """A new decoder, for the token ids of one text."""

  def decode(self, ids: Iterable[int]) -> bytes:
    """The text of token ids, see `Decoder.push`."""
    return self.decoder().push(ids)

  @property
  def line_end(self) -> int | None:
    """Token id of the newline, or None."""
    return self.eos_id

  @property
  def start(self) -> int:
    """The token that precedes a text: <eos>, else a newline, else token 0."""
    return self.eos_id or self.line_end or 0

  def to_json(self) -> dict:
    """The whole vocabulary as a dict of JSON types."""
    fields: dict[str, Any] = {'kind': self.kind}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name not in _LATER or value:
        fields[field.name] = [*value] if isinstance(value, tuple) else value
    return fields

  entry = to_json  # for the manifest of a prepared corpus

  @classmethod
  def from_json(cls, fields: Mapping) -> Self:
    """The inverse of `to_json`; ValueError for anything else."""
    if fields['kind'] != cls.kind:
      raise ValueError(f'kind is {shown(fields["kind"])}, not {cls.kind!r}')
    return cls(**_typed(cls, fields))


def _typed(kind, fields):
  """Checked fields of a vocabulary's JSON; ValueError for a wrong type."""
  typed = {}
  for field in dataclasses.fields(kind):
    name, of = field.name, typing.get_args(field.type)  # (int, ...) for a tuple
    value = fields.get(name, False if name in _LATER else None)
    valid = type(value) is (list if of else field.type)
    if not valid or (of and any(type(x) is not of[0] for x in value)):
      raise ValueError(f'{name} is {value!r:.80}')
    typed[name] = tuple(value) if of else value
  return typed


class Decoder:
  """Decodes token ids to bytes; `to_bytes` maps a symbol to its bytes."""

  def __init__(self, symbols: tuple, to_bytes: Callable[[Any], bytes]):
    self._symbols, self._to_bytes = symbols, to_bytes

  def push(self, ids: Iterable[int]) -> bytes:
    """The bytes of the next tokens, integers [n]; ValueError outside [0, V)."""
    ids = np.asarray(ids, np.int64)
    V = len(self._symbols)
    if ids.size and not 0 <= ids.min() <= ids.max() < V:
      raise ValueError(
        f'token ids from {ids.min()} to {ids.max()}, not in [0, {V})'
      )
    return b''.join(self._to_bytes(self._symbols[i]) for i in ids.tolist())
