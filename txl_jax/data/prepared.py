"""A prepared corpus on disk: token ids that training maps into memory.

A folder holds train.bin, validation.bin and test.bin, each the token ids of a
split one after the other and nothing else, and manifest.json:

  format       FORMAT
  corpus       one of `options.CORPORA`
  folder       the folder's own name
  options      how the text became tokens, see `options.Data.recorded`
  source       where the text came from, with its size and sha256
  vocabulary   see `Vocabulary.entry` and `Words.entry`
  dtype        of the token ids: one of DTYPES
  splits       per split: tokens; bytes of its text; sha256 of its file; of
               words: the line ends, and how many words are unknown; of a
               stream of sentences: how many, and the sha256 of their file
  digest       see `digest_of`

A vocabulary of words is a list of its own, vocabulary.txt: a word and its
count a line. A stream of sentences (see `data.sentences`) has besides, per
split, train.sentences.bin: int64, the index of the first token of each
sentence, and of what would be the first one of the next.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from txl_jax.data.options import SPLITS
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError

FORMAT = 1
DTYPES = ('uint8', 'uint16', 'int32')
WORD_LIST = 'vocabulary.txt'

_BLOCK = 1 << 20  # tokens checked at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A prepared corpus, checked by `load`.

  Attributes:
    folder: where it is.
    manifest: the contents of manifest.json, see above.
    vocabulary: what the token ids stand for.
  """

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
    """The token ids of a split, read-only, of the manifest's dtype [n].

    Raises:
      UserError: there is no such split.
    """
    self._split(split)
    return np.memmap(_file(self.folder, split), _dtype(self.manifest), 'r')

  def sentences(self, split: str) -> np.memmap | None:
    """Where sentences start, int64 [sentences + 1], read-only.

    The last number is where the next one would start, for the end of the
    last one. None where the corpus is one text and no stream of sentences.

    Raises:
      UserError: there is no such split.
    """
    if 'sentences' not in self._split(split):
      return None
    return np.memmap(sentences_file(self.folder, split), np.int64, 'r')

  def source_bytes(self, split: str) -> int:
    """Bytes of the split's text, those that became no token included.

    Raises:
      UserError: there is no such split.
    """
    return self._split(split)['bytes']

  def _split(self, split):
    if split not in SPLITS:
      raise UserError(
        f'split {split!r} does not exist; allowed: {", ".join(SPLITS)}'
      )
    return self.manifest['splits'][split]


def load(folder: str | os.PathLike) -> Prepared:
  """Opens a prepared corpus and checks that it is undamaged.

  Every file is read once, in pieces; 100 MB take a fraction of a second.

  Raises:
    UserError: a file is missing or is not what the manifest says, or the
      manifest is of another format.
  """
  folder = pathlib.Path(folder)
  path = folder / 'manifest.json'
  try:
    manifest = json.loads(path.read_bytes())
    found = manifest['format']
    if found != FORMAT:
      raise UserError(
        f'{path}: format {found!r}, this version reads {FORMAT}; prepare the '
        'corpus again with --force'
      )
    vocabulary = _vocabulary(folder, manifest['vocabulary'])
    digest = digest_of(
      {split: manifest['splits'][split]['sha256'] for split in SPLITS},
      vocabulary,
    )
    if digest != manifest['digest']:
      raise ValueError('its digest does not fit its contents')
    for split in SPLITS:
      _check_split(folder, split, manifest, len(vocabulary))
  except OSError as e:
    raise _damaged(f'{e.filename}: {e.strerror}') from e
  except (KeyError, TypeError, ValueError) as e:
    raise _damaged(f'{path}: {type(e).__name__}: {e}') from e
  return Prepared(folder, manifest, vocabulary)


def write_manifest(
  folder: pathlib.Path,
  manifest: dict,
  vocabulary: Vocabulary | Words,
  splits: dict,
) -> None:
  """Writes manifest.json, and the list of words, beside the splits.

  Args:
    folder: holds the files of the splits.
    manifest: its first entries: format, corpus, folder, options, source.
    vocabulary: what the token ids stand for.
    splits: the entry of the same name.

  Raises:
    OSError: they cannot be written.
  """
  if isinstance(vocabulary, Words):
    (folder / WORD_LIST).write_bytes(vocabulary.text())
  digests = {split: entry['sha256'] for split, entry in splits.items()}
  manifest = manifest | {
    'vocabulary': vocabulary.entry(),
    'dtype': token_dtype(len(vocabulary)),
    'splits': splits,
    'digest': digest_of(digests, vocabulary),
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest, indent=1) + '\n')


def token_dtype(size: int) -> str:
  """The smallest of DTYPES that holds the ids of a vocabulary of that size."""
  return next(d for d in DTYPES if size - 1 <= np.iinfo(d).max)


def digest_of(
  split_digests: Mapping[str, str], vocabulary: Vocabulary | Words
) -> str:
  """sha256, in hex, over the sha256 of each split and the vocabulary."""
  fields = [[split_digests[s] for s in SPLITS], vocabulary.entry()]
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def sentences_file(folder: pathlib.Path, split: str) -> pathlib.Path:
  """The file with the starts of a split's sentences."""
  return folder / f'{split}.sentences.bin'


def _file(folder, split):
  return folder / f'{split}.bin'


def _vocabulary(folder, entry):
  """The vocabulary of an entry of the manifest."""
  if entry['kind'] != 'words':
    return Vocabulary.from_json(entry)
  path = folder / WORD_LIST
  data = path.read_bytes()
  try:
    return Words.from_entry(entry, data)
  except ValueError as e:
    raise _damaged(f'{path}: {e}') from e


def _dtype(manifest):
  if manifest['dtype'] not in DTYPES:
    raise ValueError(f'dtype {manifest["dtype"]!r}, not one of {DTYPES}')
  return np.dtype(manifest['dtype'])


def _damaged(found):
  return UserError(
    f'{found}: the prepared corpus is damaged, prepare it again with --force'
  )


def _check_split(folder, split, manifest, vocabulary_size):
  """Raises a UserError unless a split's files are as the manifest says."""
  path, entry = _file(folder, split), manifest['splits'][split]
  largest = _check_file(
    path, _dtype(manifest), entry['tokens'], entry['sha256']
  )
  if largest >= vocabulary_size:
    raise _damaged(
      f'{path} holds token {largest}, the vocabulary has {vocabulary_size}'
    )
  if 'sentences' in entry:
    path, count = sentences_file(folder, split), entry['sentences'] + 1
    _check_file(path, np.dtype(np.int64), count, entry['sentences_sha256'])


def _check_file(path, dtype, count, sha256):
  """The largest number of a file; UserError unless it has count and sha256."""
  size, wanted = path.stat().st_size, count * dtype.itemsize
  if size != wanted or not size:
    raise _damaged(f'{path} has {size} bytes, expected {wanted}')
  digest, largest = hashlib.sha256(), 0
  with path.open('rb') as f:
    while block := f.read(_BLOCK * dtype.itemsize):
      digest.update(block)
      largest = max(largest, int(np.frombuffer(block, dtype).max()))
  if digest.hexdigest() != sha256:
    raise _damaged(f'{path} has sha256 {digest.hexdigest()}, expected {sha256}')
  return largest
