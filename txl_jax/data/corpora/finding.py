"""The files of a corpus of one's own, and the split that each belongs to.

A file or folder is of a split if its name begins or ends with that of the split
as a word, whatever its suffixes and numbers: train.en, my_val.txt, dev/a/b,
test-00000-of-00002.jsonl.gz. data.validation_path and data.test_path are
splits, too; data.path is then what to train on. Without any, all files are one
text. They are in the order of their relative posix paths; hidden files and
links to folders, but for those named for a split, are left out.
"""

import dataclasses
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
# Names of no split, and of what else may lie beside splits.
_NAMED = r'readme.*|licen[cs]e.*|meta\.pkl|dataset_.*\.json|.*\.py'
_NONE = re.compile(f'(?is){_NAMED}')
_BESIDE = re.compile(rf'(?is){_NAMED}|.*\.md')

Files = dict[str, Part]  # as plain bytes, by relative posix paths


@dataclasses.dataclass(frozen=True)
class SplitFiles:
  """The files of each split that has its own, of '' what is to be cut."""

  splits: dict[str, Files]
  left_out: list[str]  # relative paths


def find(data: Data) -> SplitFiles:
  """The files of a corpus, whatever they hold.

  UserError: a path is not that of a file or folder, names of splits and others
  are mixed, or a file of another split is also trained on.
  """
  path = pathlib.Path(data.path)
  others = {'validation': data.validation_path, 'test': data.test_path}
  files, left_out = _files('path', path)
  splits = {'': files}
  if path.is_dir() and data.splits == 'names':
    splits, beside = _by_name(path, files)
    left_out += beside
  if '' in splits and any(others.values()):
    splits = {'train': splits['']}
  for split, other in others.items():
    if other:
      left_out += splits.get(split, ())
      splits[split], beside = _files(f'{split}_path', pathlib.Path(other))
      left_out += beside
  # A link may lead to a file of the training split.
  trained = {os.path.realpath(x.path) for x in splits.get('train', {}).values()}
  for split, other in others.items():
    for part in splits.get(split, {}).values():
      if os.path.realpath(part.path) in trained:
        name = f'{split}_path' if other else 'path'
        raise UserError(
          f'data.{name}: {part.path} is also trained on; allowed: a {split} '
          'text that is not'
        )
  ordered = {split: splits[split] for split in ('', *SPLITS) if split in splits}
  return SplitFiles(ordered, left_out)


def _files(name, path) -> tuple[Files, list[str]]:
  """The files at a path, the value of a key, and what is left out."""
  if path.is_file():
    return {path.name: Part.whole(path)}, []
  if not path.is_dir():
    what = 'is a pipe or device' if path.exists() else 'does not exist'
    raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')
  return local.list_files(path, follow=_word)


def _by_name(root, files) -> tuple[dict[str, Files], list[str]]:
  """The files of a folder by split, and what is left out; see `find`."""
  words: dict[str, Files] = {}
  for path, part in files.items():
    *names, last = path.split('/')
    if not _NONE.fullmatch(last):
      names.append(last)
    word = next(filter(None, map(_word, names)), '')
    words.setdefault(word, {})[path] = part
  rest = words.pop('', {})
  if not words:
    return {'': rest}, []
  beside = {x for x in rest if _BESIDE.fullmatch(x.rpartition('/')[2])}
  splits = {_NAMES[word]: files for word, files in words.items()}
  wrong = 'no train' if 'train' not in splits else ''
  if len(splits) < len(words):
    wrong = 'two for one split'
  if others := [x for x in rest if x not in beside]:
    wrong = f'others ({listed(others)})'
  if wrong:
    first = listed([f'{word}: {next(iter(x))}' for word, x in words.items()])
    raise UserError(
      f'data.path: {root} has names of splits ({first}) and {wrong}; allowed: '
      'one name for each split and no others, with a train, or '
      'data.splits=none, which reads all files as one text'
    )
  if len(splits) == 1:
    splits = {'': splits['train']}
  return splits, sorted(beside)


def _word(name: str) -> str:
  """The word in the name of a file or folder that names a split, or ''."""
  # Any part from the second on may be a suffix.
  parts = [
    [word for word in _WORD.findall(part) if word not in _OF_SHARDS]
    for part in name.lower().split('.')
  ]
  parts = [*filter(None, parts)]
  ends = {part[-1] for part in parts} | {part[0] for part in parts[:1]}
  words = ends & _NAMES.keys()
  return words.pop() if len(words) == 1 else ''
