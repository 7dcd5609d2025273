"""Vocabularies of subwords: byte-level BPE, with the library `tokenizers`.

A subword is one or more bytes; a text is exactly the concatenation of its
subwords, without unknown words. Bytes that are not UTF-8 become tokens of one
byte. The library is needed to learn subwords and to encode text, but not to
decode text or to read a prepared corpus.

If documents end with <eos>, it is the last subword, which has no bytes, is
unknown to the tokenizer and never occurs in a text.

A text is encoded in blocks, each ending before a single space between two
non-space characters. No subword contains such a position, so the tokens equal
those of the whole text.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from txl_jax.data.vocabularies.words import Decoder, Symbols
from txl_jax.program import files
from txl_jax.program.errors import UserError, first_line, reason, shorten

_SIZE = 1 << 16  # bytes of a block that is encoded at once
_LONGEST = 1 << 22  # maximum bytes of a block without a position to cut
_PLACE = re.compile(rb'(?<=\S) (?=\S)')  # where blocks are cut
_RUN = re.compile(r'\S{256}')  # longer runs without spaces make learning slow
_ODD = re.compile('([\udc80-\udcff]+)')  # bytes that are not UTF-8
_ALLOWED = 'allowed: a tokenizer.json of a byte-level BPE'
_HOW = "as transformers' AutoTokenizer.save_pretrained writes it"


@dataclasses.dataclass(frozen=True, repr=False)
class Subwords(Symbols):
  """A vocabulary of subwords, defined by a tokenizer.json."""

  kind = 'subwords'  # not a field
  unit = 'ppl'
  end = b''
  symbols: tuple[bytes, ...]
  counts: tuple[int, ...] = ()
  tokenizer: str = ''  # the JSON, in canonical form

  @classmethod
  def from_file(cls, data: bytes, name: str) -> Self:
    """Reads a tokenizer.json or the vocabulary.json of a run.

    UserError, with the file's `name`, if it has no byte-level BPE.
    """
    try:
      fields = files.parse_json(data, 'it')
      is_ours = fields.get('kind') == cls.kind
      return cls.from_fields(fields.get('tokenizer') if is_ours else fields)
    except (UserError, ValueError) as e:
      raise UserError(f'{name}: {reason(e)}; {_ALLOWED}, {_HOW}') from e

  @classmethod
  def from_fields(cls, fields: Any) -> Self:
    """Reads a parsed tokenizer.json; ValueError if not byte-level BPE."""
    try:
      symbols = _symbols(fields)
    except (TypeError, LookupError, AttributeError) as e:
      raise ValueError(f'it is not a tokenizer.json: {e!r}') from e
    text = json.dumps(fields, ensure_ascii=False, separators=(',', ':'))
    return cls(symbols, (), text)

  @functools.cached_property
  def _tokenizer(self) -> Any:
    library = _library()
    try:
      made = library.Tokenizer.from_str(self.tokenizer)
    except KeyboardInterrupt:
      raise
    except BaseException as e:  # Rust's panics are no Exception
      raise UserError(f'the tokenizer cannot be used: {first_line(e)}') from e
    made.no_truncation()
    made.no_padding()
    made.model.dropout = None  # it skips merges at random
    return made

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Bytes of each subword, int64 [V]."""
    return np.fromiter(map(len, self.symbols), np.int64, len(self))

  @functools.cached_property
  def _of_bytes(self) -> np.ndarray:
    """Token id of each byte value, int32 [256]; -1 if it has none."""
    each = (self._index.get(bytes([value]), -1) for value in range(256))
    return np.fromiter(each, np.int32, 256)

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; UserError if they do not reproduce the text."""
    pieces = []
    for block in blocks([text], _SIZE):
      pieces += _ODD.split(block.decode('utf-8', 'surrogateescape'))
    texts = ['' if _ODD.match(piece) else piece for piece in pieces]
    encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    parts = [np.zeros([0], np.int32)]
    for piece, x in zip(pieces, encoded):
      if _ODD.match(piece):
        data = piece.encode('utf-8', 'surrogateescape')
        parts.append(self._of_bytes[np.frombuffer(data, np.uint8)])
      else:
        parts.append(np.asarray(x.ids, np.int32))
    ids = np.concatenate(parts)
    # A byte without a token has the id -1.
    if (found := self.decode(ids[ids >= 0])) != text:
      kind = (json.loads(self.tokenizer).get('normalizer') or {}).get('type')
      raise UserError(
        f'{source}: decoding the tokens does not reproduce the text: '
        f'{_difference(text, found)} (normaliser: {shorten(str(kind))}); '
        f'{_ALLOWED} that changes nothing'
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
    if self.eos_id is not None:
      return self.eos_id
    return max(int(self._of_bytes[10]), 0)

  def to_json(self) -> dict:
    """The whole vocabulary, with the content of tokenizer.json."""
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
  library = _library()
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


def blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
  """Yields a text in blocks of about `size` bytes that split no subword.

  A long block without a position to cut is cut anywhere: its tokens may differ
  from those of the whole text.
  """
  rest, seen = bytearray(), size  # no cut is possible before `seen`
  for chunk in chunks:
    rest += chunk
    while len(rest) > seen:
      if match := _PLACE.search(rest, seen, _LONGEST):
        cut = match.start()
      elif len(rest) >= _LONGEST:
        cut = _LONGEST
      else:
        seen = max(size, len(rest) - 1)
        break
      yield bytes(rest[:cut])
      del rest[:cut]
      seen = size
  if rest:
    yield bytes(rest)


def _library() -> Any:
  """Imports `tokenizers`; UserError if it is not installed."""
  try:
    import tokenizers
  except ImportError as e:
    raise UserError(
      "subwords need the package tokenizers; run: pip install 'txl_jax[text]'"
    ) from e
  return tokenizers


def _symbols(fields) -> tuple[bytes, ...]:
  """Bytes of each token id in a tokenizer.json; ValueError if not BPE."""
  model, decoder = fields['model'], fields['decoder'] or {}
  if model.get('type', 'BPE') != 'BPE' or decoder.get('type') != 'ByteLevel':
    raise ValueError(
      f'it is a {shorten(str(model.get("type")))} with the decoder '
      f'{shorten(str(decoder.get("type")))}'
    )
  ids, value = {}, _byte_values()
  for token, i in model['vocab'].items():
    ids[i] = bytes(value[c] for c in token)
  for added in fields.get('added_tokens') or ():
    ids[added['id']] = added['content'].encode()
  for i in range(max(len(ids), 1)):
    if not ids.get(i):
      raise ValueError(f'its ids are not 0, 1, 2 and so on: {i} has no name')
  return tuple(ids[i] for i in range(len(ids)))


def _difference(*texts: bytes) -> str:
  """The first difference of a text and its decoded tokens."""
  strings = [text.decode('utf-8', 'surrogateescape') for text in texts]
  pairs = enumerate(itertools.zip_longest(*strings))
  at = next(i for i, (x, y) in pairs if x != y)
  return ' becomes '.join(ascii(x[max(at - 20, 0) : at + 20]) for x in strings)


def _byte_values() -> dict[str, int]:
  """Maps each character of a byte-level BPE to its byte, as in GPT-2.

  Printable bytes map to themselves; the others are characters from 256 on.
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [value for value in range(256) if value not in printable]
  values = {chr(value): value for value in printable}
  return values | {chr(256 + i): value for i, value in enumerate(others)}
