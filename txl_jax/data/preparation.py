"""Preparing corpora: from text to the files that `prepared` reads.

Corpora that lie on this machine, pystdlib and text, are prepared into folders
that are named for the sha256 of their source, so a source that has changed
never replaces data that an older run needs. The others are downloaded.
"""

import hashlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Iterable
from typing import Any

from txl_jax.data import local, prepared
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabulary import Vocabulary, count_bytes
from txl_jax.errors import UserError

_LOCAL = ('pystdlib', 'text')
_DOWNLOADED = ('enwik8', 'text8')
CORPORA = _LOCAL + _DOWNLOADED
NEWLINE = ('keep', 'drop')


def prepare(
  corpus: str,
  data_dir: str | os.PathLike,
  *,
  path: str | os.PathLike = '',
  newline: str = 'keep',
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
) -> Prepared:
  """Prepares a corpus unless it is there already, and opens it.

  The folder appears under its name only when it is complete; a run that is
  killed leaves a folder *.tmp-* that nothing reads.

  Args:
    corpus: one of CORPORA.
    data_dir: holds a folder for each prepared corpus.
    path: corpus text: the file or folder to read.
    newline: keep, or for enwik8 drop: newline bytes become no token.
    manual_dir: for enwik8 and text8: folder that holds the archive; nothing
      is downloaded then.
    force: prepare it although it is there, and replace it.

  Raises:
    UserError: an argument is not allowed, or the text cannot be had.
    OSError: the data cannot be written.
  """
  _check_options(corpus, data_dir, path, newline)
  if manual_dir is not None and corpus in _LOCAL:
    raise UserError(f'--manual_dir: corpus {corpus} has no archive')
  data_dir = pathlib.Path(data_dir)
  if corpus in _LOCAL:
    splits, source = (
      local.read_text(path)
      if corpus == 'text'
      else local.read_pystdlib(sysconfig.get_path('stdlib'))
    )
    folder = data_dir / _local_name(corpus, path, source['sha256'])
  else:
    folder = data_dir / _downloaded_name(corpus, newline)
  if folder.exists() and not force:
    return prepared.load(folder)
  print(f'preparing {corpus} into {folder}', file=sys.stderr)
  if corpus in _LOCAL:
    vocabulary = Vocabulary.all_bytes()
  else:
    # TFDS is needed for downloads alone; training does not import it.
    from txl_jax.data import builders

    splits, source = builders.read(corpus, data_dir, manual_dir, force)
    text = itertools.chain.from_iterable(read() for read in splits.values())
    vocabulary = Vocabulary.from_counts(
      count_bytes(text), dropped=b'\n' if newline == 'drop' else b''
    )
  manifest = {
    'format': prepared.FORMAT,
    'corpus': corpus,
    'folder': folder.name,
    'options': {'newline': newline},
    'source': source,
  }
  _write(folder, manifest, splits, vocabulary, replace=force)
  return prepared.load(folder)


def locate_or_prepare(config: Any) -> Prepared:
  """The corpus that the section `data` of a config asks for.

  A local corpus is prepared if it is not there, one that needs a download is
  not: that is for `python -m txl_jax.prepare`.

  Args:
    config: has the attributes corpus, dir, path and newline.

  Raises:
    UserError: a key has a value that is not allowed, the text or data_dir
      cannot be read or written, or the corpus is to be prepared first.
  """
  corpus = config.corpus
  _check_options(corpus, config.dir, config.path, config.newline)
  if corpus in _LOCAL:
    try:
      return prepare(corpus, config.dir, path=config.path)
    except OSError as e:
      raise UserError(f'corpus {corpus} cannot be prepared: {e}') from e
  folder = pathlib.Path(config.dir) / _downloaded_name(corpus, config.newline)
  if not folder.exists():
    drop = '--newline=drop ' if config.newline == 'drop' else ''
    raise UserError(
      f'{folder} does not exist; run: python -m txl_jax.prepare '
      f'--dataset={corpus} {drop}--data_dir={shlex.quote(str(config.dir))}'
    )
  return prepared.load(folder)


