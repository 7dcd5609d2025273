"""Finds the files of a user's corpus, and the split of each file.

A file or folder belongs to a split if its name contains exactly one split name
as a word: train.en, my_val.txt, dev/a/b, enTest_v2.txt, trainset,
test-00000-of-00002.jsonl.gz. Without any split, all files form one text, in the
order of their relative posix paths; with data.validation_path or
data.test_path, it is the training split. Hidden files are left out, as are
links to folders unless they are named after a split.
"""

import dataclasses
import fnmatch
import pathlib
import re
from collections.abc import Collection

from txl_jax.data.corpora import id_files, local
from txl_jax.data.options import SPLITS, Data
from txl_jax.program import hub
from txl_jax.program.errors import UserError, listed

_NAMES = {'train': 'train', 'training': 'train', 'trn': 'train'}
_NAMES |= {'test': 'test', 'testing': 'test', 'tst': 'test'}
_VALIDATION = 'valid', 'validation', 'val', 'dev', 'eval'
_NAMES |= dict.fromkeys(_VALIDATION, 'validation')
_NAMES |= {x + end: y for x, y in _NAMES.items() for end in ('set', 'data')}
_WORD = re.compile(r'[^\W\d_]+')
_INNER_CAPITAL = re.compile(r'(?<=[a-z])(?=[A-Z])')
# Files that never form a split, and all files allowed next to splits.
_NONE = 'readme*', 'license*', 'licence*', 'meta.pkl', 'dataset_*.json', '*.py'
_BESIDE = *_NONE, '*.md'
_OF_TABLES = 'state.json', 'dataset_*.json'

Files = dict[str, local.Part]  # by relative posix path, as plain bytes


@dataclasses.dataclass(frozen=True)
class SplitFiles:
  """The files of each split; '' is for text not yet cut into splits."""

  splits: dict[str, Files]
  left_out: list[str]  # relative paths


def find(config: Data, only: Collection[str] = ()) -> SplitFiles:
  """The files of a corpus; `only` restricts those of data.path.

  UserError if a path is neither file nor folder, if files with and without
  split names are mixed, or if a file of another split is also used to train.
  """
  path = pathlib.Path(config.path)
  others = {'validation': config.validation_path, 'test': config.test_path}
  files, left_out = _files(config, 'path', only)
  splits = {'': files}
  if path.is_dir() and config.splits == 'names':
    if lost := [*filter(_of_split, left_out)]:
      raise UserError(
        f'data.path: {path / lost[0]} is named after a split, but is not a '
        'file or folder (a broken link?); fix it, or set data.splits=none'
      )
    splits, more = _by_name(path, files)
    left_out += more
  if '' in splits and any(others.values()):
    splits = {'train': splits['']}
  for split, given in others.items():
    if given:
      left_out += splits.get(split, ())
      splits[split], more = _files(config, f'{split}_path')
      left_out += more
    trained = {_id(x): x.path for x in splits.get('train', {}).values()}
    for part in splits.get(split, {}).values():
      if same := trained.get(_id(part)):
        raise UserError(
          f'data.{f"{split}_path" if given else "path"}: {part.path} is also '
          f'training text, as {same}; allowed: another text'
        )
  ordered = {split: splits[split] for split in ('', *SPLITS) if split in splits}
  return SplitFiles(ordered, left_out)


