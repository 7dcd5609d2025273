"""Writing the tokens of a corpus, block by block.

If a text of words consists of several local files, each is whole lines: a file
does not continue the last line of the one before.
"""

import codecs
import functools
import hashlib
import io
import itertools
import pathlib
import sys
from typing import NoReturn

import numpy as np

from txl_jax.data import sentences
from txl_jax.data.corpora import counting, documents, local
from txl_jax.data.options import LOCAL, SUBWORDS, Data
from txl_jax.data.prepared import SENTENCES, TOKENS, token_dtype
from txl_jax.data.vocabularies import subwords
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.vocabulary import (
  AnyVocabulary,
  Vocabulary,
  count_bytes,
)
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import files
from txl_jax.program.errors import UserError

_BLOCK = 1 << 20  # bytes turned into subwords at once


class File(io.BufferedWriter):
  """A file of `size` numbers that is being written."""

  def __init__(self, path: pathlib.Path):
    super().__init__(io.FileIO(path, 'w'))
    self._path, self._digest, self.size = path, hashlib.sha256(), 0

  def write(self, array: np.ndarray) -> int:
    """Appends an array."""
    block = array.tobytes()
    self._digest.update(block)
    self.size += array.size
    with files.naming(self._path):
      return super().write(block)

  def close(self) -> None:
    """Writes the remaining numbers and closes the file."""
    with files.naming(self._path):
      super().close()

  def sha256(self) -> str:
    """The SHA-256 of what was written, in hex."""
    return self._digest.hexdigest()


def write(
  asked: Data,
  splits: local.Splits,
  folder: pathlib.Path,
  processes: int,
  listed: Words | Subwords | None,
) -> tuple[AnyVocabulary, dict]:
  """Writes token ids, and where sentences start, into a folder.

  Returns the vocabulary, counted or learned unless it is given, and for each
  split its entry in the manifest. UserError: no word is left, a byte or word
  has no token id, or the list lacks most words.
  """
  if asked.subwords:
    return _write_subwords(asked, splits, folder, listed)
  if not asked.words:
    return _write_bytes(asked, splits, folder)
  assert not isinstance(listed, Subwords)
  processes = processes or counting.processes_by_default()
  vocabulary = listed or _count(asked, splits, processes)
  texts = {s: _Text(asked, s, x.parts) for s, x in splits.items()}
  for text in texts.values():
    blocks = counting.blocks(text.read('reading'))
    ids = counting.in_order(vocabulary.look_up, blocks, processes)
    text.write(vocabulary, folder, ids)
  train = texts['train']
  if listed is not None:
    unknown = train.entry['unknown']
    words = train.words - (train.entry['lines'] if listed.eos else 0)
    if 2 * unknown > words:
      raise UserError(
        f'data.vocab_file: {asked.vocab_file}: {unknown / words:.1%} of the '
        f'{words} words of the training split are not in it; allowed: a list '
        'of words of this text, which has at least half of them'
      )
  if asked.ends_documents:
    vocabulary = vocabulary.of_documents()
  if vocabulary.unk and not train.unks:
    # No training can make it probable.
    warning = f'warning: {vocabulary.unk} never occurs in train'
    if listed is None:
      warning += '; a larger --min_count (data.min_count) trains it'
    print(warning, file=sys.stderr)
  return vocabulary, {split: text.entry for split, text in texts.items()}


def _write_bytes(asked, splits, folder):
  """The same for bytes; for a published corpus only those that occur."""
  if asked.corpus in LOCAL or asked.alphabet == 'bytes':
    vocabulary = Vocabulary.all_bytes(asked.ends_documents)
  else:
    text = itertools.chain.from_iterable(read() for read in splits.values())
    dropped = b'\n' if asked.newline == 'drop' else b''
    vocabulary = Vocabulary.from_counts(count_bytes(text), dropped)
  return vocabulary, {
    split: _write_pieces(asked, split, read, folder, vocabulary, iter, iter)
    for split, read in splits.items()
  }


def _write_subwords(asked, splits, folder, given):
  """The same for subwords, which are learned unless they are given."""
  vocabulary = given
  if vocabulary is None:
    shown = functools.partial(counting.progress, what='learning subwords')
    train, most = splits['train'], asked.max_size or SUBWORDS
    if asked.ends_documents:  # without what separates them
      each = documents.each(asked, train, shown)
      text = itertools.chain.from_iterable(each)
      vocabulary = subwords.learn(text, most - 1)
    else:
      vocabulary = subwords.learn(shown(train()), most)
  if asked.ends_documents:
    vocabulary = vocabulary.of_documents()
  blocks, entries = functools.partial(subwords.blocks, size=_BLOCK), {}
  for split, read in splits.items():
    shown = functools.partial(counting.progress, what=f'reading {split}')
    more = vocabulary, shown, blocks
    entries[split] = _write_pieces(asked, split, read, folder, *more)
  return vocabulary, entries


def _write_pieces(asked, split, read, folder, vocabulary, shown, cut):
  """Writes a split that is encoded piece by piece; returns its entry.

  The pieces are what `cut` makes from a text in chunks, or from each document.
  """
  size = 0

  def encoded(chunks):
    nonlocal size
    for piece in cut(chunks):
      size += len(piece)
      yield vocabulary.encode(piece, split)

  if asked.ends_documents:
    end = np.array([vocabulary.eos_id], np.int32)
    each = documents.each(asked, read, shown)
    parts = (itertools.chain(encoded(pieces), [end]) for pieces in each)
    ids = _joined(itertools.chain.from_iterable(parts))
  else:
    ids = encoded(shown(read()))
  entry = _write_tokens(asked, split, folder, vocabulary, ids)
  return entry | {'bytes': size}


