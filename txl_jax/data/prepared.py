"""A prepared corpus on disk: memory-mapped token ids.

A folder has train.bin, validation.bin and test.bin, each the plain sequence of
token ids of a split, and manifest.json with

  format       FORMAT
  corpus       one of `data_config.CORPORA`
  folder       the name of the folder
  options      data.documents, if set; other options are in the folder's name
  source       origin, size and sha256 of the text; for a user's text, also the
               files of each split, those that are left out, and notes on others
  vocabulary   see `entry` of each kind
  dtype        of the token ids: one of DTYPES
  splits       per split: number of tokens; bytes of text; sha256 of its file;
               for words, the number of unknown ones; for sentences or
               documents, their number and the sha256 of their file
  digest       see `digest_of`

A vocabulary of words is in vocabulary.txt, one word and its count per line;
subwords are in tokenizer.json, see `vocabularies.tokenizer_files`.
With sentences (see `data.sentences`) or documents (see `data.documents`),
train.sentences.bin and so on hold the start index of each as int64, and finally
the end of the last one.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from txl_jax.data import vocabularies
from txl_jax.data.data_config import SPLITS, Data
from txl_jax.data.documents import Documents
from txl_jax.data.vocabularies import AnyVocabulary, Subwords, Words
from txl_jax.program import errors, files
from txl_jax.program.errors import UserError

FORMAT = 1
DTYPES = ('uint8', 'uint16', 'int32')
TOKENS, SENTENCES = '{}.bin', '{}.sentences.bin'  # files of a split
# Vocabulary files of words and of subwords.
_LIST, _TOKENIZER = 'vocabulary.txt', 'tokenizer.json'
_LARGEST_LIST = 1 << 30  # maximum bytes of a vocabulary file
_BLOCK = 1 << 24  # tokens counted at once


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A prepared corpus, as returned by `load`."""

  folder: pathlib.Path
  manifest: dict
  vocabulary: AnyVocabulary
  id_map: np.ndarray | None = None  # new id of each id in the files
  # For messages: the files of each split, those that are left out, and notes.
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    """Name of the folder, which encodes the corpus and its options."""
    return self.manifest['folder']

  @property
  def digest(self) -> str:
    """64 hex digits, equal only for the same tokens and symbols."""
    digest = self.manifest['digest']
    if self.id_map is None:
      return digest
    parts = digest, self.id_map.tolist(), self.vocabulary.symbols
    return hashlib.sha256(repr(parts).encode()).hexdigest()

  def tokens(self, split: str) -> np.ndarray:
    """The token ids of a split, read-only, [n] of the manifest's dtype.

    Memory-mapped, unless the ids are mapped to another vocabulary.
    """
    path = self.folder / TOKENS.format(split)
    tokens = np.memmap(path, self.manifest['dtype'], 'r')
    return tokens if self.id_map is None else self.id_map[tokens]

  def ordered_like(self, vocabulary: AnyVocabulary) -> 'Prepared':
    """Like `encoded_with` if the vocabulary has the same symbols.

    Published models may order equally frequent words differently. With other
    symbols, the corpus is returned unchanged.
    """
    same = {*self.vocabulary.symbols} == {*vocabulary.symbols}
    return self.encoded_with(vocabulary) if same else self

  def encoded_with(self, vocabulary: AnyVocabulary) -> 'Prepared':
    """The corpus with the token ids of another vocabulary of the same kind.

    Words that the other vocabulary lacks are mapped to its <unk>; <unk> and
    <eos> are mapped to its <unk> and <eos>. UserError if it lacks a symbol that
    occurs and has no <unk>, or if it has other subwords.
    """
    ours = self.vocabulary
    end = vocabulary.document_end
    if ours.kind != vocabulary.kind:
      raise UserError(
        f"corpus {self.name} consists of {ours.kind}, the model's vocabulary "
        f'of {vocabulary.kind}; allowed: a corpus of {vocabulary.kind}'
      )
    # A corpus without <eos> may be read as part of a document.
    if self.of_documents != (end is not None) and ours.eos_id is not None:
      what = 'lines or one text' if end is None else 'documents'
      raise UserError(
        f'corpus {self.name} and the model use <eos> differently: the model '
        f'was trained on {what}; allowed: the data.documents that the model '
        'was trained with, or data.eos False'
      )
    if ours.symbols == vocabulary.symbols:
      return self
    if isinstance(vocabulary, Subwords) and (
      vocabulary.of_documents().symbols != ours.of_documents().symbols
    ):
      raise UserError(
        f'corpus {self.name} has other subwords than the model; allowed: the '
        "model's vocabulary.json as data.tokenizer"
      )
    ids = vocabulary.map_ids(ours)
    missing = np.flatnonzero(ids < 0)
    if missing.size and vocabulary.unk_id is None:
      counts = self._occurrences(*SPLITS)
      if lost := [ours.symbols[i] for i in missing if counts[i]]:
        raise UserError(
          f'corpus {self.name} has {len(lost)} {ours.kind} missing from the '
          f"model's vocabulary of {len(vocabulary)}, which has no <unk>: "
          f'{errors.listed([*map(repr, lost)])}'
        )
    ids[missing] = vocabulary.unk_id or 0  # 0 if the symbol does not occur
    ids = ids.astype(token_dtype(len(vocabulary)))
    return dataclasses.replace(self, vocabulary=vocabulary, id_map=ids)

  def unknown_line(self, before: 'Prepared', *splits: str) -> str:
    """The shares of <unk> here and in `before`, as a line; '' without <unk>."""
    if self.vocabulary.unk_id is None:
      return ''
    shares = (
      f'{self._unknown(x):.2%} of the {x} tokens are <unk> '
      f"({before._unknown(x):.2%} with the corpus's own vocabulary)"
      for x in splits
    )
    return f'with the vocabulary of the model, {", ".join(shares)}'

  def _unknown(self, split):
    counts = self._occurrences(split)
    unk = self.vocabulary.unk_id
    return 0.0 if unk is None else counts[unk] / counts.sum()

  def _occurrences(self, *splits):
    """Counts of each token id in splits, int64 [V]."""
    V = len(self.vocabulary)
    counts = np.zeros(V, np.int64)
    for split in splits:
      tokens = self.tokens(split)
      for at in range(0, len(tokens), _BLOCK):
        counts += np.bincount(tokens[at : at + _BLOCK], minlength=V)
    return counts

  def sentences(self, split: str) -> np.memmap | None:
    """Starts of sentences, int64 [sentences + 1]; None for other corpora."""
    if self.of_documents or 'sentences' not in self.manifest['splits'][split]:
      return None
    return self._starts(split)

  def _starts(self, split):
    return np.memmap(self.folder / SENTENCES.format(split), np.int64, 'r')

  @property
  def of_documents(self) -> bool:
    """Whether the corpus consists of documents, see `data.documents`."""
    return 'documents' in self.manifest.get('options', {})

  def token_stream(self, split: str, count: int = 0) -> np.ndarray | Documents:
    """The first `count` tokens of a split (0 for all), with their documents."""
    tokens = self.tokens(split)
    if self.of_documents:
      return Documents(tokens, self._starts(split)).truncated(count)
    return tokens[: count or None]


