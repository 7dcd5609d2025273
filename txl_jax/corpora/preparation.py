"""Preparing corpora: from text to the files that `prepared` reads.

Corpora that lie on this machine, pystdlib and text, are prepared into folders
that are named for the sha256 of their source, so a source that has changed
never replaces data that an older run needs. The others are downloaded.
"""

import codecs
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import Any

from txl_jax import settings
from txl_jax.corpora import counting, local, scratch, writing
from txl_jax.data import options, prepared
from txl_jax.data.options import Data
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabulary import Vocabulary, count_bytes
from txl_jax.data.words import Words
from txl_jax.errors import UserError


def prepare(
  corpus: str,
  data_dir: str | os.PathLike,
  *,
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
  processes: int = 0,
  **choices: Any,
) -> Prepared:
  """Prepares a corpus unless it is there already, and opens it.

  The folder appears under its name only when it is complete; a run that is
  killed leaves a folder *.tmp-* that nothing reads and the next one removes.

  Args:
    corpus: one of `options.CORPORA`.
    data_dir: holds a folder for each prepared corpus.
    manual_dir: for corpora to download: folder that holds the archive;
      nothing is downloaded then.
    force: prepare it although it is there, and replace it.
    processes: that read a text of words; 0 is one for each CPU, up to four.
      The result does not depend on it.
    **choices: the other fields of `options.Data`.

  Raises:
    UserError: an argument is not allowed, or the text cannot be had.
    OSError: the data cannot be written.
  """
  asked = Data(corpus, data_dir, **choices)
  asked.check()
  if manual_dir is not None and corpus in options.LOCAL:
    raise UserError(f'--manual_dir: corpus {corpus} has no archive')
  words = _read_list(asked)
  folder, splits, source = _local(asked, words) or (_folder(asked), {}, {})
  if folder.exists() and not force:
    return _open(folder, asked, words)
  if corpus == 'lm1b' and words is None:
    raise UserError(
      'corpus lm1b needs the published list of its '
      f'{options.SIZES["lm1b"]:,} words; allowed: --vocab_file=FILE, a word a '
      'line'
    )
  archive = None
  print(f'preparing {corpus} into {folder}', file=sys.stderr)
  if not splits:
    # TFDS is needed for downloads alone; training does not import it.
    from txl_jax.corpora import builders

    splits, source = builders.read(corpus, data_dir, manual_dir, force)
    archive = builders.ARCHIVES[corpus]
  manifest = {
    'format': prepared.FORMAT,
    'corpus': corpus,
    'folder': folder.name,
    'options': asked.recorded(),
    'source': source,
  }
  if words is not None:
    manifest['source'] = {**source, 'vocab_file': _told(asked, words[0])}
  if asked.words:
    processes = processes or counting.processes_by_default()
    text = writing.Text(asked, splits, processes)
    encode = functools.partial(text.write, vocabulary=words and words[1])
  else:
    vocabulary = _byte_vocabulary(asked, splits)
    encode = functools.partial(_write_bytes, splits, vocabulary)
  check = functools.partial(_check, asked, archive)
  _write(folder, manifest, encode, check, replace=force)
  return prepared.load(folder)


def locate_or_prepare(config: Any) -> Prepared:
  """The corpus that the section `data` of a config asks for.

  A local corpus is prepared if it is not there, one that needs a download is
  not: that is for `python -m txl_jax.prepare`.

  Args:
    config: the section `data` of a config.

  Raises:
    UserError: a key has a value that is not allowed, the text or data_dir
      cannot be read or written, or the corpus is to be prepared first.
  """
  asked = settings.read(Data, config)
  asked.check()
  if asked.corpus in options.LOCAL:
    fields = dict(config.items())
    try:
      return prepare(fields.pop('corpus'), fields.pop('dir'), **fields)
    except OSError as e:
      raise UserError(f'corpus {asked.corpus} cannot be prepared: {e}') from e
  folder = _folder(asked)
  if not folder.exists():
    raise UserError(f'{folder} does not exist; run: {asked.command()}')
  return _open(folder, asked, _read_list(asked))


def vocab_size(config: Any) -> int:
  """How many tokens the vocabulary of a corpus has, prepared or not.

  A text of words is prepared for it: only then it is known.

  Args:
    config: as for `locate_or_prepare`.
  """
  asked = settings.read(Data, config)
  asked.check()
  if asked.newline == 'drop':
    return options.SIZES['enwik8'] - 1
  if asked.corpus == 'text' and asked.words:
    return len(locate_or_prepare(config).vocabulary)
  return options.SIZES.get(asked.corpus, 256)


def _folder(asked):
  """Where a corpus that is downloaded lies."""
  return pathlib.Path(asked.dir) / f'{asked.corpus}{asked.suffix()}'


