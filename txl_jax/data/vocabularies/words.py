"""The base class of vocabularies, and vocabularies of words.

A token id is the index of its symbol in the vocabulary. Text is split at white
space, like `str.split`. Each newline, blank lines included, becomes the word
`eos` if the vocabulary has one, unless `eos` ends documents. Unknown words
become `unk` if the vocabulary has it, and are an error otherwise. Text is
UTF-8; other bytes are kept (surrogateescape).
"""

import abc
import collections
import dataclasses
import functools
import hashlib
import itertools
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from txl_jax.data.vocabularies import detokenise
from txl_jax.program.errors import UserError, listed, shown

_LINE = re.compile(r'\s*(\S+)(?:\s+(\d{1,18}))?\s*')  # line of a word list
_BLOCK = 1 << 23  # bytes of text read at once
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
    if min(self.counts, default=0) < 0:
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


@dataclasses.dataclass(frozen=True, repr=False)
class Words(Symbols):
  """A vocabulary of words; ValueError if one is empty or has white space."""

  kind = 'words'  # not a field
  unit = 'ppl'
  symbols: tuple[str, ...]
  counts: tuple[int, ...] = ()
  eos: str = ''  # the word for newlines, '' if there is none
  unk: str = ''  # the word for unknown words, '' if there is none
  lower: bool = False  # whether texts are lower-cased
  documents: bool = False  # eos ends documents, and newlines are spaces

  def __post_init__(self):
    super().__post_init__()
    if not self.symbols or ' '.join(self.symbols).split() != list(self.symbols):
      raise ValueError('a word is empty or has white space')
    for word in (self.eos, self.unk):
      if word and word not in self.symbols:
        raise ValueError(f'{shown(word)} is not among the words')

  @classmethod
  def from_counts(
    cls,
    counts: Mapping[str, int],
    *,
    eos: str = '',
    unk: str = '',
    lower: bool = False,
    min_count: int = 1,
    max_size: int = 0,
  ) -> 'Words':
    """The vocabulary of {word: count}: eos, then by descending frequency.

    Equally frequent words keep their order. Words rarer than min_count are
    dropped, as are the rarest words beyond max_size, unless it is 0. unk is
    always kept; its count includes all dropped words.
    """
    total = collections.Counter(counts)
    lines = total.pop(eos, 0)
    room = max_size - bool(eos) - bool(unk) if max_size else None
    kept = [w for w, n in total.most_common() if n >= min_count and w != unk]
    kept = kept[:room]
    if unk:
      # This includes its own occurrences, as unk is not in `kept`.
      total[unk] = total.total() - sum(total[w] for w in kept)
      chosen = {unk, *kept}
      kept = [w for w, _ in total.most_common() if w in chosen]
    if eos:
      total[eos], kept = lines, [eos, *kept]
    return cls(tuple(kept), tuple(total[w] for w in kept), eos, unk, lower)

  @classmethod
  def from_list(
    cls,
    data: bytes,
    source: str,
    *,
    eos: str = '',
    unk: str = '',
    add_unk: bool = False,
    lower: bool = False,
  ) -> 'Words':
    """The vocabulary of a list, one word per line, optionally with its count.

    eos is prepended if the list lacks it. unk is used if listed; otherwise
    add_unk appends it, so that cutoffs and sampling treat it as rare. UserError
    for a malformed line or a repeated word, with the line number in `source`.
    """
    counts = {}  # -1 for words without a count
    text = data.decode('utf-8', 'surrogateescape')
    for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
      form = _LINE.fullmatch(line)
      if form is None or form[1] in counts:
        raise UserError(
          f'{source}: line {number} is {line[:80]!r}; allowed: a new word, '
          'optionally with its count'
        )
      counts[form[1]] = int(form[2] or -1)
    all_counted = min(counts.values()) >= 0
    if eos and eos not in counts:
      counts = {eos: 0} | counts
    if unk not in counts and add_unk:
      counts[unk] = 0
    counted = tuple(counts.values()) if all_counted else ()
    return cls(tuple(counts), counted, eos, unk if unk in counts else '', lower)

  @property
  def eos_id(self) -> int | None:
    """Token id of eos, or None."""
    return self._index.get(self.eos)

  @property
  def unk_id(self) -> int | None:
    """Token id of unk, or None."""
    return self._index.get(self.unk)

  @property
  def newline(self) -> str:
    """The word for a newline, or ''."""
    return '' if self.documents else self.eos

  @property
  def line_end(self) -> int | None:
    """Token id of the word for a newline, or None."""
    return self._index.get(self.newline)

  @property
  def document_end(self) -> int | None:
    """See `Symbols`."""
    return self.eos_id if self.documents else None

  def of_documents(self) -> Self:
    """See `Symbols`."""
    return dataclasses.replace(self, documents=True)

  def _outside(self, text: bytes) -> list[str]:
    """The distinct words of a text that are not in the vocabulary."""
    words = dict.fromkeys(split(text, self.newline, self.lower))
    return [word for word in words if word not in self._index]

  def unknown(self, text: bytes, name: str) -> str:
    """See `Symbols`."""
    if self.unk_id is None or not (found := self._outside(text)):
      return ''
    words = listed([*map(repr, found)])
    return f'{name}: not in the vocabulary, read as {self.unk}: {words}'

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; a UserError names the first unknown word."""
    words = split(text, self.newline, self.lower)
    other = -1 if self.unk_id is None else self.unk_id
    each = map(self._index.get, words, itertools.repeat(other))
    ids = np.fromiter(each, np.int32, len(words))
    if other < 0 and (ids < 0).any():
      raise UserError(
        f'{source}: word {shown(self._outside(text)[0])} is not among the '
        f'{len(self)} words of the vocabulary, which has no <unk> (data.unk '
        'adds it)'
      )
    return ids

  def decoder(self) -> Decoder:
    """A new decoder, which detokenises the text."""
    joiner = detokenise.Joiner(self.eos)
    return Decoder(self.symbols, lambda word: _bytes(joiner.push(word)))

  def text(self) -> bytes:
    """The list of words, in the format of `from_list`."""
    counted = zip(self.symbols, map(str, self.counts))
    lines = map(' '.join, counted) if self.counts else self.symbols
    return _bytes(''.join(f'{line}\n' for line in lines))

  def entry(self) -> dict:
    """Everything but the words, which have their own file."""
    sha256 = hashlib.sha256(self.text()).hexdigest()
    options = self.to_json()
    del options['symbols'], options['counts']
    return options | {'size': len(self), 'sha256': sha256}

  @classmethod
  def from_entry(cls, entry: Mapping, data: bytes) -> 'Words':
    """The inverse of `entry`, given `text`; ValueError for another list."""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != entry['sha256']:
      raise ValueError(f'sha256 {sha256}, expected {entry["sha256"]}')
    options = {name: entry[name] for name in ('eos', 'unk', 'lower')}
    words = cls.from_list(data, 'the list', **options)
    return words.of_documents() if entry.get('documents') else words


def _bytes(text):
  return text.encode('utf-8', 'surrogateescape')


def blocks(chunks: Iterable[bytes], size: int = _BLOCK) -> Iterator[bytes]:
  """Yields a text in blocks of about `size` bytes, cut after lines or words."""
  pieces = []
  n = 0
  for chunk in chunks:
    pieces.append(chunk)
    n += len(chunk)
    if n < size:
      continue
    text = b''.join(pieces)
    if cut := text.rfind(b'\n') + 1 or text.rfind(b' ') + 1:
      yield text[:cut]
    pieces = [text[cut:]]
    n = len(text) - cut
  if text := b''.join(pieces):
    yield text


def split(text: bytes, eos: str, lower: bool) -> list[str]:
  """Splits a text into words; newlines become the word eos unless it is ''."""
  string = text.decode('utf-8', 'surrogateescape')
  if lower:
    string = string.lower()
  return (string.replace('\n', f' {eos} ') if eos else string).split()