def load(folder: str | os.PathLike) -> Prepared:
  """Opens a corpus; UserError unless every file matches the manifest."""
  folder = pathlib.Path(folder)
  path = folder / 'manifest.json'
  try:
    manifest = files.read_json(path)
    if manifest['format'] != FORMAT:
      version = errors.shown(manifest['format'])
      raise UserError(f'{path}: format {version}, this version reads {FORMAT}')
    vocabulary = _check(folder, manifest)
    lists = _files(manifest)
    return Prepared(folder, manifest, vocabulary, files=lists)
  except (UserError, *files.ODD) as e:
    error = f'{e}' if isinstance(e, UserError) else f'{path}: {errors.shown(e)}'
    raise UserError(
      f'{error}: the corpus cannot be used; prepare it again with --force'
    ) from e


def _files(manifest):
  """`Prepared.files`; files.ODD if the manifest is damaged."""
  lists = {}
  source = manifest.get('source', {})
  every = {**source.get('files_of', {}), **source.get('notes', {})}
  for name, paths in every.items():
    count = f'{len(paths):,} files: ' if len(paths) > 1 else ''
    lists |= {name: f'{count}{errors.listed(paths)}'} if paths else {}
  return lists


def write_manifest(
  folder: pathlib.Path,
  name: str,
  config: Data,
  source: dict,
  vocabulary: AnyVocabulary,
  splits: Mapping[str, dict],
) -> None:
  """Writes manifest.json and the vocabulary; `name` becomes the folder's."""
  if isinstance(vocabulary, Words):
    with files.naming(folder / _LIST):
      (folder / _LIST).write_bytes(vocabulary.text())
  if isinstance(vocabulary, Subwords):
    files.write(folder / _TOKENIZER, vocabulary.tokenizer)
  manifest = {
    'format': FORMAT,
    'corpus': config.corpus,
    'folder': name,
    'options': {'documents': config.documents} if config.ends_documents else {},
    'source': source,
    'vocabulary': vocabulary.entry(),
    'dtype': token_dtype(len(vocabulary)),
    'splits': splits,
    'digest': digest_of(splits, vocabulary),
  }
  files.write(folder / 'manifest.json', json.dumps(manifest, indent=1) + '\n')


def token_dtype(size: int) -> str:
  """The smallest of DTYPES for the ids of a vocabulary of this size."""
  return next(d for d in DTYPES if size - 1 <= np.iinfo(d).max)


def digest_of(splits: Mapping[str, dict], vocabulary: AnyVocabulary) -> str:
  """Hex sha256 of the sha256 of each split and the vocabulary's entry."""
  fields = [[splits[s]['sha256'] for s in SPLITS], vocabulary.entry()]
  text = json.dumps(fields, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _check(folder, manifest):
  """Checks all files; returns the vocabulary. files.ODD or UserError if bad."""
  splits, dtype = manifest['splits'], manifest['dtype']
  vocabulary = _vocabulary(folder, manifest['vocabulary'])
  if manifest['digest'] != digest_of(splits, vocabulary):
    raise ValueError('its digest does not match')
  for split in SPLITS:
    entry = splits[split]
    file = folder / TOKENS.format(split)
    _check_file(file, dtype, entry['tokens'], entry['sha256'])
    if 'sentences' in entry:
      file, count = folder / SENTENCES.format(split), entry['sentences'] + 1
      _check_file(file, 'int64', count, entry['sentences_sha256'])
  return vocabulary


def _vocabulary(folder, entry):
  """The vocabulary from its manifest entry."""
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
  """UserError unless a file has `count` numbers and the given sha256."""
  with files.reading(f'{path}'):
    size = path.stat().st_size
    wanted = count * np.dtype(dtype).itemsize
  if size != wanted or not size:
    raise UserError(f'{path} has {size} bytes, expected {wanted}')
  if (found := files.sha256(path)) != sha256:
    raise UserError(f'{path} has sha256 {found}, expected {sha256}')
