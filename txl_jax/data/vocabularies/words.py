"""Vocabularies: what all of them offer, and those of words.

A token id is the index of its symbol in the vocabulary. A text is split at
white space, as by `str.split`. Each newline, even of a blank line, is the word
`eos` if the vocabulary has one, unless that ends documents. An unknown word is
`unk` if there is one, else an error. Text is UTF-8; other bytes are kept
(surrogateescape).
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
from txl_jax.program.errors import UserError
from txl_jax.program.settings import listed, shown

_LINE = re.compile(r'\s*(\S+)(?:\s+(\d{1,18}))?\s*')  # of a list of words
_BLOCK = 1 << 23  # bytes of a text that is read at once
_LATER = 'documents', 'raw'  # fields that are left out if they are False


@dataclasses.dataclass(frozen=True)
class Symbols(abc.ABC):
  """A vocabulary of V symbols; ValueError if one occurs twice."""

  kind: ClassVar[str]  # 'bytes', 'words', 'subwords' or 'ids', in its JSON
  unit: ClassVar[str]  # unit of the reported nll per token, bpc or ppl
  unk_id: ClassVar[int | None] = None  # token id of the unknown word
  end: ClassVar[Any] = None  # in place of the symbol <eos>, which has no bytes
  raw = False  # not a field; whether texts are any bytes, as with data.raw
  symbols: tuple  # in the order of their token ids
  counts: tuple[int, ...] = ()  # of each symbol in the text, if counted

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
    """Token ids, integers [n]; a UserError names source and what has no id."""

  @property
  def sizes(self) -> np.ndarray | None:
    """Bytes of each symbol, int64 [V]; None for words, which have spaces."""
    return None

  def places(self, other: 'Symbols') -> np.ndarray:
    """Token ids of another vocabulary's symbols, int64 [V]; -1 for none."""
    place = {symbol: i for i, symbol in enumerate(self.symbols)}
    theirs = other.symbols
    if getattr(self, 'lower', False):
      theirs = map(str.lower, theirs)
    ids = np.array([place.get(x, -1) for x in theirs], np.int64)
    roles = (other.eos_id, self.eos_id), (other.unk_id, self.unk_id)
    for there, own in roles:
      if there is not None and own is not None:
        ids[there] = own
    return ids

  def unknown(self, text: bytes, name: str) -> str:
    """Which words of a text become <unk>, in one line; '' if none do."""
    return ''

  @property
  def eos_id(self) -> int | None:
    """Token id of what ends a line, sentence or document, None for none."""
    return len(self) - 1 if self.symbols[-1:] == (self.end,) else None

  @property
  def document_end(self) -> int | None:
    """Token id of the symbol that only ends documents, None if none does."""
    return self.eos_id

  def of_documents(self) -> Self:
    """The same, with an <eos> that ends documents."""
    if self.eos_id is not None:
      return self
    return dataclasses.replace(self, symbols=(*self.symbols, self.end))

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
    """A token after which a text begins: the end of a text or of a line."""
    return self.eos_id or self.line_end or 0

  def to_json(self) -> dict:
    """The whole vocabulary as a dict of JSON types."""
    found: dict[str, Any] = {'kind': self.kind}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name not in _LATER or value:
        found[field.name] = [*value] if isinstance(value, tuple) else value
    return found

  entry = to_json  # in the manifest of a prepared corpus

  @classmethod
  def from_json(cls, fields: Mapping) -> Self:
    """The inverse of `to_json`; ValueError for anything else."""
    if fields['kind'] != cls.kind:
      raise ValueError(f'kind is {shown(fields["kind"])}, not {cls.kind!r}')
    return cls(**_typed(cls, fields))


def _typed(kind, fields):
  """{name: value} of a vocabulary's JSON; ValueError for other types."""
  found = {}
  for field in dataclasses.fields(kind):
    name, of = field.name, typing.get_args(field.type)  # (int, ...) of a tuple
    value = fields.get(name, False if name in _LATER else None)
    right = type(value) is (list if of else field.type)
    if not right or (of and any(type(x) is not of[0] for x in value)):
      raise ValueError(f'{name} is {value!r:.80}')
    found[name] = tuple(value) if of else value
  return found


class Decoder:
  """Turns token ids of a text into the bytes `shown` gives for each symbol."""

  def __init__(self, symbols: tuple, shown: Callable[[Any], bytes]):
    self._symbols, self._shown = symbols, shown

  def push(self, ids: Iterable[int]) -> bytes:
    """The bytes that integers [n] add; ValueError for one not in [0, V)."""
    ids, V = np.asarray(ids, np.int64), len(self._symbols)
    if ids.size and not 0 <= ids.min() <= ids.max() < V:
      raise ValueError(
        f'token ids from {ids.min()} to {ids.max()}, not in [0, {V})'
      )
    return b''.join(self._shown(self._symbols[i]) for i in ids.tolist())


