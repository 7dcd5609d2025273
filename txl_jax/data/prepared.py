"""A prepared corpus on disk: token ids that training maps into memory.

A folder holds train.bin, validation.bin and test.bin, each just the token ids
of a split in order, and manifest.json:

  format       FORMAT
  corpus       one of `options.CORPORA`
  folder       the folder's own name
  options      of documents: what one is; the name of the folder has all others
  source       where the text came from, with its size and sha256; of one's own
               text, the files of each split, and those that are left out
  vocabulary   see `entry` of each kind
  dtype        of the token ids: one of DTYPES
  splits       per split: tokens; bytes of its text; sha256 of its file; of
               words: how many are unknown; of sentences or documents: how
               many, and the sha256 of their file
  digest       see `digest_of`

The words of a vocabulary are in vocabulary.txt, one a line with its count;
subwords are in tokenizer.json, as the library `tokenizers` reads it.
A stream of sentences (see `data.sentences`) or documents (`data.documents`) has
train.sentences.bin and so on: int64, where each starts in the tokens, and where
a further one would.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from txl_jax.data import vocabularies
from txl_jax.data.documents import Documents
from txl_jax.data.options import SPLITS, Data
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Symbols, Words
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError

FORMAT = 1
DTYPES = ('uint8', 'uint16', 'int32')
TOKENS, SENTENCES = '{}.bin', '{}.sentences.bin'  # files of a split
# The vocabulary of words, of subwords.
_LIST, _TOKENIZER = 'vocabulary.txt', 'tokenizer.json'
_LARGEST_LIST = 1 << 30  # bytes of the list
_BLOCK = 1 << 24  # tokens that are counted at once


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A prepared corpus, as `load` opens it; UserError for an unknown split."""

  folder: pathlib.Path
  manifest: dict
  vocabulary: AnyVocabulary
  ids: np.ndarray | None = None  # new id of each id in the files; None: same
  # In words, which files each split is of, and which are left out; '' if none.
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    """Name of the folder: the corpus and its options."""
    return self.manifest['folder']

  @property
  def digest(self) -> str:
    """64 hex digits, equal only for the same tokens and symbols."""
    digest = self.manifest['digest']
    if self.ids is None:
      return digest
    parts = digest, self.ids.tolist(), self.vocabulary.symbols
    return hashlib.sha256(repr(parts).encode()).hexdigest()

  def tokens(self, split: str) -> np.ndarray:
    """The token ids of a split, read-only, of the manifest's dtype [n].

    They are mapped from the file, or held in memory if the ids have changed.
    """
    path = self.folder / TOKENS.format(split)
    found = np.memmap(path, self.manifest['dtype'], 'r')
    return found if self.ids is None else self.ids[found]

  def ordered_like(self, vocabulary: AnyVocabulary) -> 'Prepared':
    """As by `encoded_with`, for a vocabulary of the same symbols in some order.

    The published lists order equally frequent words differently. For any other
    vocabulary the corpus is returned as it is.
    """
    same = {*self.vocabulary.symbols} == {*vocabulary.symbols}
    return self.encoded_with(vocabulary) if same else self

  def encoded_with(self, vocabulary: AnyVocabulary) -> 'Prepared':
    """The corpus with the token ids of another vocabulary of its kind.

    Words that it lacks become its <unk>; <unk> and the end of a line become
    its own. UserError: a symbol occurs that it lacks, and it has no <unk>; or
    it has other subwords.
    """
    ours, end = self.vocabulary, vocabulary.document_end
    if ours.kind != vocabulary.kind:
      raise UserError(
        f'corpus {self.name} is of {ours.kind}, the vocabulary of the model of '
        f'{vocabulary.kind}; allowed: a corpus of {vocabulary.kind}'
      )
    # Without an <eos> of its own, a text may be read as a part of a document.
    if self.of_documents != (end is not None) and ours.eos_id is not None:
      what = 'lines or one text' if end is None else 'documents'
      raise UserError(
        f'corpus {self.name} has another <eos> than the vocabulary of the '
        f'model, which has {what}; allowed: data.documents, or data.eos False, '
        'to fit'
      )
    if ours.symbols == vocabulary.symbols:
      return self
    if isinstance(vocabulary, Subwords) and (
      vocabulary.of_documents().symbols != ours.of_documents().symbols
    ):
      raise UserError(
        f'corpus {self.name} is cut into other subwords than those of the '
        'model; allowed: its vocabulary.json as data.tokenizer'
      )
    ids = vocabulary.places(ours)
    missing = np.flatnonzero(ids < 0)
    if missing.size and vocabulary.unk_id is None:
      counts = self._occurrences(*SPLITS)
      if lost := [ours.symbols[i] for i in missing if counts[i]]:
        raise UserError(
          f'corpus {self.name} has {len(lost)} {ours.kind} that are not among '
          f'the {len(vocabulary)} of the model, which has no <unk>: '
          f'{settings.listed([*map(repr, lost)])}'
        )
    ids[missing] = vocabulary.unk_id or 0  # 0 if the symbol does not occur
    ids = ids.astype(token_dtype(len(vocabulary)))
    return dataclasses.replace(self, vocabulary=vocabulary, ids=ids)

  def unknown_line(self, before: 'Prepared', *splits: str) -> str:
    """How much of splits is <unk>, also in the corpus as it was; '' without."""
    if self.vocabulary.unk_id is None:
      return ''
    shares = (
      f'{self._unknown(x):.2%} of the tokens of {x} are <unk> '
      f'({before._unknown(x):.2%} with that of the corpus)'
      for x in splits
    )
    return f'with the vocabulary of the model, {", ".join(shares)}'

  def _unknown(self, split):
    counts, unk = self._occurrences(split), self.vocabulary.unk_id
    return 0.0 if unk is None else counts[unk] / counts.sum()

  def _occurrences(self, *splits):
    """How often each token id occurs in splits, int64 [V]."""
    V = len(self.vocabulary)
    counts = np.zeros(V, np.int64)
    for split in splits:
      tokens = self.tokens(split)
      for at in range(0, len(tokens), _BLOCK):
        counts += np.bincount(tokens[at : at + _BLOCK], minlength=V)
    return counts

  def sentences(self, split: str) -> np.memmap | None:
    """Where sentences, if any, and a next one start: int64 [sentences + 1]."""
    if self.of_documents or 'sentences' not in self.manifest['splits'][split]:
      return None
    return self._starts(split)

  def _starts(self, split):
    return np.memmap(self.folder / SENTENCES.format(split), np.int64, 'r')

  @property
  def of_documents(self) -> bool:
    """Whether it consists of documents, see `data.documents`."""
    return 'documents' in self.manifest.get('options', {})

  def text(self, split: str, count: int = 0) -> np.ndarray | Documents:
    """The first tokens of a split, 0 for all, as they are read and scored."""
    tokens = self.tokens(split)
    if self.of_documents:
      return Documents(tokens, self._starts(split)).first(count)
    return tokens[: count or None]


