"""Preparing corpora: from text to the files that `prepared` reads.

Local corpora, pystdlib and text, are prepared into folders that are named for
the sha256 of their source, so a source that has changed never replaces data
that an older run needs. The others are downloaded.
"""

import codecs
import hashlib
import os
import pathlib
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax import settings
from txl_jax.corpora import local, published, scratch, writing
from txl_jax.data import options, prepared
from txl_jax.data.options import Data
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError


def prepare(
  asked: Data,
  *,
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
  processes: int = 0,
) -> Prepared:
  """Prepares a corpus unless it is there already, and opens it.

  The folder appears under its name only when it is complete; a run that is
  killed leaves a folder *.tmp-* that nothing reads and the next one removes.

  Args:
    asked: which corpus, where it goes, and its options.
    manual_dir: folder that holds the archive; nothing is downloaded then.
    force: prepare it although it is there, and replace it.
    processes: that read a text of words; 0 is one for each CPU, up to four.
      The result does not depend on it.

  Raises:
    UserError: an argument is not allowed, or the text is missing or wrong.
    OSError: the data cannot be written.
  """
  asked.check()
  if manual_dir is not None and asked.corpus in options.LOCAL:
    raise UserError(f'--manual_dir: corpus {asked.corpus} has no archive')
  listed = _read_list(asked)
  splits, source = _read_local(asked)
  folder = _folder(asked, source, listed)
  if folder.exists() and not force:
    return _open(folder, asked, listed)
  if asked.corpus == 'lm1b' and listed is None:
    raise UserError(
      'corpus lm1b needs the published list of its '
      f'{options.SIZES["lm1b"]:,} words; allowed: --vocab_file=FILE, a word a '
      'line'
    )
  print(f'preparing {asked.corpus} into {folder}', file=sys.stderr)
  if not splits:
    # TFDS is needed for downloads alone; training does not import it.
    from txl_jax.corpora import builders

    splits, source = builders.read(asked.corpus, asked.dir, manual_dir, force)
  if listed is not None:
    name = pathlib.Path(asked.vocab_file).name
    source = {**source, 'vocab_file': {'file': name, 'sha256': listed.sha256}}
  with scratch.beside(folder) as temporary:
    made = temporary / 'made'
    made.mkdir()
    if asked.words:
      vocabulary, entries = writing.write_words(
        asked, splits, made, processes, listed and listed.words
      )
    else:
      vocabulary, entries = writing.write_bytes(asked, splits, made)
    _check(asked, vocabulary, entries)
    source = {
      'corpus': asked.corpus,
      'folder': folder.name,
      'options': asked.recorded(),
      'source': source,
    }
    prepared.write_manifest(made, source, vocabulary, entries)
    if force:
      scratch.replace(made, folder, temporary)
    else:
      scratch.move(made, folder)
  return prepared.load(folder)


def locate_or_prepare(config: Mapping[str, Any]) -> Prepared:
  """The corpus that the section `data` of a config asks for.

  A local corpus is prepared if it is not there, one that needs a download is
  not: that is for `python -m txl_jax.prepare`.

  Raises:
    UserError: a key has a value that is not allowed, the text or data_dir
      cannot be read or written, or the corpus is to be prepared first.
  """
  asked = settings.read(Data, config)
  if asked.corpus in options.LOCAL:
    try:
      return prepare(asked)
    except OSError as e:
      raise UserError(f'corpus {asked.corpus} cannot be prepared: {e}') from e
  asked.check()
  folder = _folder(asked, {}, None)
  if not folder.exists():
    raise UserError(f'{folder} does not exist; run: {asked.command()}')
  return _open(folder, asked, _read_list(asked))


def vocab_size(config: Mapping[str, Any]) -> int:
  """The size of the vocabulary of a corpus, of the section `data`.

  A text of words is prepared for it; the others need no data.
  """
  asked = settings.read(Data, config)
  asked.check()
  if asked.newline == 'drop':
    return options.SIZES['enwik8'] - 1
  if asked.corpus == 'text' and asked.words:
    return len(prepare(asked).vocabulary)
  return options.SIZES.get(asked.corpus, 256)


class _List(NamedTuple):
  sha256: str
  words: Words


def _read_list(asked):
  """The `_List` of data.vocab_file, None without one."""
  if not asked.vocab_file:
    return None
  path = pathlib.Path(asked.vocab_file)
  try:
    data = path.read_bytes()
  except OSError as e:
    raise UserError(f'data.vocab_file: {path}: {e.strerror}') from e
  lm1b = asked.corpus == 'lm1b'
  words = Words.from_list(
    data.removeprefix(codecs.BOM_UTF8),
    str(path),
    eos='<S>' if lm1b else '<eos>' if asked.eos else '',
    unk='<UNK>' if lm1b else '<unk>',
    add_unk=asked.unk,
    lower=asked.lower,
    ranked=not lm1b,  # what is published is used as it is
  )
  if lm1b and (len(words) != options.SIZES['lm1b'] or not words.unk):
    raise UserError(
      f'data.vocab_file: {path} has {len(words)} words'
      f'{"" if words.unk else ", no <UNK> among them"}; the published list has '
      f'{options.SIZES["lm1b"]}, <S> and <UNK> among them'
    )
  return _List(hashlib.sha256(data).hexdigest(), words)


def _read_local(asked) -> tuple[local.Splits, dict]:
  """Splits and source of a local corpus; both empty for another."""
  if asked.corpus == 'text':
    return local.read_text(asked.path, asked.words)
  if asked.corpus == 'pystdlib':
    return local.read_pystdlib(sysconfig.get_path('stdlib'))
  return {}, {}


def _folder(asked, source, listed):
  """Where a corpus is once it is prepared."""
  name = asked.corpus
  if name == 'text':
    stem = re.sub(r'[^\w.-]', '_', pathlib.Path(asked.path).resolve().stem)
    name += f'-{stem[:40]}'
  if source:
    name += f'-{source["sha256"][:12]}'
  name += asked.suffix()
  if source and listed is not None:
    name += f'-list_{listed.sha256[:12]}'
  return pathlib.Path(asked.dir) / name


def _open(folder, asked, listed):
  """Loads a corpus that is there; a list must be the one it was made with."""
  found = prepared.load(folder)
  if listed is not None:
    then = found.manifest['source']['vocab_file']
    if then['sha256'] != listed.sha256:
      raise UserError(
        f'data.vocab_file: {asked.vocab_file} has sha256 {listed.sha256}, '
        f'{folder} was made with {then["file"]}, sha256 {then["sha256"]}; '
        'allowed: the same list, or to prepare the corpus again with --force'
      )
  return found


def _check(asked: Data, vocabulary: Vocabulary | Words, entries: dict) -> None:
  """Raises a UserError unless there are tokens, as many as are published."""
  for split, entry in entries.items():
    if not entry['tokens']:
      raise UserError(
        f'{asked.path or asked.corpus}: the split {split} has no tokens; '
        'allowed: a text with some in each of its three parts'
      )
  archive = published.ARCHIVES.get(asked.corpus)
  if archive is None:
    return
  figures = [
    (f'tokens in the split {split}', entries[split]['tokens'], expected)
    for split, expected in archive.tokens.items()
  ]
  if archive.symbols is not None:
    symbols = archive.symbols - (asked.newline == 'drop')
    figures.append(('symbols in the vocabulary', len(vocabulary), symbols))
  for what, found, expected in figures:
    if found != expected:
      raise UserError(
        f'{asked.corpus}: {found} {what}, published are {expected}; allowed: '
        'the published text'
      )
