"""Vocabularies of subwords, learned or of a file (see `tokenizer_files`).

A subword is one or more bytes; a text is exactly the concatenation of its
subwords, without unknown words: `encode` refuses any other. Bytes that are not
UTF-8 become tokens of one byte. A library is needed to learn subwords and to
encode text, but not to decode text or to read a prepared corpus.

If documents end with <eos>, it is the last subword, which has no bytes, is
unknown to the tokenizer and never occurs in a text.

A text is encoded in blocks, each ending before a single space between two
non-space characters. Few subwords, those of several words, contain such a
position; otherwise the tokens equal those of the whole text.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from txl_jax.data.vocabularies import tokenizer_files
from txl_jax.data.vocabularies.base import Decoder, Symbols
from txl_jax.program.errors import UserError, first_line, reason, shorten

_SIZE = 1 << 16  # bytes of a block that is encoded at once
_LONGEST = 1 << 22  # maximum bytes of a block without a position to cut
_PLACE = re.compile(rb'(?<=\S) (?=\S)')  # where blocks are cut
_RUN = re.compile(r'\S{256}')  # longer runs without spaces make learning slow
_ODD = re.compile('([\udc80-\udcff]+)')  # bytes that are not UTF-8
_ALLOWED = (
  "allowed: a tokenizer.json, as transformers' AutoTokenizer.save_pretrained "
  'writes it, a .model of SentencePiece, or a .tiktoken'
)


@dataclasses.dataclass(frozen=True, repr=False)
class Subwords(Symbols):
  """A vocabulary of subwords, defined by the JSON of a tokenizer."""

  kind = 'subwords'  # not a field
  unit = 'ppl'
  end = b''
  symbols: tuple[bytes, ...]
  counts: tuple[int, ...] = ()
  tokenizer: str = ''  # the JSON, in canonical form

  @classmethod
  def from_file(cls, data: bytes, name: str) -> Self:
    """Reads the file of a tokenizer or the vocabulary.json of a run.

    UserError, with the file's `name`, if it has no usable tokenizer.
    """
    try:
      fields = tokenizer_files.parse(data)
      is_ours = fields.get('kind') == cls.kind
      return cls.from_fields(fields.get('tokenizer') if is_ours else fields)
    except (UserError, ValueError, RuntimeError) as e:
      raise UserError(f'{name}: {reason(e)}; {_ALLOWED}') from e

  @classmethod
  def from_fields(cls, fields: Any) -> Self:
    """Reads the JSON of a tokenizer; ValueError if it is not usable."""
    symbols = tokenizer_files.symbols(fields)
    text = json.dumps(fields, ensure_ascii=False, separators=(',', ':'))
    return cls(symbols, (), text)

  @functools.cached_property
  def _encoder(self) -> Any:
    return tokenizer_files.encoder(self.tokenizer)

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Bytes of each subword, int64 [V]."""
    return np.fromiter(map(len, self.symbols), np.int64, len(self))

  @functools.cached_property
  def of_bytes(self) -> list[int]:
    """Token id of each of the 256 byte values; -1 if it has none."""
    return [self._index.get(bytes([value]), -1) for value in range(256)]

  @functools.cached_property
  def _types(self) -> tuple[list[str], list[str]]:
    """The types of the tokenizer's normalisers and decoders."""
    fields = json.loads(self.tokenizer)
    types = tokenizer_files.types
    return types(fields.get('normalizer')), types(fields['decoder'])

  def normal(self, text: bytes) -> bytes:
    """See `Symbols`; a first word gets a space if all words begin with one."""
    normalisers, decoders = self._types
    if 'NFC' in normalisers:
      string = text.decode('utf-8', 'surrogateescape')
      string = unicodedata.normalize('NFC', string)
      text = string.encode('utf-8', 'surrogateescape')
    is_spaced = not tokenizer_files.SPACED.isdisjoint(decoders)
    return b' ' + text if is_spaced and text[:1] not in (b'', b' ') else text

  def unknown(self, text: bytes, name: str) -> str:
    """A message saying that a text is not in NFC; '' if it is."""
    is_same = self.normal(text).removeprefix(b' ') == text.removeprefix(b' ')
    return '' if is_same else f'{name}: normalised by NFC, as the tokenizer has'

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; UserError if they do not give `normal(text)`."""
    text = self.normal(text)
    pieces = []
    for block in blocks([text], _SIZE, whole=-1 in self.of_bytes):
      pieces += _ODD.split(block.decode('utf-8', 'surrogateescape'))
    try:
      encoded = [*self._encoder(['' if _ODD.match(x) else x for x in pieces])]
    except (KeyboardInterrupt, MemoryError, UserError):
      raise
    except BaseException as e:  # Rust's panics are no Exception
      line = f'{source}: the tokenizer cannot be used: {first_line(e)}'
      raise UserError(line) from e
    parts = (
      [self.of_bytes[ord(c) - 0xDC00] for c in x] if _ODD.match(x) else ids
      for x, ids in zip(pieces, encoded)
    )
    ids = np.fromiter(itertools.chain.from_iterable(parts), np.int32)
    # A byte without a token has the id -1.
    if (found := self.decode(ids[ids >= 0])) != text:
      kinds = shorten(', '.join(self._types[0]))
      raise UserError(
        f'{source}: decoding the tokens does not reproduce the text: '
        f'{_difference(text, found)} (normaliser: {kinds}); allowed: a '
        'tokenizer that changes nothing'
      )
    return ids

  def decoder(self) -> Decoder:
    """A new decoder; a character may span several subwords."""
    return Decoder(self.symbols, bytes)

  @property
  def line_end(self) -> int | None:
    """Token id of the newline; None if other subwords contain newlines."""
    ends = [i for i, symbol in enumerate(self.symbols) if b'\n' in symbol]
    return ends[0] if [self.symbols[i] for i in ends] == [b'\n'] else None

  @property
  def start(self) -> int:
    """<eos>, else a newline, else token 0."""
    return max(self.of_bytes[10], 0) if self.eos_id is None else self.eos_id

  def to_json(self) -> dict:
    """The whole vocabulary, with the JSON of the tokenizer."""
    fields = {'kind': self.kind, 'tokenizer': json.loads(self.tokenizer)}
    return fields if self.eos_id is None else fields | {'documents': True}

  def entry(self) -> dict:
    """Everything but the tokenizer, which has its own file."""
    fields = self.to_json()
    del fields['tokenizer']
    return fields | {'size': len(self), 'sha256': self.sha256()}

  def sha256(self) -> str:
    """Hex SHA-256 of the tokenizer."""
    return hashlib.sha256(self.tokenizer.encode()).hexdigest()

  @classmethod
  def from_json(cls, fields: Mapping) -> Self:
    """The inverse of `to_json`; ValueError for anything else."""
    words = cls.from_fields(fields.get('tokenizer'))
    return words.of_documents() if fields.get('documents') is True else words

  @classmethod
  def from_entry(cls, entry: Mapping, data: bytes) -> Self:
    """The inverse of `entry`, given the file; ValueError for another file."""
    words = cls.from_json({**entry, 'tokenizer': json.loads(data)})
    if words.sha256() != entry['sha256']:
      raise ValueError(f'sha256 {words.sha256()}, expected {entry["sha256"]}')
    return words


def learn(chunks: Iterable[bytes], max_size: int) -> Subwords:
  """Learns a BPE vocabulary: 256 bytes, then merges, most frequent first.

  Learns at most max_size >= 256 subwords; the result is deterministic. A
  newline is always a separate token. The library draws its own progress bar,
  unless rich is drawing on the terminal.
  """
  library = tokenizer_files.library('tokenizers')
  split = library.pre_tokenizers.Split('\n', 'isolated')
  levels = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer = library.Tokenizer(library.models.BPE())
  tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([split, levels])
  tokenizer.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
    vocab_size=max_size,
    min_frequency=2,
    initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    # While rich draws, it replaces sys.stderr by an object of another class.
    show_progress=type(sys.stderr) is io.TextIOWrapper and sys.stderr.isatty(),
  )
  tokenizer.train_from_iterator(_strings(chunks), trainer)
  return Subwords.from_fields(json.loads(tokenizer.to_str()))


def _strings(chunks) -> Iterator[str]:
  """Yields a text in pieces, without bytes that are not UTF-8.

  Long runs without white space are cut, since the library treats each as one
  word, and merging takes time quadratic in its length.
  """
  for block in blocks(chunks, _SIZE):
    for text in _ODD.split(block.decode('utf-8', 'surrogateescape'))[::2]:
      cuts = [0, *(run.end() for run in _RUN.finditer(text)), len(text)]
      yield from (text[i:j] for i, j in itertools.pairwise(cuts))


def blocks(chunks: Iterable[bytes], size: int, whole=False) -> Iterator[bytes]:
  """Yields a text in blocks of about `size` bytes that split no subword.

  A long block without a position to cut is cut anywhere, with `whole` between
  characters: its tokens may differ from those of the whole text.
  """
  rest, seen = bytearray(), size  # no cut is possible before `seen`
  for chunk in chunks:
    rest += chunk
    while len(rest) > seen:
      if match := _PLACE.search(rest, seen, _LONGEST):
        cut = match.start()
      elif len(rest) > _LONGEST:
        back = (n for n in range(4) if rest[_LONGEST - n] & 0xC0 != 0x80)
        cut = _LONGEST - (next(back, 0) if whole else 0)
      else:
        seen = max(size, len(rest) - 1)
        break
      yield bytes(rest[:cut])
      del rest[:cut]
      seen = size
  if rest:
    yield bytes(rest)


def _difference(*texts: bytes) -> str:
  """The first difference of a text and its decoded tokens."""
  strings = [text.decode('utf-8', 'surrogateescape') for text in texts]
  pairs = enumerate(itertools.zip_longest(*strings))
  at = next(i for i, (x, y) in pairs if x != y)
  return ' becomes '.join(ascii(x[max(at - 20, 0) : at + 20]) for x in strings)
