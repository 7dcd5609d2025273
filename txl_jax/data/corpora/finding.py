"""The files of a corpus of one's own, and which split each belongs to.

What the files hold does not matter here. A file or folder whose name begins or
ends with the name of a split, as a word, is of that split: train.en,
my_train.txt, wiki.valid.tokens, test-00000-of-00002.jsonl.gz, dev/a/b. Numbers
of shards and suffixes do not count; of a path, the first such name does.
data.validation_path and data.test_path are splits of their own, too; data.path
is then what to train on. With data.splits none, or if no name is that of a
split, all files are one text. Files that often lie beside splits are left out;
any other mixture is refused.

Files are in the order of their relative posix paths; hidden files and folders
and links to folders, but for those named for a split, are left out.
"""

import dataclasses
import fnmatch
import os
import pathlib
import re

from txl_jax.data.corpora import local
from txl_jax.data.corpora.local import Part
from txl_jax.data.options import SPLITS, Data
from txl_jax.program.errors import UserError
from txl_jax.program.settings import listed

_NAMES = {'train': 'train', 'training': 'train', 'test': 'test'}
_VALIDATION = 'valid', 'validation', 'val', 'dev', 'eval'
_NAMES |= dict.fromkeys(_VALIDATION, 'validation')
_WORD = re.compile(r'[^\W\d_]+')
_OF_SHARDS = {'of', 'part', 'shard'}
# What lies beside splits and is none, and programs, whatever their names.
_BESIDE = 'readme*', 'license*', 'licence*', 'meta.pkl', 'dataset_*.json'
_PROGRAMS = ('*.py',)
_ALONE = 'data.splits=none reads all files as one'

Files = dict[str, Part]  # as plain bytes, by relative posix paths


@dataclasses.dataclass(frozen=True)
class Found:
  """The files of each split that has its own, of '' what is to be cut."""

  splits: dict[str, Files]
  left_out: tuple[str, ...] = ()  # relative paths


def find(asked: Data) -> Found:
  """The files of a corpus.

  UserError: a path is not that of a file or folder, names of splits and others
  are mixed, or a file of another split is also trained on.
  """
  path = pathlib.Path(asked.path)
  others = {'validation': asked.validation_path, 'test': asked.test_path}
  found, left_out = _files('path', path)
  splits = {'': found}
  if path.is_dir() and asked.splits == 'names':
    splits, more = _by_name(path, found)
    left_out += more
  if '' in splits and any(others.values()):
    splits = {'train': splits['']}
  for split, given in others.items():
    if not given:
      continue
    splits[split], more = _files(f'{split}_path', pathlib.Path(given))
    left_out += more
    trained = {os.path.realpath(x.path) for x in splits['train'].values()}
    for part in splits[split].values():
      if os.path.realpath(part.path) in trained:
        raise UserError(
          f'data.{split}_path: {part.path} is also of data.path; allowed: a '
          'text that is not trained on'
        )
  ordered = {split: splits[split] for split in ('', *SPLITS) if split in splits}
  return Found(ordered, tuple(left_out))


def _files(name: str, path: pathlib.Path) -> tuple[Files, list[str]]:
  """The files at a path, the value of a key, and what is left out."""
  if path.is_dir():
    found, left_out = local.list_files(path)
    for link in [x for x in left_out if _is_split(path / x)]:
      left_out.remove(link)
      inner, more = local.list_files(path / link)
      found |= {f'{link}/{x}': part for x, part in inner.items()}
      left_out += [f'{link}/{x}' for x in more]
    return dict(sorted(found.items())), left_out
  if path.is_file():
    return {path.name: Part.whole(path)}, []
  what = 'is a pipe or device' if path.exists() else 'does not exist'
  raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')


def _by_name(
  root: pathlib.Path, found: Files
) -> tuple[dict[str, Files], list[str]]:
  """The files of a folder by split, and what is left out; see `find`."""
  splits, others, names = {}, [], {}
  for path, part in found.items():
    if name := next(filter(None, map(_split_of, _parts(path))), ''):
      splits.setdefault(_NAMES[name], {})[path] = part
      names.setdefault(_NAMES[name], {}).setdefault(name, path)
    else:
      others.append(path)
  if not splits:
    return {'': found}, []
  beside = [path for path in others if _is_like(path, *_BESIDE, '*.md', '*.py')]
  others = [path for path in others if path not in {*beside}]
  here = '; '.join(f'{s}: {listed([*x])}' for s, x in splits.items())
  where = f'data.path: {root} has names of splits ({here})'
  if others:
    raise UserError(
      f'{where} and others ({listed(others)}); allowed: splits alone; {_ALONE}'
    )
  for split, each in names.items():
    if len(each) > 1:
      raise UserError(
        f'{where}, and {split} has {len(each)} names ({listed([*each])}); '
        f'allowed: one name, or data.validation_path and data.test_path'
      )
  if 'train' not in splits:
    raise UserError(f'{where} and none is train; allowed: a train; {_ALONE}')
  return ({'': splits['train']} if len(splits) == 1 else splits), beside


def _parts(path: str) -> list[str]:
  """The names in a path; that of a program means nothing."""
  *folders, name = path.split('/')
  return folders if _is_like(name, *_BESIDE, *_PROGRAMS) else [*folders, name]


def _is_split(path: pathlib.Path) -> bool:
  """Whether a path is a link to a folder that is named for a split."""
  named = not path.name.startswith('.') and _split_of(path.name)
  return bool(named) and path.is_symlink() and path.is_dir()


def _is_like(path: str, *patterns: str) -> bool:
  name = path.rpartition('/')[2].lower()
  return any(fnmatch.fnmatchcase(name, x) for x in patterns)


def _split_of(name: str) -> str:
  """The name of a split in that of a file or folder; '' for none, or two."""
  words = [
    [word for word in _WORD.findall(part) if word not in _OF_SHARDS]
    for part in name.lower().split('.')
  ]
  words = [part for part in words if part]
  # Any part from the second on may be a suffix.
  ends = {part[-1] for part in words} | {part[0] for part in words[:1]}
  found = ends & _NAMES.keys()
  return found.pop() if len(found) == 1 else ''