def load(folder: str | os.PathLike) -> Prepared:
  """Opens a corpus; UserError unless every file matches the manifest."""
  folder = pathlib.Path(folder)
  path = folder / 'manifest.json'
  try:
    manifest = files.read_json(path)
    if manifest['format'] != FORMAT:
      found = settings.shown(manifest['format'])
      raise UserError(f'{path}: format {found}, this version reads {FORMAT}')
    vocabulary, lists = _check(folder, manifest), _files(manifest)
    return Prepared(folder, manifest, vocabulary, files=lists)
  except (UserError, *files.ODD) as e:
    found = (
      f'{e}' if isinstance(e, UserError) else f'{path}: {settings.shown(e)}'
    )
    raise UserError(
      f'{found}: the prepared corpus is damaged, prepare it again with --force'
    ) from e


def _files(manifest):
  """`Prepared.files`; files.ODD if the manifest is damaged."""
  found = {}
  for name, each in manifest.get('source', {}).get('files_of', {}).items():
    count = f'{len(each):,} files: ' if len(each) > 1 else ''
    found |= {name: f'{count}{settings.listed(each)}'} if each else {}
  return found


def write_manifest(
  folder: pathlib.Path,
  name: str,
  asked: Data,
  source: dict,
  vocabulary: Symbols,
  splits: Mapping[str, dict],
) -> None:
  """Writes manifest.json, with the later name of a folder, and its words."""
  if isinstance(vocabulary, Words):
    with files.naming(folder / _LIST):
      (folder / _LIST).write_bytes(vocabulary.text())
  if isinstance(vocabulary, Subwords):
    files.write(folder / _TOKENIZER, vocabulary.tokenizer)
  manifest = {
    'format': FORMAT,
    'corpus': asked.corpus,
    'folder': name,
    'options': {'documents': asked.documents} if asked.ends_documents else {},
    'source': source,
    'vocabulary': vocabulary.entry(),
    'dtype': token_dtype(len(vocabulary)),
    'splits': splits,
    'digest': digest_of(splits, vocabulary),
  }
  files.write(folder / 'manifest.json', json.dumps(manifest, indent=1) + '\n')


def token_dtype(size: int) -> str:
  """The smallest of DTYPES that holds the ids of a vocabulary of that size."""
  return next(d for d in DTYPES if size - 1 <= np.iinfo(d).max)


def digest_of(splits: Mapping[str, dict], vocabulary: Symbols) -> str:
  """sha256, in hex, over the sha256 of each split and the vocabulary."""
  fields = [[splits[s]['sha256'] for s in SPLITS], vocabulary.entry()]
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _check(folder, manifest):
  """The vocabulary; files.ODD or UserError if a file does not match."""
  splits, dtype = manifest['splits'], manifest['dtype']
  vocabulary = _vocabulary(folder, manifest['vocabulary'])
  if manifest['digest'] != digest_of(splits, vocabulary):
    raise ValueError('its digest does not fit its contents')
  for split in SPLITS:
    entry, file = splits[split], folder / TOKENS.format(split)
    _check_file(file, dtype, entry['tokens'], entry['sha256'])
    if 'sentences' in entry:
      file, count = folder / SENTENCES.format(split), entry['sentences'] + 1
      _check_file(file, 'int64', count, entry['sentences_sha256'])
  return vocabulary


def _vocabulary(folder, entry):
  """The vocabulary of an entry of the manifest."""
  kinds = {'words': (Words, _LIST), 'subwords': (Subwords, _TOKENIZER)}
  if f'{entry.get("kind")}' not in kinds:
    return vocabularies.from_json(entry)
  kind, name = kinds[entry['kind']]
  path = folder / name
  try:
    return kind.from_entry(entry, files.read(path, largest=_LARGEST_LIST))
  except ValueError as e:
    raise UserError(f'{path}: {e}') from e


def _check_file(path, dtype, count, sha256):
  """UserError unless a file has that many numbers, and that sha256."""
  with files.reading(f'{path}'):
    size, wanted = path.stat().st_size, count * np.dtype(dtype).itemsize
  if size != wanted or not size:
    raise UserError(f'{path} has {size} bytes, expected {wanted}')
  if (found := files.sha256(path)) != sha256:
    raise UserError(f'{path} has sha256 {found}, expected {sha256}')
