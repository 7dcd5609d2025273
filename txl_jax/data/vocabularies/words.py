"""Vocabularies of words.

Text is split at white space, like `str.split`. Each newline, blank lines
included, becomes the word `eos` if the vocabulary has one, unless `eos` ends
documents. Unknown words become `unk` if the vocabulary has it, and are an error
otherwise. Text is UTF-8; other bytes are kept (surrogateescape).
"""

import collections
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import numpy as np

from txl_jax.data.vocabularies import detokenise
from txl_jax.data.vocabularies.base import Decoder, Symbols
from txl_jax.program.errors import UserError, listed, shown

_LINE = re.compile(r'\s*(\S+)(?:\s+(\d{1,18}))?\s*')  # line of a word list
_BLOCK = 1 << 23  # bytes of text read at once


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
    counts = {}  # as digits; None for words without a count
    text = data.decode('utf-8', 'surrogateescape')
    for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
      form = _LINE.fullmatch(line)
      if form is None or form[1] in counts:
        raise UserError(
          f'{source}: line {number} is {line[:80]!r}; allowed: a new word, '
          'optionally with its count'
        )
      counts[form[1]] = form[2]
    all_counted = None not in counts.values()
    if eos and eos not in counts:
      counts = {eos: '0'} | counts
    if unk not in counts and add_unk:
      counts[unk] = '0'
    counted = tuple(map(int, counts.values())) if all_counted else ()
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