def _local(asked, words):
  """Folder, splits and source of a local corpus; None for another."""
  if asked.corpus not in options.LOCAL:
    return None
  splits, source = (
    local.read_text(asked.path, asked.words)
    if asked.corpus == 'text'
    else local.read_pystdlib(sysconfig.get_path('stdlib'))
  )
  name = asked.corpus
  if name == 'text':
    stem = re.sub(r'[^\w.-]', '_', pathlib.Path(asked.path).resolve().stem)
    name = f'text-{stem[:40]}'
  name += f'-{source["sha256"][:12]}{asked.suffix()}'
  if words is not None:
    name += f'-list_{words[0][:12]}'
  return pathlib.Path(asked.dir) / name, splits, source


def _read_list(asked):
  """sha256 and vocabulary of the list of words, or None without one."""
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
  return hashlib.sha256(data).hexdigest(), words


def _told(asked, sha256):
  return {'file': pathlib.Path(asked.vocab_file).name, 'sha256': sha256}


def _open(folder, asked, words):
  """Loads a corpus that is there; a list must be the one it was made with."""
  found = prepared.load(folder)
  if words is not None:
    then = found.manifest['source']['vocab_file']
    if then['sha256'] != words[0]:
      raise UserError(
        f'data.vocab_file: {asked.vocab_file} has sha256 {words[0]}, {folder} '
        f'was made with {then["file"]}, sha256 {then["sha256"]}; allowed: the '
        'same list, or to prepare the corpus again with --force'
      )
  return found


def _byte_vocabulary(asked, splits):
  """The vocabulary of a corpus of bytes."""
  if asked.corpus in options.LOCAL:
    return Vocabulary.all_bytes()
  text = itertools.chain.from_iterable(read() for read in splits.values())
  return Vocabulary.from_counts(
    count_bytes(text), dropped=b'\n' if asked.newline == 'drop' else b''
  )


def _write(
  folder: pathlib.Path,
  manifest: dict,
  encode: Callable[[pathlib.Path], tuple[Vocabulary | Words, dict]],
  check: Callable[[Vocabulary | Words, dict], None],
  replace: bool,
) -> None:
  """Writes the files of a corpus, all or none, and replaces it only if told.

  Args:
    folder: where they go.
    manifest: what it says about the source; the rest is added here.
    encode: writes the tokens into a folder; gives the vocabulary and, for
      each split, what the manifest says about it.
    check: raises a UserError if these are not what they are to be.
    replace: whether a folder that is there by now gives way.

  Raises:
    UserError: what `encode` or `check` raises.
    OSError: they cannot be written.
  """
  with scratch.beside(folder) as temporary:
    made = temporary / 'made'
    made.mkdir()
    vocabulary, written = encode(made)
    check(vocabulary, written)
    if isinstance(vocabulary, Words):
      (made / prepared.WORD_LIST).write_bytes(vocabulary.text())
    digest = prepared.digest_of(
      {split: w['sha256'] for split, w in written.items()}, vocabulary
    )
    manifest = manifest | {
      'vocabulary': vocabulary.entry(),
      'dtype': prepared.token_dtype(len(vocabulary)),
      'splits': written,
      'digest': digest,
    }
    (made / 'manifest.json').write_text(json.dumps(manifest, indent=1) + '\n')
    if replace:
      scratch.replace(made, folder, temporary)
    else:
      scratch.move(made, folder)


def _check(asked, archive, vocabulary, splits):
  """Raises a UserError unless there are tokens, as many as are published."""
  for split, entry in splits.items():
    if not entry['tokens']:
      raise UserError(
        f'{asked.path or asked.corpus}: the split {split} has no tokens; '
        'allowed: a text with some in each of its three parts'
      )
  if archive is None:
    return
  figures = []
  if archive.symbols is not None:
    symbols = archive.symbols - (asked.newline == 'drop')
    figures.append(('symbols in the vocabulary', len(vocabulary), symbols))
  for split, expected in archive.tokens.items():
    found = splits[split]['tokens']
    figures.append((f'tokens in the split {split}', found, expected))
  for what, found, expected in figures:
    if found != expected:
      raise UserError(
        f'{asked.corpus}: {found} {what}, published are {expected}; allowed: '
        'the published text'
      )


def _write_bytes(splits, vocabulary, folder):
  """Writes the tokens of a corpus of bytes; see `_write`."""
  dtype = prepared.token_dtype(len(vocabulary))
  return vocabulary, {
    split: _write_split(
      folder / f'{split}.bin', splits[split](), vocabulary, dtype
    )
    for split in prepared.SPLITS
  }


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
