"""Writing the tokens of a corpus, block by block.

Where a text of words is several files of this machine, each is whole lines:
what follows does not go on in the last line of the one before.
"""

import codecs
import dataclasses
import hashlib
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator
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
  """Writes the token ids of a corpus of bytes.

  Args:
    asked: which corpus; that of a text of one's own has all byte values.
    splits: for each split a function that gives its text in chunks.
    folder: where they go.

  Returns:
    The vocabulary; and for each split its entry of the manifest.

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
  """A file of numbers that is being written.

  Attributes:
    size: numbers written.
  """

  def __init__(self, path: pathlib.Path):
    """Opens it; a context manager, which closes it."""
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


@dataclasses.dataclass
class _Found:
  """What a split has: bytes, lines, words, unknown words.

  Attributes:
    words: <eos> among them.
    unks: unknown words, and those that are unk in the text itself.
  """

  bytes: int = 0
  lines: int = 0
  words: int = 0
  unknown: int = 0
  unks: int = 0


class Text:
  """The splits of a corpus of words, to be counted and encoded."""

  def __init__(self, asked: Data, splits: local.Splits, processes: int):
    """Reads nothing yet.

    Args:
      asked: which corpus, and how its text becomes words.
      splits: for each split a function that gives its text in chunks.
      processes: that read it, at least 1.
    """
    self._asked, self._splits, self._processes = asked, splits, processes
    self._lower = asked.lower or asked.corpus == 'ptb'
    self._eos = '<eos>' if asked.eos else ''
    self._found = {split: _Found() for split in SPLITS}

  def write(
    self, folder: pathlib.Path, vocabulary: Words | None = None
  ) -> tuple[Words, dict]:
    """Writes the token ids of each split, and where its sentences start.

    Args:
      folder: where they go.
      vocabulary: encodes the text; None counts one.

    Returns:
      The vocabulary; and for each split its entry of the manifest.

    Raises:
      UserError: no word is left, most words are not in the given vocabulary,
        or see `Words.encode`.
      OSError: a file cannot be written.
    """
    if vocabulary is None:
      vocabulary, entries = self._count(folder)
      advice = '; a larger --min_count (data.min_count) trains it'
    else:
      advice, entries = '', {}
      for split in SPLITS:
        text = self._read(split)
        parts = counting.look_up(vocabulary, text, self._processes)
        entries[split] = self._write(folder, split, vocabulary, parts)
        if split == 'train':
          self._check_list(vocabulary)
    if vocabulary.unk and not self._found['train'].unks:
      # No training can make it likely.
      print(
        f'warning: {vocabulary.unk} never occurs in train{advice}',
        file=sys.stderr,
      )
    return vocabulary, entries

  def _count(self, folder):
    """Counts a vocabulary and writes each split: as numbers, then as ids."""
    numbers = counting.Numbers(self._eos, self._lower)
    for split in SPLITS:
      counted = split == 'train' or self._asked.corpus == 'ptb'
      with File(folder / f'{split}.numbers') as f:
        for part in numbers.read(self._read(split), counted, self._processes):
          f.write(part)
    counts = numbers.counts()
    self._check(counts)
    vocabulary = Words.from_counts(
      counts,
      eos=self._eos,
      unk='<unk>' if self._asked.unk or '<unk>' in counts else '',
      lower=self._lower,
      min_count=self._asked.min_count,
      max_size=self._asked.max_size,
    )
    ids, entries = vocabulary.ids(numbers.words), {}
    for split in SPLITS:
      path = folder / f'{split}.numbers'
      parts = (ids[part] for part in _numbers(path))
      entries[split] = self._write(folder, split, vocabulary, parts)
      path.unlink()
    return vocabulary, entries

  def _check(self, counts):
    """Raises a UserError if the vocabulary would have no word of the text."""
    asked = self._asked
    others = (self._eos, '<unk>')
    words = (n for word, n in counts.items() if word not in others)
    if max(words, default=0) < asked.min_count:
      raise UserError(
        f'{asked.path or asked.corpus}: no word is in the training split '
        f'{asked.min_count} times; allowed: a text with words, and a '
        'data.min_count that leaves some'
      )

  def _check_list(self, vocabulary):
    """Raises a UserError if a list has less than half of the words."""
    train = self._found['train']
    words = train.words - (train.lines if vocabulary.eos else 0)
    if 2 * train.unknown > words:
      raise UserError(
        f'data.vocab_file: {self._asked.vocab_file}: '
        f'{train.unknown / words:.1%} of the {words} words of the training '
        'split are not in it; allowed: a list of words of this text, which has '
        'at least half of them'
      )

  def _pieces(self, split):
    """The files, or parts of files, that a split consists of."""
    read = self._splits[split]
    if isinstance(read, local.Split):
      return read.parts
    return (_Whole(f'{self._asked.corpus}, split {split}', read),)

  def _read(self, split):
    """The text of a split in chunks, counted."""
    lines = (_lines(p, self._found[split]) for p in self._pieces(split))
    text = itertools.chain.from_iterable(lines)
    return counting.progress(text, f'reading {split}')

  def _known(self, split, vocabulary, parts):
    """Token ids in which -1, for unknown words, is now the id of unk."""
    found = self._found[split]
    for ids in parts:
      found.words += ids.size
      unknown = ids < 0
      if n := np.count_nonzero(unknown):
        if vocabulary.unk_id is None:
          self._refuse(split, vocabulary)
        found.unknown += int(n)
        ids = np.where(unknown, vocabulary.unk_id, ids)
      if vocabulary.unk_id is not None:
        found.unks += int(np.count_nonzero(ids == vocabulary.unk_id))
      yield ids

  def _refuse(self, split, vocabulary) -> NoReturn:
    """Raises the UserError for a word of a split that has no token id."""
    pieces = self._pieces(split)
    try:
      # Encoding the text itself finds the word, its file and its line.
      counting.refuse(
        vocabulary,
        ((p.source, p.first_line(), _lines(p, _Found())) for p in pieces),
        self._processes,
      )
    except UserError as e:
      of_text = self._asked.corpus == 'text'
      advice = '; data.unk (--unk) adds <unk>' if of_text else ''
      raise UserError(f'{e}{advice}') from e
    raise UserError(f'{pieces[0].source}: the text changed while it was read')

  def _write(self, folder, split, vocabulary, parts):
    """Writes the tokens of a split; returns its entry of the manifest."""
    dtype = prepared.token_dtype(len(vocabulary))
    entry = {}
    parts = self._known(split, vocabulary, parts)
    with File(folder / f'{split}.bin') as tokens:
      if self._asked.corpus != 'lm1b':
        for ids in parts:
          tokens.write(ids.astype(dtype))
      else:
        laid_out = sentences.lay_out(
          parts, vocabulary.start, self._asked.boundaries
        )
        with File(prepared.sentences_file(folder, split)) as starts:
          for ids, where in laid_out:
            tokens.write(ids.astype(dtype))
            starts.write(where.astype(np.int64))
        entry['sentences'] = starts.size - 1
        entry['sentences_sha256'] = starts.sha256()
    found = self._found[split]
    return {
      'tokens': tokens.size,
      'bytes': found.bytes,
      'lines': found.lines,
      'unknown': found.unknown,
      'sha256': tokens.sha256(),
      **entry,
    }


@dataclasses.dataclass(frozen=True)
class _Whole:
  """The text of a split of one piece, with what `local.Part` has."""

  source: str
  read: Callable[[], Iterator[bytes]]
  begins = ends = True  # not fields

  def first_line(self):
    return 1

  def __call__(self):
    return self.read()


def _lines(piece, found):
  """The chunks of a piece, counted; the last line of a file gets a newline.

  The byte-order mark that some editors put first is no part of a word.
  """
  last, first = b'', piece.begins
  for chunk in piece():
    found.bytes += len(chunk)
    if first:
      chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
    found.lines += chunk.count(b'\n')
    last = chunk[-1:] or last
    yield chunk
  if piece.ends and last not in (b'', b'\n'):
    found.lines += 1
    yield b'\n'


def _numbers(path):
  """The numbers in a file, int32 [n], block by block."""
  with path.open('rb') as f:
    while block := f.read(4 * _BLOCK):
      yield np.frombuffer(block, np.int32)
