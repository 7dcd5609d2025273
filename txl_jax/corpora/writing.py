"""Writing the tokens of a corpus, block by block.

Where a text of words is several files of this machine, each is whole lines:
what follows does not go on in the last line of the one before.
"""

import codecs
import hashlib
import itertools
import pathlib
import sys
from typing import NoReturn

import numpy as np

from txl_jax.corpora import counting, local
from txl_jax.data import prepared, sentences
from txl_jax.data.options import LOCAL, SPLITS, Data
from txl_jax.data.vocabulary import Vocabulary, count_bytes
from txl_jax.data.words import Words
from txl_jax.errors import UserError

_BLOCK = 1 << 20  # numbers that are read back at a time


def write_bytes(
  asked: Data, splits: local.Splits, folder: pathlib.Path
) -> tuple[Vocabulary, dict]:
  """Writes the token ids of a corpus of bytes into a folder.

  Returns:
    The vocabulary, of a local corpus all byte values, of a published one those
    that it has; and for each split its entry of the manifest.

  Raises:
    OSError: a file cannot be written.
  """
  if asked.corpus in LOCAL:
    vocabulary = Vocabulary.all_bytes()
  else:
    text = itertools.chain.from_iterable(read() for read in splits.values())
    dropped = b'\n' if asked.newline == 'drop' else b''
    vocabulary = Vocabulary.from_counts(count_bytes(text), dropped)
  dtype = prepared.token_dtype(len(vocabulary))
  entries = {}
  for split in SPLITS:
    size = 0
    with File(folder / f'{split}.bin') as f:
      for chunk in splits[split]():
        f.write(vocabulary.encode(chunk, split).astype(dtype))
        size += len(chunk)
    entries[split] = {'tokens': f.size, 'bytes': size, 'sha256': f.sha256()}
  return vocabulary, entries


class File:
  """A file of numbers that is being written; a context manager.

  Attributes:
    size: numbers written.
  """

  def __init__(self, path: pathlib.Path):
    self._file, self._digest = path.open('wb'), hashlib.sha256()
    self.size = 0

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._file.close()

  def write(self, array: np.ndarray) -> None:
    """Appends an array."""
    block = array.tobytes()
    self._file.write(block)
    self._digest.update(block)
    self.size += array.size

  def sha256(self) -> str:
    """In hex, of what was written."""
    return self._digest.hexdigest()


def write_words(
  asked: Data,
  splits: local.Splits,
  folder: pathlib.Path,
  processes: int,
  vocabulary: Words | None = None,
) -> tuple[Words, dict]:
  """Writes the token ids of a corpus of words, and where sentences start.

  Args:
    asked: which corpus, and how its text becomes words.
    splits: its text.
    folder: where they go.
    processes: see `preparation.prepare`.
    vocabulary: encodes the text; None counts one.

  Returns:
    The vocabulary; and for each split its entry of the manifest.

  Raises:
    UserError: no word is left, most words are not in the given vocabulary, or
      see `Words.encode`.
    OSError: a file cannot be written.
  """
  processes = processes or counting.processes_by_default()
  texts = {s: _Text(asked, s, x.parts, folder) for s, x in splits.items()}
  entries, train = {}, texts['train']
  if vocabulary is None:
    advice = '; a larger --min_count (data.min_count) trains it'
    vocabulary, ids = _count(asked, texts, processes)
    for split, text in texts.items():
      entries[split] = text.write(vocabulary, text.numbered(ids))
  else:
    advice = ''
    for split, text in texts.items():
      blocks = counting.blocks(text.read())
      parts = counting.in_order(vocabulary.look_up, blocks, processes)
      entries[split] = text.write(vocabulary, parts)
      if split == 'train':
        _check_list(asked, vocabulary, train)
  if vocabulary.unk and not train.unks:
    # No training can make it likely.
    print(
      f'warning: {vocabulary.unk} never occurs in train{advice}',
      file=sys.stderr,
    )
  return vocabulary, entries


