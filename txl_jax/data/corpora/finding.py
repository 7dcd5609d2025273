"""The files of a corpus of one's own, and the split that each belongs to.

A file or folder is of a split if its name has that of the split, and of no
other, as a word: train.en, my_val.txt, dev/a/b, enTest_v2.txt, trainset,
test-00000-of-00002.jsonl.gz. data.validation_path and data.test_path are
splits, too; data.path is then what to train on. Without any, all files are one
text. They are in the order of their relative posix paths; hidden files and
links to folders, but for those named for a split, are left out.
"""

import dataclasses
import fnmatch
import pathlib
import re
from collections.abc import Collection

from txl_jax.data.corpora import id_files, local
from txl_jax.data.corpora.local import Part
from txl_jax.data.options import SPLITS, Data
from txl_jax.program import hub
from txl_jax.program.errors import UserError
from txl_jax.program.settings import listed

_NAMES = {'train': 'train', 'training': 'train', 'trn': 'train'}
_NAMES |= {'test': 'test', 'testing': 'test', 'tst': 'test'}
_VALIDATION = 'valid', 'validation', 'val', 'dev', 'eval'
_NAMES |= dict.fromkeys(_VALIDATION, 'validation')
_NAMES |= {x + end: y for x, y in _NAMES.items() for end in ('set', 'data')}
_WORD = re.compile(r'[^\W\d_]+')
_INNER_CAPITAL = re.compile(r'(?<=[a-z])(?=[A-Z])')
# No splits, whatever their names; what else may lie beside splits.
_NONE = 'readme*', 'license*', 'licence*', 'meta.pkl', 'dataset_*.json', '*.py'
_BESIDE = *_NONE, '*.md'
_OF_TABLES = 'state.json', 'dataset_*.json'

Files = dict[str, Part]  # as plain bytes, by relative posix paths


@dataclasses.dataclass(frozen=True)
class SplitFiles:
  """The files of each split that has its own, of '' what is to be cut."""

  splits: dict[str, Files]
  left_out: list[str]  # relative paths


def find(asked: Data, only: Collection[str] = ()) -> SplitFiles:
  """The files of a corpus, whatever they hold; of data.path maybe only some.

  UserError: a path is not that of a file or folder, names of splits and others
  are mixed, or a file of another split is also trained on.
  """
  path = pathlib.Path(asked.path)
  others = {'validation': asked.validation_path, 'test': asked.test_path}
  found, left_out = _files(asked, 'path', only)
  splits = {'': found}
  if path.is_dir() and asked.splits == 'names':
    if lost := [*filter(_of_split, left_out)]:
      raise UserError(
        f'data.path: {path / lost[0]} is named for a split, but is no file or '
        'folder, or a link to none; allowed: a text there, or data.splits=none'
      )
    splits, more = _by_name(path, found)
    left_out += more
  if '' in splits and any(others.values()):
    splits = {'train': splits['']}
  for split, given in others.items():
    if given:
      left_out += splits.get(split, ())
      splits[split], more = _files(asked, f'{split}_path')
      left_out += more
    trained = {_id(x): x.path for x in splits.get('train', {}).values()}
    for part in splits.get(split, {}).values():
      if same := trained.get(_id(part)):
        raise UserError(
          f'data.{f"{split}_path" if given else "path"}: {part.path} is '
          f'trained on, as {same}; allowed: another text'
        )
  ordered = {split: splits[split] for split in ('', *SPLITS) if split in splits}
  return SplitFiles(ordered, left_out)


