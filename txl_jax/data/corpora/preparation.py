"""Prepares corpora: converts text to the files that `prepared` reads.

Folders of local corpora, pystdlib and text, have the sha256 of the source in
their names, so a changed source never replaces data that an older run needs.
Other corpora are downloaded.
"""

import codecs
import contextlib
import hashlib
import os
import pathlib
import re
import sys
import sysconfig

from txl_jax.data import data_config, prepared
from txl_jax.data.corpora import (
  fetching,
  finding,
  id_files,
  local,
  own_text,
  writing,
)
from txl_jax.data.data_config import Data
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabularies import AnyVocabulary, Subwords, Words
from txl_jax.program import files
from txl_jax.program.errors import UserError


def prepare(
  config: Data,
  *,
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
) -> Prepared:
  """Opens a corpus; prepares it first if it does not exist, or if forced.

  With data.dir in a bucket, the corpus is fetched to or prepared in a local
  folder, `fetching.cache`, and uploaded if the bucket does not have it.

  The folder is renamed to its final name when it is complete; a killed process
  leaves a folder *.tmp-*, which is never read. With manual_dir, the archive is
  taken from there and nothing is downloaded. OSError if data cannot be written;
  all other errors are UserErrors.
  """
  config.check()
  remote, config = fetching.split_remote(config)
  original, (config, path, chosen) = config, finding.fetch(config)
  listed, file = _read_list(config)
  splits = {}
  source = {}
  text = None
  if config.corpus == 'text':
    text = finding.find(config, chosen)
    source = own_text.source(config, text) | {'path': path}
  elif config.corpus == 'pystdlib':
    splits, source = local.read_pystdlib(sysconfig.get_path('stdlib'))
  folder = _folder(original, source, file)
  if remote is not None and not force:
    fetching.fetch(remote / folder.name, folder)
  if force or not folder.exists():
    if config.corpus == 'lm1b' and not file:
      size = data_config.SIZES['lm1b']
      raise UserError(
        f'corpus lm1b needs the published list of its {size:,} words; allowed: '
        '--vocab_file=FILE, one word per line'
      )
    # Here, as a FileExistsError below is taken for another process's folder.
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f'preparing {config.corpus} into {folder}', file=sys.stderr)
    if text:
      size = data_config.IDS if listed is None else len(listed)
      splits = own_text.splits(config, text, size)
      source |= own_text.files_of(text, splits)
      source |= own_text.notes(config, text, splits)
    elif not splits:
      # TFDS is needed only for downloads; training does not import it.
      from txl_jax.data.corpora import builders

      splits, source = builders.read(
        config.corpus, config.folder, manual_dir, force
      )
    if file:
      source = {**source, 'vocab_file': file}
    with (
      contextlib.suppress(FileExistsError),  # another process was first
      files.new_folder(folder, replace=force) as made,
    ):
      vocabulary, entries = writing.write(config, splits, made, listed)
      _check(config, len(vocabulary), entries)
      prepared.write_manifest(
        made, folder.name, config, source, vocabulary, entries
      )
  corpus = prepared.load(folder)
  if remote is not None:
    fetching.put(folder, remote / folder.name, force)
  return corpus


def locate_or_prepare(config: Data) -> Prepared:
  """Opens the corpus of a section `data`.

  A local corpus is prepared if it does not exist. UserError if it must be
  downloaded, with the command to run, or if data cannot be written.
  """
  config.check()
  folder = fetching.root(config) / _folder(config, {}, {}).name
  if config.corpus not in data_config.LOCAL and not fetching.is_there(folder):
    raise UserError(f'{folder} does not exist; run: {config.command()}')
  try:
    return prepare(config)
  except OSError as e:
    raise UserError(f'corpus {config.corpus} cannot be prepared: {e}') from e


def vocab_size(config: Data) -> int:
  """The vocabulary size of a corpus, which is prepared only if necessary."""
  config.check()
  return config.known_vocab_size or len(prepare(config).vocabulary)


def _read_list(config: Data) -> tuple[AnyVocabulary | None, dict]:
  """The vocabulary given by the config, or None; its manifest entry."""
  if config.is_id_level:
    return id_files.vocabulary(config)
  key = 'tokenizer' if config.tokenizer else 'vocab_file'
  path = pathlib.Path(getattr(config, key))
  lm1b = config.corpus == 'lm1b'
  if not (config.tokenizer or config.vocab_file):
    return None, {}
  if config.tokenizer and path.is_dir():
    path /= 'tokenizer.json'
  name = f'data.{key}: {path}'
  data = files.read(path, name)
  if config.tokenizer:
    subwords = Subwords.from_file(data, name)
    return subwords, {'file': path.name, 'sha256': subwords.sha256()}
  words = Words.from_list(
    data.removeprefix(codecs.BOM_UTF8),
    str(path),
    eos='<S>' if lm1b else '<eos>' if config.eos else '',
    unk='<UNK>' if lm1b else '<unk>',
    add_unk=config.unk,
    lower=config.lower,
  )
  if lm1b and (len(words) != data_config.SIZES['lm1b'] or not words.unk):
    raise UserError(
      f'{name} has {len(words)} words; allowed: the published list of '
      f'{data_config.SIZES["lm1b"]}, <S> and <UNK> among them'
    )
  return words, {'file': path.name, 'sha256': hashlib.sha256(data).hexdigest()}


def _folder(config: Data, source: dict, file: dict) -> pathlib.Path:
  """The folder of the prepared corpus."""
  name = config.corpus
  if name == 'text':
    path = pathlib.Path(os.path.realpath(config.path))
    stem = re.sub(r'[^\w.-]', '_', path.stem)
    name += f'-{stem[:40]}'
  if source:
    name += f'-{source["sha256"][:12]}'
  name += config.suffix()
  if source and file:
    kind = 'tokenizer' if config.is_subword_level else 'list'
    name += f'-{kind}_{file["sha256"][:12]}'
  return pathlib.Path(config.folder) / name


def _check(config: Data, symbols: int, entries: dict) -> None:
  """UserError if a split has no tokens, or not the published number."""
  for split, entry in entries.items():
    if not entry['tokens'] or entry.get('sentences') == 0:
      raise UserError(
        f'{config.path or config.corpus}: the split {split} has no tokens; '
        'every split needs at least one'
      )
  if config.corpus not in data_config.SIZES:
    return
  from txl_jax.data.corpora import downloads  # imports requests

  archive = downloads.ARCHIVES[config.corpus]
  expected = {f'tokens in {x}': n for x, n in archive.tokens.items()}
  counts = {f'tokens in {x}': entry['tokens'] for x, entry in entries.items()}
  if archive.symbols is not None and config.alphabet == 'seen':
    expected['symbols'] = archive.symbols - (config.newline == 'drop')
    counts['symbols'] = symbols
  for what, number in expected.items():
    if counts[what] != number:
      raise UserError(
        f'{config.corpus}: {counts[what]} {what}, but {number} are published; '
        'use the published text'
      )
