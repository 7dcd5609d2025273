"""The user's own text: which files it consists of, and how it is split.

Files or sub-folders of a folder that are named for splits become those splits:
a train, and a valid (also validation, val, dev) or a test, or both. A name may
have a word before it (wiki.train.tokens), the number of a shard after it
(train-00000-of-00002.jsonl), and a suffix of a text or of records (.jsonl).
data.validation_path and data.test_path are splits of their own, too; data.path
is then what to train on. Without a validation split the last 5 % of the
training text are used; without a test split the validation split is used again.
Any other file or folder is one text, cut at 90 and 95 percent.

The files of a folder are read in the order of their relative posix paths;
hidden files and folders and links to folders are skipped.
"""

import functools
import itertools
import os
import pathlib
import re
from collections.abc import Iterable

from txl_jax.data.corpora import local
from txl_jax.data.corpora.local import Part, Split, Splits
from txl_jax.data.options import SPLITS, Data
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError

_WINDOW = 4096  # bytes within which a cut looks for the start of a line
_SPACE = re.compile(rb'[ \t\n\r\v\f]')  # never part of another UTF-8 character
_NAMES = {'train': 'train', 'test': 'test'}
_NAMES |= dict.fromkeys(('valid', 'validation', 'val', 'dev'), 'validation')
_NAME = re.compile(
  rf'(?P<before>[\w-]+\.)?(?P<name>{"|".join(_NAMES)})'
  r'(-\d+-of-\d+)?(?P<form>\.(txt|tokens|raw|jsonl))?',
  re.IGNORECASE,
)

Files = dict[str, Part]  # as plain bytes, by relative posix paths
Found = dict[str, Files]  # of each split that has its own; '': to be cut


def find(asked: Data) -> Found:
  """The files of a text.

  UserError: a path is not that of a file or folder, or a file of another split
  is also trained on.
  """
  path = pathlib.Path(asked.path)
  others = {'validation': asked.validation_path, 'test': asked.test_path}
  found = _named(path) if path.is_dir() else {}
  if not found:
    found['train' if any(others.values()) else ''] = _files('path', path)
  for split, given in others.items():
    if not given:
      continue
    found[split] = _files(f'{split}_path', pathlib.Path(given))
    trained = {os.path.realpath(x.path) for x in found['train'].values()}
    for part in found[split].values():
      if os.path.realpath(part.path) in trained:
        raise UserError(
          f'data.{split}_path: {part.path} is also of data.path; allowed: a '
          'text that is not trained on'
        )
  return {split: found[split] for split in ('', *SPLITS) if split in found}


def source(asked: Data, found: Found) -> dict:
  """The manifest's entry: path, number of files, bytes, and a sha256.

  The sha256 is over relative paths, sizes and contents as they are on disk,
  and which split each file belongs to.
  """
  merged = {}
  for split, parts in found.items():
    lead = f'{split}/' if split else ''
    merged |= {f'{lead}{name}': part for name, part in parts.items()}
  entry = local.source(pathlib.Path(asked.path), merged)
  if '' not in found:
    entry['splits'] = {split: [*parts] for split, parts in found.items()}
  return entry


def splits(asked: Data, found: Found) -> Splits:
  """The text of each split.

  A text of documents is cut between two, see `local.document_ends`. Other text
  is cut at the first start of a line at or after the offset, or, if there is
  none within 4096 bytes, at the first byte there that does not continue a UTF-8
  character; a text of words is then cut after the first white space within
  them. UserError: a file cannot be read, or there is too little text.
  """
  texts = {split: _texts(asked, x.values()) for split, x in found.items()}
  if '' in texts:
    return dict(zip(SPLITS, _cut(asked, texts[''], 90, 95)))
  whole = {split: Split(tuple(parts)) for split, parts in texts.items()}
  if 'validation' not in whole:
    cut = _cut(asked, texts['train'], 95)
    whole |= dict(zip(('train', 'validation'), cut))
  whole.setdefault('test', whole['validation'])
  return {split: whole[split] for split in SPLITS}


def _texts(asked: Data, parts: Iterable[Part]) -> list[Part]:
  """The text of each file; one of records is read to its end."""
  found, of_records = [], asked.documents == 'record'
  for part in parts:
    if part.path.suffix.lower() == '.jsonl':
      read = functools.partial(local.records, part.path, not of_records)
      part = Part.whole(part.path, read)
    elif of_records:
      allowed = f'none or file, for {part.path} is no .jsonl'
      settings.refuse('data.documents', asked.documents, allowed)
    found.append(part)
  return found


def _cut(asked: Data, parts: list[Part], *percents: int) -> list[Split]:
  """The concatenated files, cut at these percentages of their bytes."""
  total = sum(part.size for part in parts)
  wanted = [total * p // 100 for p in percents]
  if asked.ends_documents:
    cuts = local.document_ends(asked, parts, wanted)
  else:
    cuts = [_place(parts, offset, asked.words) for offset in wanted]
  pairs = [*itertools.pairwise([0, *cuts, total])]
  if any(start >= stop for start, stop in pairs):
    what = 'documents' if asked.ends_documents else 'lines'
    raise UserError(
      f'data.path: {asked.path} has {total} bytes, too few {what} to cut it '
      f'into {len(pairs)} splits; allowed: more, or texts for '
      'data.validation_path and data.test_path'
    )
  return [local.between(parts, *pair) for pair in pairs]


def _place(parts: list[Part], offset: int, words: bool) -> int:
  """Where a cut wanted at an offset is made, see `splits`."""
  start = max(offset - 1, 0)
  window = b''.join(local.between(parts, start, offset + _WINDOW)())
  if line := window.find(b'\n') + 1:
    return start + line
  if words and (space := _SPACE.search(window)):
    return start + space.end()
  at = offset - start
  while at < len(window) and window[at] & 0xC0 == 0x80:
    at += 1
  return start + at


def _files(name: str, path: pathlib.Path) -> Files:
  """The files at a path, the value of a key."""
  if path.is_dir():
    return local.list_files(path)
  if path.is_file():
    return {path.name: Part.whole(path)}
  what = 'is a pipe or device' if path.exists() else 'does not exist'
  raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')


def _named(root: pathlib.Path) -> Found:
  """The files of each split named in a folder.

  There are none if the names give no training split, or only that.
  """
  found = {}
  with files.reading(f'data.path: {root}'):
    paths = sorted(root.iterdir())
  for path in paths:
    name = _NAME.fullmatch(path.name)
    is_folder = path.is_dir()
    if not name or not (is_folder or path.is_file()):
      continue
    if is_folder and (name['before'] or name['form']):
      continue
    here = found.setdefault(_NAMES[name['name'].lower()], {})
    lead = f'{path.name}/' if is_folder else ''
    for relative, part in _files('path', path).items():
      here[f'{lead}{relative}'] = part
  return found if 'train' in found and len(found) > 1 else {}