def fetch(asked: Data) -> tuple[Data, str, list[str]]:
  """The options with a local data.path; what it is, and its files.

  A data set of the Hub is downloaded: its .parquet, or else its .jsonl and so
  on. UserError: see `hub.snapshot`; or it has none, or several data sets.
  """
  if not hub.is_place(asked.path):
    return asked, asked.path, []
  where = hub.dataset(asked.path, 'data.path')
  kinds = [r'\.parquet', r'\.(jsonl|ndjson|jsonlines)(\.\w+)?']
  kinds += [r'\.npy', r'\.bin'] if asked.ids else [r'\.txt']

  def choose(there):
    one, lead = where.folder, f'{where.folder}/'.lstrip('/')
    here = [x for x in there if x == one or x.startswith(lead)]
    each = ([x for x in here if re.search(f'{k}$', x)] for k in kinds)
    found = next(filter(None, each), None)
    if not found:
      raise UserError(
        f'data.path: {where} has {listed(here) or "no files"}; allowed: one '
        'with .parquet or .jsonl'
      )
    folders = [x.split('/')[:-1] for x in found]
    # Folders that are named for a split do not count.
    names = {'/'.join(y for y in x if not _word(y)) for x in folders}
    if len(names) > 1:
      raise UserError(
        f'data.path: {where} has the folders {listed(sorted(names))}; allowed: '
        f'one of them, as hf://datasets/{where.repository}/FOLDER'
      )
    return [*found, *(x for x in here if x.endswith(id_files.META))]

  found = hub.snapshot(where, choose)
  path = found.folder / where.folder
  files = [x.removeprefix(f'{where.folder}/') for x in found.files]
  return dataclasses.replace(asked, path=f'{path}'), found.name, files


def _files(asked, name, only=()) -> tuple[Files, list[str]]:
  """The files at a path, the value of a key, and what is left out."""
  path, left_out = pathlib.Path(getattr(asked, name)), []
  if path.is_file():
    found = {path.name: Part.whole(path)}
  elif not path.is_dir():
    what = 'is a pipe or device' if path.exists() else 'does not exist'
    raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')
  else:
    found, left_out = local.list_files(path, follow=_word)
    found = {x: y for x, y in found.items() if not only or x in only}
  if asked.ids:
    others = [x for x in found if not id_files.NAMES.search(x)]
  else:  # a folder of `datasets.save_to_disk` describes its files
    tables = any(x.lower().endswith('.arrow') for x in found)
    others = [x for x in found if tables and _is_like(x, _OF_TABLES)]
  kept = {x: part for x, part in found.items() if x not in others}
  if others and not kept:
    raise UserError(
      f'data.{name}: {path} has no token ids; allowed: .bin, .npy, .jsonl, '
      '.parquet or .arrow'
    )
  return kept, sorted([*left_out, *others])


def _id(part):
  """Equal for one file under two names."""
  found = part.path.stat()
  return found.st_dev, found.st_ino


def _of_split(path):
  """Whether a path that is left out is no hidden one, but named for a split."""
  name = path.rpartition('/')[2]
  return not name.startswith('.') and _word(name)


def _by_name(root, found) -> tuple[dict[str, Files], list[str]]:
  """The files of a folder by split, and what is left out; see `find`."""
  words: dict[str, Files] = {}
  every = set()  # splits that are named at any level
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
    wrong = 'two for one split'
  if len(splits) < len(every):
    wrong = 'others within them'
  if others:
    wrong = f'others ({listed(others)})'
  if wrong:
    first = listed([f'{word}: {next(iter(x))}' for word, x in words.items()])
    raise UserError(
      f'data.path: {root} has names of splits ({first}) and {wrong}; allowed: '
      'one name for each split and no others, with a train, or '
      'data.splits=none, which reads all files as one text; token ids are '
      'read with data.level=id'
    )
  return ({'': splits['train']} if len(splits) == 1 else splits), beside


def _is_like(path, patterns):
  name = path.rpartition('/')[2].lower()
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _word(name: str) -> str:
  """The word in the name of a file or folder that names a split, or ''."""
  words = _WORD.findall(_INNER_CAPITAL.sub(' ', name).lower())
  found = _NAMES.keys() & words
  return found.pop() if len(found) == 1 else ''
