"""Vocabularies of words: which token id stands for which word.

A text is split at white space, as `str.split` does. Each newline, also that of
a blank line, is the word `eos` where the vocabulary has one. A word outside the
vocabulary is `unk` where it has one, else an error. Text is UTF-8; other bytes
are kept (surrogateescape).
"""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Collection, Mapping

import numpy as np

from txl_jax.data import detokenise
from txl_jax.data.symbols import Decoder, Symbols
from txl_jax.errors import UserError

_LINE = re.compile(r'\s*(\S+)(?:\s+(\d+))?\s*')  # of a list of words


@dataclasses.dataclass(frozen=True)
class Words(Symbols):
  """A vocabulary of words.

  Attributes:
    symbols, counts: see `Symbols`.
    eos: the word that every newline is; '' for none.
    unk: the word that stands for all others; '' for none.
    lower: whether texts are lower-cased.

  Raises:
    ValueError: there is no word, one is empty or has white space, eos or unk
      is not among them, or see `Symbols`.
  """

  kind = 'words'  # not a field
  unit = 'ppl'

  symbols: tuple[str, ...]
  counts: tuple[int, ...] = ()
  eos: str = ''
  unk: str = ''
  lower: bool = False

  def __post_init__(self):
    super().__post_init__()
    if not self.symbols or ' '.join(self.symbols).split() != list(self.symbols):
      raise ValueError('a word is empty or has white space')
    for word in (self.eos, self.unk):
      if word and word not in self.symbols:
        raise ValueError(f'{word!r} is not among the words')

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
    """The words of a text: eos first, then the most frequent one first.

    Args:
      counts: {word: occurrences}, eos among them; equally frequent words keep
        their order.
      eos: gets id 0; '' for none.
      unk: is kept however rare, and stands at the place of its count, that
        of the words left out included; '' for none.
      lower: whether the counted text was lower-cased.
      min_count: words that occur less often are left out.
      max_size: words to keep at most, eos and unk included; 0 is all.
    """
    counts = dict(counts)
    lines = counts.pop(eos, 0)
    if unk:
      counts.setdefault(unk, 0)
    ranked = sorted(counts, key=lambda w: -counts[w])  # stable
    room = max_size - bool(eos) - bool(unk) if max_size else len(ranked)
    kept = [w for w in ranked if counts[w] >= min_count and w != unk][:room]
    if unk:
      # Its own occurrences are among those left out.
      counts[unk] = sum(counts.values()) - sum(counts[w] for w in kept)
      chosen = {unk, *kept}
      kept = [w for w in counts if w in chosen]
      kept.sort(key=lambda w: -counts[w])
    symbols = [eos, *kept] if eos else kept
    counts[eos] = lines
    return cls(
      tuple(symbols), tuple(counts[w] for w in symbols), eos, unk, lower
    )

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
    ranked: bool = False,
  ) -> 'Words':
    """The words of a list: one a line, alone or before its count.

    Args:
      data: the list.
      source: what it is, for error messages.
      eos: put before the first word unless the list has it; '' for none.
      unk: used as such where the list has it; '' for none.
      add_unk: put it after the last word unless the list has it: among the
        rarest ones, for cutoffs and sampling, however frequent it will be.
      lower: whether texts are to be lower-cased.
      ranked: whether counts must not rise, that of eos left out if it is first.

    Raises:
      UserError: a line is of another form, a word occurs twice, or a count
        rises.
    """
    counts, seen = [], {}
    lines = data.decode('utf-8', 'surrogateescape').split('\n')
    if lines[-1] == '':
      lines.pop()
    for number, line in enumerate(lines, 1):
      form = _LINE.fullmatch(line)
      if form is None:
        raise UserError(
          f'{source}: line {number} is {line[:80]!r}; allowed: a word, or a '
          'word and its count'
        )
      word, count = form.groups()
      if word in seen:
        raise UserError(
          f'{source}: line {number} has the word {word!r} of line {seen[word]} '
          'again'
        )
      seen[word] = number
      counts += [int(count)] if count else []
    symbols = list(seen)
    counted = len(counts) == len(symbols)
    if not counted and counts:
      raise UserError(f'{source}: some lines have a count and others none')
    if not symbols:
      raise UserError(f'{source} has no words')
    for i in range(1 + (symbols[0] == eos), len(counts) if ranked else 0):
      if counts[i] > counts[i - 1]:
        raise UserError(
          f'{source}: line {i + 1} has count {counts[i]} after '
          f'{counts[i - 1]}; allowed: the most frequent word first, or words '
          'without counts'
        )
    if eos and eos not in seen:
      symbols.insert(0, eos)
      counts.insert(0, 0)
    if unk not in seen:
      symbols += [unk] if add_unk else []
      counts += [0] if add_unk else []
      unk = unk if add_unk else ''
    numbers = tuple(counts) if counted else ()
    return cls(tuple(symbols), numbers, eos, unk, lower)

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

  def ids(self, words: Collection[str]) -> np.ndarray:
    """Token ids of words, int32 [n], -1 for those that have none."""
    found = map(self._ids.get, words, itertools.repeat(-1))
    return np.fromiter(found, np.int32, len(words))

  def look_up(self, text: bytes) -> np.ndarray:
    """Token ids as `encode` gives them, but -1 for words that have none."""
    return self.ids(split(text, self.eos, self.lower))

  def encode(self, text: bytes, source: str, first_line: int = 1) -> np.ndarray:
    """Token ids, int32 [n], of words and, where there is eos, of newlines.

    A UserError names the line of a word outside; the first is `first_line`.
    """
    ids = self.look_up(text)
    unknown = np.flatnonzero(ids < 0)
    if not unknown.size:
      return ids
    if self.unk_id is not None:
      ids[unknown] = self.unk_id
      return ids
    word = split(text, self.eos, self.lower)[unknown[0]]
    lines = text.split(b'\n')
    at = next(
      i for i, x in enumerate(lines) if word in split(x, '', self.lower)
    )
    raise UserError(
      f'{source}: word {word!r} in line {first_line + at} is not among the '
      f'{len(self)} words of the vocabulary, which has no <unk>; words, and '
      'punctuation beside them, are separated by spaces'
    )

  def decoder(self) -> Decoder:
    """A new decoder; its text is readable, see `detokenise`."""
    joiner = detokenise.Joiner(self.eos)
    return Decoder(self.symbols, lambda word: _bytes(joiner.push(word)))

  def text(self) -> bytes:
    """The list of the words, as `from_list` reads it."""
    counted = zip(self.symbols, map(str, self.counts))
    lines = map(' '.join, counted) if self.counts else self.symbols
    return _bytes(''.join(f'{line}\n' for line in lines))

  def entry(self) -> dict:
    """All but the words, whose list is beside the manifest."""
    return {
      'kind': 'words',
      'size': len(self),
      'sha256': hashlib.sha256(self.text()).hexdigest(),
      'eos': self.eos,
      'unk': self.unk,
      'lower': self.lower,
    }

  @classmethod
  def from_entry(cls, entry: Mapping, data: bytes) -> 'Words':
    """The inverse of `entry` and `text`.

    Raises:
      KeyError, TypeError, ValueError: the list is not the one of the entry.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != entry['sha256']:
      raise ValueError(f'sha256 {found}, expected {entry["sha256"]}')
    options = {name: entry[name] for name in ('eos', 'unk', 'lower')}
    return cls.from_list(data, 'the list', **options)


def _bytes(text):
  return text.encode('utf-8', 'surrogateescape')


def split(text: bytes, eos: str, lower: bool) -> list[str]:
  """The words of a text; each newline is the word eos, unless that is ''."""
  string = text.decode('utf-8', 'surrogateescape')
  if lower:
    string = string.lower()
  return (string.replace('\n', f' {eos} ') if eos else string).split()