def vocab_size(config: Any) -> int:
  """How many tokens the vocabulary of a corpus has, prepared or not.

  Args:
    config: as for `locate_or_prepare`.
  """
  _check_options(config.corpus, config.dir, config.path, config.newline)
  if config.corpus == 'enwik8':
    return 204 if config.newline == 'drop' else 205
  return 27 if config.corpus == 'text8' else 256


def _check_options(corpus, data_dir, path, newline):
  """Raises a UserError unless the options go together."""
  if corpus not in CORPORA:
    raise UserError(
      f'data.corpus: {corpus!r} is unknown; allowed: {", ".join(CORPORA)}'
    )
  if newline not in NEWLINE:
    raise UserError(f'data.newline: {newline!r}; allowed: {", ".join(NEWLINE)}')
  if newline == 'drop' and corpus != 'enwik8':
    raise UserError(
      f'data.newline: drop is for corpus enwik8 alone, not for {corpus}'
    )
  if path and corpus != 'text':
    raise UserError(
      f'data.path: {path} is for corpus text alone, not for {corpus}'
    )
  if corpus == 'text':
    if not path:
      raise UserError('data.path is empty; corpus text needs a file or folder')
    source = pathlib.Path(path).resolve()
    if pathlib.Path(data_dir).resolve().is_relative_to(source):
      raise UserError(
        f'data.path: {path} holds data.dir {data_dir}, so the prepared data '
        'would become part of the corpus'
      )


def _downloaded_name(corpus, newline):
  return f'{corpus}-newline_drop' if newline == 'drop' else corpus


def _local_name(corpus, path, sha256):
  if corpus == 'text':
    stem = re.sub(r'[^\w.-]', '_', pathlib.Path(path).resolve().stem)
    corpus = f'text-{stem[:40]}'
  return f'{corpus}-{sha256[:12]}'


def _write(
  folder: pathlib.Path,
  manifest: dict,
  splits: local.Splits,
  vocabulary: Vocabulary,
  replace: bool,
) -> None:
  """Writes the files of a corpus, all or none, and replaces it only if told.

  Args:
    folder: where they go.
    manifest: what it says about the source; the rest is added here.
    splits: for each split a function that gives its text in chunks.
    vocabulary: encodes the text.
    replace: whether a folder that is there by now gives way.

  Raises:
    OSError: they cannot be written.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = folder.with_name(f'{folder.name}.tmp-{uuid.uuid4().hex[:8]}')
  temporary.mkdir()
  try:
    dtype = prepared.token_dtype(len(vocabulary))
    written = {
      split: _write_split(
        temporary / f'{split}.bin', splits[split](), vocabulary, dtype
      )
      for split in prepared.SPLITS
    }
    digest = prepared.digest_of(
      {split: w['sha256'] for split, w in written.items()}, vocabulary
    )
    manifest = manifest | {
      'vocabulary': vocabulary.to_json(),
      'dtype': dtype,
      'splits': written,
      'digest': digest,
    }
    text = json.dumps(manifest, indent=1) + '\n'
    (temporary / 'manifest.json').write_text(text)
    replaced = temporary.with_name(f'{temporary.name}-replaced')
    if replace and folder.exists():
      folder.rename(replaced)
    try:
      temporary.rename(folder)
    except OSError:
      # Another process may have prepared the same corpus meanwhile.
      if not folder.exists():
        raise
    shutil.rmtree(replaced, ignore_errors=True)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _write_split(
  path: pathlib.Path,
  chunks: Iterable[bytes],
  vocabulary: Vocabulary,
  dtype: str,
) -> dict:
  """Writes the tokens of a split; returns its entry of the manifest."""
  tokens, size, digest = 0, 0, hashlib.sha256()
  with path.open('wb') as f:
    for chunk in chunks:
      ids = vocabulary.encode(chunk, path.name).astype(dtype)
      block = ids.tobytes()
      f.write(block)
      digest.update(block)
      tokens += ids.size
      size += len(chunk)
  return {'tokens': tokens, 'bytes': size, 'sha256': digest.hexdigest()}