def _count(asked, texts, processes):
  """The vocabulary of a text, whose words are numbered; id of each number."""
  ptb = asked.corpus == 'ptb'
  eos, lower = '<eos>' if asked.eos else '', asked.lower or ptb
  numbers = counting.Numbers(eos, lower)
  for split, text in texts.items():
    with File(text.numbers) as f:
      for part in numbers.read(text.read(), ptb or split == 'train', processes):
        f.write(part)
  counts = numbers.counts()
  others = (n for word, n in counts.items() if word not in (eos, '<unk>'))
  if max(others, default=0) < asked.min_count:
    raise UserError(
      f'{asked.path or asked.corpus}: no word is in the training split '
      f'{asked.min_count} times; allowed: a text with words, and a '
      'data.min_count that leaves some'
    )
  vocabulary = Words.from_counts(
    counts,
    eos=eos,
    unk='<unk>' if asked.unk or '<unk>' in counts else '',
    lower=lower,
    min_count=asked.min_count,
    max_size=asked.max_size,
  )
  return vocabulary, vocabulary.ids(numbers.words)


def _check_list(asked, vocabulary, train):
  """Raises a UserError if a list has less than half of the words."""
  words = train.words - (train.lines if vocabulary.eos else 0)
  if 2 * train.unknown > words:
    raise UserError(
      f'data.vocab_file: {asked.vocab_file}: {train.unknown / words:.1%} of '
      f'the {words} words of the training split are not in it; allowed: a list '
      'of words of this text, which has at least half of them'
    )


class _Text:
  """A split of a corpus of words, which is measured on the way."""

  def __init__(self, asked, split, parts, folder):
    self._asked, self._split, self._folder = asked, split, folder
    self._parts = parts
    self.numbers = folder / f'{split}.numbers'  # a file for those of its words
    self.size = self.lines = 0  # bytes, and newlines
    self.words = self.unknown = 0  # with <eos>, and those without a token id
    self.unks = 0  # unknown words, and those that are unk in the text itself

  def read(self):
    """The text in chunks."""
    chunks = itertools.chain.from_iterable(map(self._chunks, self._parts))
    return counting.progress(chunks, f'reading {self._split}')

  def numbered(self, ids):
    """The token ids of the words in the file of numbers, block by block."""
    with self.numbers.open('rb') as f:
      while block := f.read(4 * _BLOCK):
        yield ids[np.frombuffer(block, np.int32)]
    self.numbers.unlink()

  def write(self, vocabulary, parts):
    """Writes token ids, -1 for unknown words; the entry of the manifest."""
    dtype = prepared.token_dtype(len(vocabulary))
    parts, entry = self._known(vocabulary, parts), {}
    with File(self._folder / f'{self._split}.bin') as tokens:
      if self._asked.corpus != 'lm1b':
        for ids in parts:
          tokens.write(ids.astype(dtype))
      else:
        path = prepared.sentences_file(self._folder, self._split)
        boundaries = self._asked.boundaries
        laid_out = sentences.lay_out(parts, vocabulary.start, boundaries)
        with File(path) as starts:
          for ids, where in laid_out:
            tokens.write(ids.astype(dtype))
            starts.write(where.astype(np.int64))
        entry['sentences'] = starts.size - 1
        entry['sentences_sha256'] = starts.sha256()
    return {
      'tokens': tokens.size,
      'bytes': self.size,
      'lines': self.lines,
      'unknown': self.unknown,
      'sha256': tokens.sha256(),
      **entry,
    }

  def _chunks(self, part):
    """The chunks of a part; the last line of a file gets a newline.

    The byte-order mark that some editors put first is no part of a word.
    """
    last, first = b'', part.begins
    for chunk in part():
      self.size += len(chunk)
      if first:
        chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
      self.lines += chunk.count(b'\n')
      last = chunk[-1:] or last
      yield chunk
    if part.ends and last not in (b'', b'\n'):
      self.lines += 1
      yield b'\n'

  def _known(self, vocabulary, parts):
    """Token ids in which -1, for unknown words, is now the id of unk."""
    unk = vocabulary.unk_id
    for ids in parts:
      self.words += ids.size
      unknown = ids < 0
      if n := int(np.count_nonzero(unknown)):
        if unk is None:
          self._refuse(vocabulary)
        self.unknown += n
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
          vocabulary.encode(block, f'{part.path}', line)
          line += block.count(b'\n')
    except UserError as e:
      of_text = self._asked.corpus == 'text'
      advice = '; data.unk (--unk) adds <unk>' if of_text else ''
      raise UserError(f'{e}{advice}') from e
    path = self._parts[0].path
    raise UserError(f'{path}: the text changed while it was read')