@dataclasses.dataclass(frozen=True, repr=False)
class Words(Symbols):
  """A vocabulary of words; ValueError if one is empty or has white space."""

  kind = 'words'  # not a field
  unit = 'ppl'
  symbols: tuple[str, ...]
  counts: tuple[int, ...] = ()
  eos: str = ''  # the word for every newline, if there is one
  unk: str = ''  # the word that stands for all others, if there is one
  lower: bool = False  # whether texts are lower-cased
  documents: bool = False  # whether eos ends documents, and newlines are spaces

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
    """The words of {word: occurrences}: eos first, then by falling frequency.

    Equally frequent words keep their order. Words rarer than min_count are left
    out, as are the rarest ones beyond max_size, unless that is 0. unk stays
    however rare; its count includes the words left out.
    """
    found = collections.Counter(counts)
    lines = found.pop(eos, 0)
    room = max_size - bool(eos) - bool(unk) if max_size else None
    kept = [w for w, n in found.most_common() if n >= min_count and w != unk]
    kept = kept[:room]
    if unk:
      # This includes its own occurrences, which are not in `kept`.
      found[unk] = found.total() - sum(found[w] for w in kept)
      chosen = {unk, *kept}
      kept = [w for w, _ in found.most_common() if w in chosen]
    if eos:
      found[eos], kept = lines, [eos, *kept]
    return cls(tuple(kept), tuple(found[w] for w in kept), eos, unk, lower)

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
    """The words of a list: one a line, alone or before its count.

    eos is put first unless the list has it; unk is used if the list has it, and
    otherwise, with add_unk, put last: among the rarest ones, for cutoffs and
    sampling, however frequent it will be. A UserError names a line of `source`
    that has another form or a repeated word.
    """
    counts = {}  # -1 if a word has none
    text = data.decode('utf-8', 'surrogateescape')
    for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
      form = _LINE.fullmatch(line)
      if form is None or form[1] in counts:
        raise UserError(
          f'{source}: line {number} is {line[:80]!r}; allowed: a word that no '
          'line before it has, or such a word and its count'
        )
      counts[form[1]] = int(form[2] or -1)
    all_counted = min(counts.values()) >= 0
    if eos and eos not in counts:
      counts = {eos: 0} | counts
    if unk not in counts and add_unk:
      counts[unk] = 0
    counted = tuple(counts.values()) if all_counted else ()
    return cls(tuple(counts), counted, eos, unk if unk in counts else '', lower)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {word: i for i, word in enumerate(self.symbols)}

  @property
  def eos_id(self) -> int | None:
    """Token id of eos, None if there is none."""
    return self._ids.get(self.eos)

  @property
  def unk_id(self) -> int | None:
    """Token id of unk, None if there is none."""
    return self._ids.get(self.unk)

  @property
  def newline(self) -> str:
    """The word for a newline, '' for none."""
    return '' if self.documents else self.eos

  @property
  def line_end(self) -> int | None:
    """Token id of the word for a newline, None for none."""
    return self._ids.get(self.newline)

  @property
  def document_end(self) -> int | None:
    """See `Symbols`."""
    return self.eos_id if self.documents else None

  def of_documents(self) -> Self:
    """See `Symbols`."""
    return dataclasses.replace(self, documents=True)

  def _outside(self, text: bytes) -> list[str]:
    """The different words of a text that have no token id."""
    words = dict.fromkeys(split(text, self.newline, self.lower))
    return [word for word in words if word not in self._ids]

  def unknown(self, text: bytes, name: str) -> str:
    """See `Symbols`."""
    if self.unk_id is None or not (found := self._outside(text)):
      return ''
    words = listed([*map(repr, found)])
    return f'{name}: not in the vocabulary, read as {self.unk}: {words}'

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; a UserError has the first word without one."""
    words = split(text, self.newline, self.lower)
    other = -1 if self.unk_id is None else self.unk_id
    found = map(self._ids.get, words, itertools.repeat(other))
    ids = np.fromiter(found, np.int32, len(words))
    if other < 0 and (ids < 0).any():
      raise UserError(
        f'{source}: word {shown(self._outside(text)[0])} is not among the '
        f'{len(self)} words of the vocabulary, which has no <unk> (data.unk '
        'adds it)'
      )
    return ids

  def decoder(self) -> Decoder:
    """A new decoder; its text is readable, see `detokenise`."""
    joiner = detokenise.Joiner(self.eos)
    return Decoder(self.symbols, lambda word: _bytes(joiner.push(word)))

  def text(self) -> bytes:
    """The list of words, as `from_list` reads it."""
    counted = zip(self.symbols, map(str, self.counts))
    lines = map(' '.join, counted) if self.counts else self.symbols
    return _bytes(''.join(f'{line}\n' for line in lines))

  def entry(self) -> dict:
    """All but the words, whose list is next to the manifest."""
    sha256 = hashlib.sha256(self.text()).hexdigest()
    options = self.to_json()
    del options['symbols'], options['counts']
    return options | {'size': len(self), 'sha256': sha256}

  @classmethod
  def from_entry(cls, entry: Mapping, data: bytes) -> 'Words':
    """The inverse of `entry`, given `text`; ValueError for another list."""
    found = hashlib.sha256(data).hexdigest()
    if found != entry['sha256']:
      raise ValueError(f'sha256 {found}, expected {entry["sha256"]}')
    options = {name: entry[name] for name in ('eos', 'unk', 'lower')}
    made = cls.from_list(data, 'the list', **options)
    return made.of_documents() if entry.get('documents') else made


def _bytes(text):
  return text.encode('utf-8', 'surrogateescape')


def blocks(chunks: Iterable[bytes], size: int = _BLOCK) -> Iterator[bytes]:
  """A text in blocks of about `size` bytes, of whole lines or else words."""
  pieces, n = [], 0
  for chunk in chunks:
    pieces.append(chunk)
    n += len(chunk)
    if n < size:
      continue
    text = b''.join(pieces)
    if cut := text.rfind(b'\n') + 1 or text.rfind(b' ') + 1:
      yield text[:cut]
    pieces, n = [text[cut:]], len(text) - cut
  if text := b''.join(pieces):
    yield text


def split(text: bytes, eos: str, lower: bool) -> list[str]:
  """The words of a text; each newline is the word eos, unless that is ''."""
  string = text.decode('utf-8', 'surrogateescape')
  if lower:
    string = string.lower()
  return (string.replace('\n', f' {eos} ') if eos else string).split()