def _joined(parts):
  """Joins arrays into fewer, larger ones, since documents may be short."""
  held, count = [], 0
  for part in parts:
    held.append(part.astype(np.int32))
    count += part.size
    if count >= _BLOCK:
      yield np.concatenate(held)
      held, count = [], 0
  if held:
    yield np.concatenate(held)


def _write_tokens(asked, split, folder, vocabulary, parts):
  """Writes token ids and where sentences or documents start; returns entry."""
  dtype, entry = token_dtype(len(vocabulary)), {}
  with File(folder / TOKENS.format(split)) as tokens:
    if asked.corpus != 'lm1b' and not asked.ends_documents:
      for ids in parts:
        tokens.write(ids.astype(dtype))
    else:
      laid_out = sentences.lay_out(parts, vocabulary.start, asked.boundaries)
      with File(folder / SENTENCES.format(split)) as starts:
        for ids, where in laid_out:
          tokens.write(ids.astype(dtype))
          starts.write(where.astype(np.int64))
      entry['sentences'] = starts.size - 1
      entry['sentences_sha256'] = starts.sha256()
  return {'tokens': tokens.size, 'sha256': tokens.sha256(), **entry}


def _count(asked, splits, processes):
  """The vocabulary of a text; of Penn Treebank, of all its splits."""
  ptb = asked.corpus == 'ptb'
  eos, lower = '<eos>' if asked.eos else '', asked.lower or ptb
  counted = splits if ptb else {'train': splits['train']}
  texts = (
    _Text(asked, s, x.parts).read('counting') for s, x in counted.items()
  )
  text = itertools.chain.from_iterable(texts)
  counts = counting.count(text, eos, lower, processes)
  least, most = asked.min_count, asked.max_size
  others = (n for word, n in counts.items() if word not in (eos, '<unk>'))
  if max(others, default=0) < least:
    raise UserError(
      f'{asked.path or asked.corpus}: no word is in the training split {least} '
      'times; allowed: a text with words, and a data.min_count that leaves some'
    )
  unk = '<unk>' if asked.unk or '<unk>' in counts else ''
  return Words.from_counts(
    counts, eos=eos, unk=unk, lower=lower, min_count=least, max_size=most
  )


class _Text:
  """A split of a corpus of words, measured while it is read."""

  def __init__(self, asked, split, parts):
    self._asked, self._split, self._parts = asked, split, parts
    # For the manifest; lines are newlines, unknown words have no token id.
    self.entry: dict = dict.fromkeys(('tokens', 'bytes', 'lines', 'unknown'), 0)
    self.words = 0  # including <eos>
    self.unks = 0  # unknown words, and those that are unk in the text itself

  def read(self, what):
    """The text in chunks, while `what` is done to it."""
    shown = functools.partial(counting.progress, what=f'{what} {self._split}')
    if self._asked.ends_documents:
      return self._lines(local.Split(tuple(self._parts)), shown)
    return shown(itertools.chain.from_iterable(map(self._chunks, self._parts)))

  def write(self, vocabulary, folder, parts):
    """Writes token ids, -1 for unknown words, and completes the entry."""
    into = self._asked, self._split, folder, vocabulary
    self.entry |= _write_tokens(*into, self._known(vocabulary, parts))

  def _lines(self, split, shown):
    """Documents as lines: newlines become spaces, and ends become newlines."""
    for pieces in documents.each(self._asked, split, shown):
      first = True
      for piece in pieces:
        self.entry['bytes'] += len(piece)
        piece = piece.removeprefix(codecs.BOM_UTF8) if first else piece
        yield piece.replace(b'\n', b' ')
        first = False
      self.entry['lines'] += 1
      yield b'\n'

  def _chunks(self, part):
    """A part without a byte-order mark; a file's last line gets a newline."""
    last, first = b'', part.begins
    for chunk in part():
      self.entry['bytes'] += len(chunk)
      if first:
        chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
      self.entry['lines'] += chunk.count(b'\n')
      last = chunk[-1:] or last
      yield chunk
    if part.ends and last not in (b'', b'\n'):
      self.entry['lines'] += 1
      yield b'\n'

  def _known(self, vocabulary, parts):
    """Token ids in which -1, for unknown words, becomes the id of unk."""
    unk = vocabulary.unk_id
    for ids in parts:
      self.words += ids.size
      unknown = ids < 0
      if n := int(np.count_nonzero(unknown)):
        if unk is None:
          self._refuse(vocabulary)
        self.entry['unknown'] += n
        ids = np.where(unknown, unk, ids)
      if unk is not None:
        self.unks += int(np.count_nonzero(ids == unk))
      yield ids

  def _refuse(self, vocabulary) -> NoReturn:
    """Raises the UserError for a word that has no token id."""
    try:
      # Encoding the text itself finds the word, its file and its line.
      for part in self._parts:
        line = part.first_line()
        for block in counting.blocks(self._chunks(part)):
          vocabulary.encode(block, part.name, line)
          line += block.count(b'\n')
    except UserError as e:
      advice = '; data.unk (--unk) adds <unk>'
      if self._asked.corpus != 'text':
        raise
      raise UserError(f'{e}{advice}') from e
    raise UserError(
      f'{self._parts[0].path}: the text changed while it was read'
    )
