"""Vocabularies of subwords: byte-level BPE, by the library `tokenizers`.

A subword is one byte or more, and every text is the bytes of its subwords, end
to end: nothing is lost, nothing is unknown. Bytes that are not UTF-8 are tokens
of one byte each. The library is needed to learn subwords and to encode a text,
not to decode one or to use what is encoded.

Where documents end with <eos>, it is the last subword, which has no bytes; the
tokenizer does not know it, and no text contains it.

A text is encoded in blocks that end before a single space between two other
characters. No subword spans such a place, so the tokens are those of the whole
text.
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
from txl_jax.program.errors import UserError, first_line
from txl_jax.program.settings import cut

_SIZE = 1 << 16  # bytes of a block that is encoded at once
_LONGEST = 1 << 22  # bytes of a block with no place to cut it
_PLACE = re.compile(rb'(?<=\S) (?=\S)')  # that no subword spans
_RUN = re.compile(r'\S{256}')  # without white space; longer ones learn slowly
_ODD = re.compile('([\udc80-\udcff]+)')  # bytes that are not UTF-8
_ALLOWED = 'allowed: a tokenizer.json of a byte-level BPE'


@dataclasses.dataclass(frozen=True, repr=False)
class Subwords(Symbols):
  """Subwords, as bytes, and the tokenizer.json that defines them."""

  kind = 'subwords'  # not a field
  unit = 'ppl'
  end = b''
  symbols: tuple[bytes, ...]
  counts: tuple[int, ...] = ()
  tokenizer: str = ''  # the JSON, in a canonical form

  @classmethod
  def from_fields(cls, fields: Any) -> Self:
    """Subwords of a parsed tokenizer.json; ValueError if not byte-level BPE."""
    try:
      found = _symbols(fields)
    except (TypeError, LookupError, AttributeError) as e:
      raise ValueError(f'it is no tokenizer of the library: {e}') from e
    text = json.dumps(fields, ensure_ascii=False, separators=(',', ':'))
    return cls(found, (), text)

  @functools.cached_property
  def _tokenizer(self) -> Any:
    library = _library()
    try:
      made = library.Tokenizer.from_str(self.tokenizer)
    except Exception as e:  # the library raises nothing more specific
      raise UserError(f'the tokenizer cannot be used: {first_line(e)}') from e
    made.no_truncation()
    made.no_padding()
    return made

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Bytes of each subword, int64 [V]."""
    return np.fromiter(map(len, self.symbols), np.int64, len(self))

  @functools.cached_property
  def _of_bytes(self) -> np.ndarray:
    """Token ids of the 256 byte values, int32 [256]; -1 for none."""
    place = {symbol: i for i, symbol in enumerate(self.symbols)}
    found = (place.get(bytes([value]), -1) for value in range(256))
    return np.fromiter(found, np.int32, 256)

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; UserError if they do not reproduce the text."""
    pieces = []
    for block in blocks([text], _SIZE):
      pieces += _ODD.split(block.decode('utf-8', 'surrogateescape'))
    texts = ['' if _ODD.match(piece) else piece for piece in pieces]
    encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    found = [np.zeros([0], np.int32)]
    for piece, x in zip(pieces, encoded):
      if _ODD.match(piece):
        data = piece.encode('utf-8', 'surrogateescape')
        found.append(self._of_bytes[np.frombuffer(data, np.uint8)])
      else:
        found.append(np.asarray(x.ids, np.int32))
    ids = np.concatenate(found)
    # A byte without a token has the id -1.
    if (ids < 0).any() or self.decode(ids) != text:
      raise UserError(
        f'{source}: the tokenizer does not give the text back; {_ALLOWED} that '
        'changes nothing'
      )
    return ids

  def decoder(self) -> Decoder:
    """A new decoder; a character may be the bytes of several subwords."""
    return Decoder(self.symbols, bytes)

  @property
  def line_end(self) -> int | None:
    """Token id of a newline; None if other subwords contain one."""
    ends = [i for i, symbol in enumerate(self.symbols) if b'\n' in symbol]
    return ends[0] if [self.symbols[i] for i in ends] == [b'\n'] else None

  @property
  def start(self) -> int:
    """The end of a document, else a newline, else token 0."""
    if self.eos_id is not None:
      return self.eos_id
    return max(int(self._of_bytes[10]), 0)

  def to_json(self) -> dict:
    """The whole vocabulary: the contents of tokenizer.json."""
    found = {'kind': self.kind, 'tokenizer': json.loads(self.tokenizer)}
    return found if self.eos_id is None else found | {'documents': True}

  def entry(self) -> dict:
    """All but the tokenizer, whose file is next to the manifest."""
    found = self.to_json()
    del found['tokenizer']
    return found | {'size': len(self), 'sha256': self.sha256()}

  def sha256(self) -> str:
    """The SHA-256 of the tokenizer, in hex."""
    return hashlib.sha256(self.tokenizer.encode()).hexdigest()

  @classmethod
  def from_json(cls, fields: Mapping) -> Self:
    """The inverse of `to_json`; ValueError for anything else."""
    made = cls.from_fields(fields.get('tokenizer'))
    return made.of_documents() if fields.get('documents') is True else made

  @classmethod
  def from_entry(cls, entry: Mapping, data: bytes) -> Self:
    """The inverse of `entry`, given the file; ValueError for another file."""
    made = cls.from_json({**entry, 'tokenizer': json.loads(data)})
    if made.sha256() != entry['sha256']:
      raise ValueError(f'sha256 {made.sha256()}, expected {entry["sha256"]}')
    return made


def learn(chunks: Iterable[bytes], max_size: int) -> Subwords:
  """The subwords of a text: 256 bytes, then pairs, the most frequent first.

  On a terminal where nothing else draws, the library shows its progress.
  There are at most max_size, which is at least 256, and learning from the same
  text always gives the same ones. A newline is always a token of its own.
  """
  library = _library()
  split = library.pre_tokenizers.Split('\n', 'isolated')
  levels = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made = library.Tokenizer(library.models.BPE())
  made.pre_tokenizer = library.pre_tokenizers.Sequence([split, levels])
  made.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
    vocab_size=max_size,
    min_frequency=2,
    initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    # While a console draws, rich has put another class in its place.
    show_progress=type(sys.stderr) is io.TextIOWrapper and sys.stderr.isatty(),
  )
  made.train_from_iterator(_strings(chunks), trainer)
  return Subwords.from_fields(json.loads(made.to_str()))


def _strings(chunks) -> Iterator[str]:
  """A text in pieces, without bytes that are not UTF-8.

  Long runs without white space are cut: the library takes each for a word, and
  the square of its length to merge pairs in it.
  """
  for block in blocks(chunks, _SIZE):
    for text in _ODD.split(block.decode('utf-8', 'surrogateescape'))[::2]:
      cuts = [0, *(run.end() for run in _RUN.finditer(text)), len(text)]
      yield from (text[i:j] for i, j in itertools.pairwise(cuts))


def blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
  """A text in blocks of about `size` bytes, cut where no subword spans.

  A block without such a place is cut anywhere once it has become long: the
  tokens there may differ.
  """
  rest, seen = bytearray(), size  # up to which there is no place
  for chunk in chunks:
    rest += chunk
    while len(rest) > seen:
      if found := _PLACE.search(rest, seen, _LONGEST):
        cut = found.start()
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
  """The package `tokenizers`; UserError if it is not installed."""
  try:
    import tokenizers
  except ImportError as e:
    raise UserError(
      "subwords need the package tokenizers; run: pip install 'txl_jax[text]'"
    ) from e
  return tokenizers


def _symbols(fields) -> tuple[bytes, ...]:
  """The bytes of each token id of a tokenizer.json; ValueError if not BPE."""
  model, decoder = fields['model'], fields['decoder'] or {}
  if model.get('type', 'BPE') != 'BPE' or decoder.get('type') != 'ByteLevel':
    raise ValueError(
      f'it is a {cut(str(model.get("type")))} with the decoder '
      f'{cut(str(decoder.get("type")))}; {_ALLOWED}'
    )
  if fields.get('normalizer') is not None:
    raise ValueError(f'it normalises the text; {_ALLOWED} that changes nothing')
  ids, value = {}, _byte_values()
  for token, i in model['vocab'].items():
    ids[i] = bytes(value[c] for c in token)
  for added in fields.get('added_tokens') or ():
    ids[added['id']] = added['content'].encode()
  if not ids or [*sorted(ids)] != [*range(len(ids))] or b'' in ids.values():
    raise ValueError('its ids are not 0, 1, 2 and so on, each of some bytes')
  return tuple(ids[i] for i in range(len(ids)))


def _byte_values() -> dict[str, int]:
  """The byte that each character of a byte-level BPE stands for, as in GPT-2.

  Printable bytes are characters themselves; the others use those from 256 on.
  """
  themselves = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [value for value in range(256) if value not in themselves]
  found = {chr(value): value for value in themselves}
  return found | {chr(256 + i): value for i, value in enumerate(others)}
