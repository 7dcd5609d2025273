"""Writing the tokens of a corpus of words, block by block."""

import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from txl_jax.data import counting, local, prepared, sentences
from txl_jax.data.options import Options
from txl_jax.data.words import Words
from txl_jax.errors import UserError

_BLOCK = 1 << 20  # tokens that are read back at a time


class Text:
  """The splits of a corpus of words, to be counted and encoded."""

  def __init__(self, asked: Options, splits: local.Splits, processes: int):
    """Reads nothing yet.

    Args:
      asked: which corpus, and how its text becomes words.
      splits: for each split a function that gives its text in chunks.
      processes: that read it, at least 1.
    """
    self._asked, self._splits, self._processes = asked, splits, processes
    self._lower = asked.lower or asked.corpus == 'ptb'
    self._eos = '<eos>' if asked.eos else ''
    self._lines = {}  # those of each split, once it was read
    self._sizes = {}  # its bytes

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
      UserError: see `Words.encode`.
      OSError: a file cannot be written.
    """
    entries = {}
    if vocabulary is not None:
      for split in prepared.SPLITS:
        parts = self._encode(split, vocabulary, self._read(split))
        entries[split] = self._write(folder, split, vocabulary, parts)
      return vocabulary, entries
    numbers = counting.Numbers(self._eos, self._lower)
    for split in prepared.SPLITS:
      counted = split == 'train' or self._asked.corpus == 'ptb'
      with _File(folder / f'{split}.numbers') as f:
        for part in numbers.read(self._read(split), counted, self._processes):
          f.write(part)
    counts = numbers.counts()
    vocabulary = Words.from_counts(
      counts,
      eos=self._eos,
      unk='<unk>' if self._asked.unk or '<unk>' in counts else '',
      lower=self._lower,
      min_count=self._asked.min_count,
      max_size=self._asked.max_size,
    )
    table = numbers.ids(vocabulary)
    for split in prepared.SPLITS:
      path = folder / f'{split}.numbers'
      parts = self._look_up(split, vocabulary, table, path)
      entries[split] = self._write(folder, split, vocabulary, parts)
      path.unlink()
    return vocabulary, entries

  def _read(self, split: str) -> Iterator[bytes]:
    """The text of a split, whose bytes and lines are counted."""
    size, lines, last = 0, 0, b'\n'
    for chunk in counting.progress(self._splits[split](), f'reading {split}'):
      size += len(chunk)
      lines += chunk.count(b'\n')
      last = chunk[-1:] or last
      yield chunk
    self._sizes[split] = size
    self._lines[split] = lines + (last != b'\n')

  def _encode(self, split, vocabulary, chunks):
    """The token ids of a split, block by block."""
    asked, line = self._asked, 1
    source = f'{asked.corpus}, split {split}'
    if asked.corpus == 'text':
      source = f'{asked.path}'
      # The text goes on in the next split.
      before = itertools.takewhile(lambda s: s != split, prepared.SPLITS)
      line += sum(self._lines[s] for s in before)
    return counting.encode(vocabulary, chunks, source, line, self._processes)

  def _look_up(self, split, vocabulary, table, path):
    """The token ids of a split whose numbers are in a file."""
    with path.open('rb') as f:
      while block := f.read(4 * _BLOCK):
        ids = table[np.frombuffer(block, np.int32)]
        if ids.min() < 0:
          self._refuse(split, vocabulary)
        yield ids

  def _refuse(self, split, vocabulary):
    """Raises the UserError for a word of a split that has no token id."""
    advice = ''
    if self._asked.corpus == 'text':
      advice = '; data.unk (--unk) adds <unk>'
    try:
      # Encoding the text itself finds the word and its line.
      for _ in self._encode(split, vocabulary, self._splits[split]()):
        pass
    except UserError as e:
      raise UserError(f'{e}{advice}') from e

  def _write(
    self,
    folder: pathlib.Path,
    split: str,
    vocabulary: Words,
    parts: Iterable[np.ndarray],
  ) -> dict:
    """Writes the tokens of a split; returns its entry of the manifest."""
    dtype = prepared.token_dtype(len(vocabulary))
    entry = {}
    with _File(folder / f'{split}.bin') as tokens:
      if self._asked.corpus != 'lm1b':
        for ids in parts:
          tokens.write(ids.astype(dtype))
      else:
        laid_out = sentences.lay_out(
          parts, vocabulary.start, self._asked.boundaries
        )
        with _File(prepared.sentences_file(folder, split)) as starts:
          for ids, where in laid_out:
            tokens.write(ids.astype(dtype))
            starts.write(where.astype(np.int64))
        entry['sentences'] = starts.size - 1
        entry['sentences_sha256'] = starts.sha256()
    return {
      'tokens': tokens.size,
      'bytes': self._sizes[split],
      'lines': self._lines[split],
      'sha256': tokens.sha256(),
      **entry,
    }


class _File:
  """A file of numbers, and the sha256 of what was written to it."""

  def __init__(self, path):
    self._file, self._digest = path.open('wb'), hashlib.sha256()
    self.size = 0  # numbers written

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._file.close()

  def write(self, array):
    block = array.tobytes()
    self._file.write(block)
    self._digest.update(block)
    self.size += array.size

  def sha256(self):
    return self._digest.hexdigest()
