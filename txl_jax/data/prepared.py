"""A prepared corpus on disk: token ids that training maps into memory.

A folder holds train.bin, validation.bin and test.bin, each the token ids of a
split one after the other and nothing else, and manifest.json:

  format       FORMAT
  corpus       one of `options.CORPORA`
  folder       the folder's own name
  options      how the text became tokens, see `options.Data.recorded`
  source       where the text came from, with its size and sha256
  vocabulary   see `entry` of the two kinds
  dtype        of the token ids: one of DTYPES
  splits       per split: tokens; bytes of its text; sha256 of its file; of
               words: the line ends, and how many words are unknown; of a
               stream of sentences: how many, and the sha256 of their file
  digest       see `digest_of`

The words of a vocabulary are in vocabulary.txt, with its count each on a line.
A stream of sentences (see `data.sentences`) has train.sentences.bin and so on:
int64, where each sentence starts in the tokens, and where the next one would.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from txl_jax.data.options import SPLITS, Data
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Symbols, Words
from txl_jax.errors import UserError

FORMAT = 1
DTYPES = ('uint8', 'uint16', 'int32')
TOKENS, SENTENCES = '{}.bin', '{}.sentences.bin'  # files of a split
_LIST = 'vocabulary.txt'


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A prepared corpus, as `load` opens it; UserError for an unknown split."""

  folder: pathlib.Path
  manifest: dict
  vocabulary: Vocabulary | Words

  @property
  def name(self) -> str:
    """Name of the folder: the corpus and its options."""
    return self.manifest['folder']

  @property
  def digest(self) -> str:
    """64 hex digits that are the same only for the same tokens and symbols."""
    return self.manifest['digest']

  def tokens(self, split: str) -> np.memmap:
    """The token ids of a split, read-only, of the manifest's dtype [n]."""
    self._split(split)
    path = self.folder / TOKENS.format(split)
    return np.memmap(path, self.manifest['dtype'], 'r')

  def sentences(self, split: str) -> np.memmap | None:
    """Where sentences, if any, start and would next: int64 [sentences + 1]."""
    if 'sentences' not in self._split(split):
      return None
    return np.memmap(self.folder / SENTENCES.format(split), np.int64, 'r')

  def source_bytes(self, split: str) -> int:
    """Bytes of the split's text, those that became no token included."""
    return self._split(split)['bytes']

  def _split(self, split):
    if split not in SPLITS:
      allowed = ', '.join(SPLITS)
      raise UserError(f'split {split!r} does not exist; allowed: {allowed}')
    return self.manifest['splits'][split]


def load(folder: str | os.PathLike) -> Prepared:
  """Opens a corpus; UserError unless every file is as the manifest says."""
  folder = pathlib.Path(folder)
  path = folder / 'manifest.json'
  try:
    manifest = json.loads(path.read_bytes())
    if manifest['format'] != FORMAT:
      raise UserError(
        f'{path}: format {manifest["format"]!r}, this version reads {FORMAT}; '
        'prepare the corpus again with --force'
      )
    vocabulary = _vocabulary(folder, manifest['vocabulary'])
    if manifest['digest'] != digest_of(manifest['splits'], vocabulary):
      raise ValueError('its digest does not fit its contents')
    dtype, V = manifest['dtype'], len(vocabulary)
    if dtype not in DTYPES:
      raise ValueError(f'dtype {dtype!r}, not one of {DTYPES}')
    for split in SPLITS:
      entry, file = manifest['splits'][split], folder / TOKENS.format(split)
      largest = _check_file(file, dtype, entry['tokens'], entry['sha256'])
      if largest >= V:
        raise _damaged(f'{file} holds token {largest}, the vocabulary has {V}')
      if 'sentences' in entry:
        file, count = folder / SENTENCES.format(split), entry['sentences'] + 1
        _check_file(file, 'int64', count, entry['sentences_sha256'])
  except OSError as e:
    raise _damaged(f'{e.filename}: {e.strerror}') from e
  except (KeyError, TypeError, ValueError) as e:
    raise _damaged(f'{path}: {type(e).__name__}: {e}') from e
  return Prepared(folder, manifest, vocabulary)


def write_manifest(
  folder: pathlib.Path,
  asked: Data,
  source: dict,
  vocabulary: Symbols,
  splits: Mapping[str, dict],
) -> None:
  """Writes manifest.json, and the list of words, into a folder."""
  if isinstance(vocabulary, Words):
    (folder / _LIST).write_bytes(vocabulary.text())
  manifest = {
    'format': FORMAT,
    'corpus': asked.corpus,
    'folder': folder.name,
    'options': asked.recorded(),
    'source': source,
    'vocabulary': vocabulary.entry(),
    'dtype': token_dtype(len(vocabulary)),
    'splits': splits,
    'digest': digest_of(splits, vocabulary),
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest, indent=1) + '\n')


def token_dtype(size: int) -> str:
  """The smallest of DTYPES that holds the ids of a vocabulary of that size."""
  return next(d for d in DTYPES if size - 1 <= np.iinfo(d).max)


def digest_of(splits: Mapping[str, dict], vocabulary: Symbols) -> str:
  """sha256, in hex, over the sha256 of each split and the vocabulary."""
  fields = [[splits[s]['sha256'] for s in SPLITS], vocabulary.entry()]
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _vocabulary(folder, entry):
  """The vocabulary of an entry of the manifest."""
  if entry['kind'] != 'words':
    return Vocabulary.from_json(entry)
  data = (folder / _LIST).read_bytes()
  try:
    return Words.from_entry(entry, data)
  except ValueError as e:
    raise _damaged(f'{folder / _LIST}: {e}') from e


def _damaged(found):
  return UserError(
    f'{found}: the prepared corpus is damaged, prepare it again with --force'
  )


def _check_file(path, dtype, count, sha256):
  """The largest number of a file; UserError unless it has count and sha256."""
  width = np.dtype(dtype).itemsize
  size, wanted = path.stat().st_size, count * width
  if size != wanted or not size:
    raise _damaged(f'{path} has {size} bytes, expected {wanted}')
  digest, largest = hashlib.sha256(), 0
  with path.open('rb') as f:
    while block := f.read(width << 20):
      digest.update(block)
      largest = max(largest, int(np.frombuffer(block, dtype).max()))
  if (found := digest.hexdigest()) != sha256:
    raise _damaged(f'{path} has sha256 {found}, expected {sha256}')
  return largest