def fetch(config: Data) -> tuple[Data, str, list[str]]:
  """Returns the section with a local data.path, its name, and its files.

  From a Hub data set, downloads .parquet files, else .jsonl, and so on.
  UserError if there are none, or several data sets; see `hub.snapshot`.
  """
  if not hub.is_place(config.path):
    return config, config.path, []
  where = hub.dataset(config.path, 'data.path')
  kinds = [r'\.parquet', r'\.(jsonl|ndjson|jsonlines)(\.\w+)?']
  kinds += [r'\.npy', r'\.bin'] if config.is_id_level else [r'\.txt']

  def choose(there):
    one, lead = where.folder, f'{where.folder}/'.lstrip('/')
    inside = [x for x in there if x == one or x.startswith(lead)]
    each = ([x for x in inside if re.search(f'{k}$', x)] for k in kinds)
    found = next(filter(None, each), None)
    if not found:
      raise UserError(
        f'data.path: {where} has {listed(inside) or "no files"}; allowed: '
        '.parquet or .jsonl files'
      )
    folders = [x.split('/')[:-1] for x in found]
    # Folders named after a split belong to the same data set.
    names = {'/'.join(y for y in x if not _word(y)) for x in folders}
    if len(names) > 1:
      raise UserError(
        f'data.path: {where} has the folders {listed(sorted(names))}; allowed: '
        f'one of them, as hf://datasets/{where.repository}/FOLDER'
      )
    return [*found, *(x for x in inside if x.endswith(id_files.META))]

  found = hub.snapshot(where, choose)
  path = found.folder / where.folder
  files = [x.removeprefix(f'{where.folder}/') for x in found.files]
  return dataclasses.replace(config, path=f'{path}'), found.name, files


def _files(config: Data, name, only=()) -> tuple[Files, list[str]]:
  """The files at the path in the key `name`, and the files left out."""
  path, left_out = pathlib.Path(getattr(config, name)), []
  if path.is_file():
    files = {path.name: local.Part.whole(path)}
  elif not path.is_dir():
    what = 'is a pipe or device' if path.exists() else 'does not exist'
    raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')
  else:
    files, left_out = local.list_files(path, follow=_word)
    files = {x: y for x, y in files.items() if not only or x in only}
  if config.is_id_level:
    others = [x for x in files if not id_files.NAMES.search(x)]
  else:  # `datasets.save_to_disk` adds JSON files of metadata
    tables = any(x.lower().endswith('.arrow') for x in files)
    others = [x for x in files if tables and _is_like(x, _OF_TABLES)]
  kept = {x: part for x, part in files.items() if x not in others}
  if others and not kept:
    raise UserError(
      f'data.{name}: {path} has no token ids; allowed: .bin, .npy, .jsonl, '
      '.parquet or .arrow'
    )
  return kept, sorted([*left_out, *others])


def _id(part):
  """An id that is equal for two names of the same file."""
  stat = part.path.stat()
  return stat.st_dev, stat.st_ino


def _of_split(path):
  """Whether a path is named after a split and is not hidden."""
  name = path.rpartition('/')[2]
  return not name.startswith('.') and _word(name)


def _by_name(root, found) -> tuple[dict[str, Files], list[str]]:
  """The files of a folder by split, and the files left out; see `find`."""
  words: dict[str, Files] = {}
  every = set()  # splits named at any level of a path
  for path, part in found.items():
    *folders, name = path.split('/')
    each = folders if _is_like(path, _NONE) else [*folders, name]
    named = [*filter(None, map(_word, each)), '']
    words.setdefault(named[0], {})[path] = part
    every |= {_NAMES[word] for word in named[:-1]}
  rest = words.pop('', {})
  if not words:
    return {'': rest}, []
  beside = [path for path in rest if _is_like(path, _BESIDE)]
  others = [path for path in rest if not _is_like(path, _BESIDE)]
  splits = {_NAMES[word]: x for word, x in words.items()}
  wrong = 'no train' if 'train' not in splits else ''
  if len(splits) < len(words):
    wrong = 'two names for one split'
  if len(splits) < len(every):
    wrong = 'other split names within them'
  if others:
    wrong = f'other files ({listed(others)})'
  if wrong:
    first = listed([f'{word}: {next(iter(x))}' for word, x in words.items()])
    raise UserError(
      f'data.path: {root} has split names ({first}) and {wrong}; allowed: one '
      'name for each split, train among them, and no other files; or '
      'data.splits=none, which reads all files as one text; token ids are '
      'read with data.level=id'
    )
  return ({'': splits['train']} if len(splits) == 1 else splits), beside


def _is_like(path, patterns):
  name = path.rpartition('/')[2].lower()
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _word(name: str) -> str:
  """The split name in a file or folder name, if there is only one, else ''."""
  words = _WORD.findall(_INNER_CAPITAL.sub(' ', name).lower())
  names = _NAMES.keys() & words
  return names.pop() if len(names) == 1 else ''
