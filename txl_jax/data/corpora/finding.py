"""Finds the files of a user's corpus, and the split of each file.

A file or folder belongs to a split if its name contains exactly one split name
as a word: train.en, my_val.txt, dev/a/b, enTest_v2.txt, trainset,
test-00000-of-00002.jsonl.gz. Without any split, all files form one text, in the
order of their relative posix paths; with data.validation_path or
data.test_path, it is the training split. Names that differ only in a split,
like mytrain and mytest, must not be in one split. Hidden files are left out, as
are links to folders unless they are named after a split.
"""

import dataclasses
import fnmatch
import itertools
import pathlib
import re
from collections.abc import Collection, Iterable

from txl_jax.data.corpora import id_files, local, records
from txl_jax.data.data_config import SPLITS, Data
from txl_jax.program import hub
from txl_jax.program.errors import UserError, first_line, listed
from txl_jax.program.files import ODD, read_json

_NAMES = {'train': 'train', 'training': 'train', 'trn': 'train'}
_NAMES |= {'test': 'test', 'testing': 'test', 'tst': 'test'}
_VALIDATION = 'valid', 'validation', 'val', 'dev', 'eval'
_NAMES |= dict.fromkeys(_VALIDATION, 'validation')
_NAMES |= {x + end: y for x, y in _NAMES.items() for end in ('set', 'data')}
_WORD = re.compile(r'[^\W\d_]+')
_INNER_CAPITAL = re.compile(r'(?<=[a-z])(?=[A-Z])')
_ANY = re.compile('|'.join(sorted(_NAMES, key=len, reverse=True)))
# Files left out beside records; files that never form a split; and all files
# allowed next to splits.
_ABOUT = 'readme*', 'license*', 'licence*', 'meta.pkl'
_ABOUT = *_ABOUT, 'dataset_info*.json', 'dataset_dict.json'
_NONE = *_ABOUT, '*.py'
_BESIDE = *_NONE, '*.md', 'dataset_*.json'

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
    splits, more = _by_name(path, files, left_out)
    left_out += more
  if '' in splits and any(others.values()):
    splits = {'train': splits['']}
  for split, given in others.items():
    if given:
      left_out += splits.get(split, ())
      splits[split], more = _files(config, f'{split}_path')
      left_out += more
      if config.splits == 'names':
        _check_one_split(f'data.{split}_path: {given}', splits[split])
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
  text = r'\.txt', r'\.([ct]sv|json)(\.\w+)?'
  kinds += [r'\.npy', r'\.bin'] if config.is_id_level else text

  def choose(there):
    one = where.folder
    lead = f'{where.folder}/'.lstrip('/')
    inside = [x for x in there if x == one or x.startswith(lead)]
    others = [x for x in inside if not _is_like(x, _ABOUT)]
    each = ([x for x in others if re.search(f'{k}$', x)] for k in kinds)
    found = next(filter(None, each), None)
    if not found:
      raise UserError(
        f'data.path: {where} has {listed(inside) or "no files"}; allowed: '
        '.parquet, .jsonl, .txt, .csv or .json files'
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
  path = pathlib.Path(getattr(config, name))
  left_out = []
  if path.is_file():
    files = {path.name: local.Part.whole(path)}
  elif not path.is_dir():
    what = 'is a pipe or device' if path.exists() else 'does not exist'
    raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')
  else:
    files, left_out = local.list_files(path, follow=_word)
    lost = [x for x in left_out if _split_words(x.rpartition('/')[2])]
    if lost and name == 'path' and config.splits == 'names':
      raise UserError(
        f'data.path: {path / lost[0]} is named after a split, but is not a '
        'file or folder (a broken link?); fix or remove it'
      )
    files = {x: y for x, y in files.items() if not only or x in only}
  if config.is_id_level:
    others = {x for x in files if not id_files.NAMES.search(x)}
    pieces = [x for x in others if x.endswith('.json')]
    others -= {
      x for x in pieces if records.has_field(files[x].path, config.field)
    }
  elif path.is_file() or config.raw:
    others = set()
  else:
    others = _beside_records(config, files)
  if not config.raw:
    others |= _unlisted(path, files)
  kept = {x: part for x, part in files.items() if x not in others}
  if others and not kept:
    raise UserError(
      f'data.{name}: {path} has no token ids; allowed: .bin, .npy, .jsonl, '
      '.json, .parquet or .arrow'
    )
  if not config.raw:
    for x, part in kept.items():
      by_field = records.are_in(part.path, config.field)
      kept[x] = dataclasses.replace(part, by_field=by_field)
  return kept, sorted([*left_out, *others])


def _id(part):
  """An id that is equal for two names of the same file."""
  stat = part.path.stat()
  return stat.st_dev, stat.st_ino


def _beside_records(config: Data, found: Files) -> set[str]:
  """Files that are neither records nor text, if others are records."""
  maybe = {x: p.path for x, p in found.items() if records.MAYBE.search(x)}
  by_field = {x for x in maybe if records.are_in(maybe[x], config.field)}
  if not (by_field or any(map(records.NAMES.search, found))):
    return set()
  patterns = _ABOUT if config.field == Data.field else _NONE
  data = {x for x in found if records.NAMES.search(x)}
  data |= {x for x in by_field if not x.endswith('.json')}
  about = {x for x in found if _is_like(x, patterns)} - data
  return about | ({*maybe} - by_field)


def _unlisted(root, found) -> set[str]:
  """The files of `datasets.save_to_disk` that are not its data."""
  beside, others = {}, set()  # Arrow files by folder
  for path in found:
    if path.lower().endswith('.arrow'):
      beside.setdefault(path.rpartition('/')[0], set()).add(path)
  for folder, arrows in beside.items():
    lead = f'{folder}/'.lstrip('/')
    if (state := f'{lead}state.json') in found:
      listed = read_json(root / state).get('_data_files') or ()
      try:
        named = {f'{lead}{x["filename"]}' for x in listed}
      except ODD as e:
        raise UserError(f'{root / state} is damaged: {first_line(e)}') from e
      if lost := sorted(named - arrows):
        raise UserError(f'{root / state} lists {lost[0]}, which does not exist')
      others |= {state, *(arrows - named if named else ())}
  return others


def _by_name(root, found, left_out) -> tuple[dict[str, Files], list[str]]:
  """The files of a folder by split, and more files left out; see `find`."""
  named = {path: _split_words(path) for path in found}
  words: dict[str, Files] = {}
  for path, part in found.items():
    words.setdefault(next(iter(named[path]), ''), {})[path] = part
  rest = words.pop('', {})
  if not words:
    _check_one_split(f'data.path: {root}', rest)
    return {'': rest}, []
  splits = {_NAMES[word]: x for word, x in words.items()}
  every = {_NAMES[x] for x in itertools.chain(*named.values())}
  beside = [path for path in rest if _is_like(path, _BESIDE)]
  strange = [path for path in rest if not _is_like(path, _BESIDE)]
  split_of = lambda path: {*map(_NAMES.get, _split_words(path)[:1])}
  lost = [path for path in left_out if split_of(path) - {*splits}]
  train = splits.get('train', {})
  problems = {
    f'other files ({listed(strange)})': strange,
    f'a split in another format ({listed(lost)})': lost,
    'other split names within them': every - {*splits},
    'two names for one split': len(splits) < len(words),
    'no train': not train,
  }
  if any(problems.values()):
    wrong = next(problem for problem, found in problems.items() if found)
    first = listed([f'{word}: {next(iter(x))}' for word, x in words.items()])
    none = 'or data.splits=none, which reads all files as one text; '
    raise UserError(
      f'data.path: {root} has split names ({first}) and {wrong}; allowed: one '
      'name for each split, train among them, and no other files; '
      f'{none if len(every) == 1 and not lost else ""}token ids are read with '
      'data.level=id'
    )
  _check_one_split(f'data.path: {root}', train)
  return ({'': train} if len(splits) == 1 else splits), beside


def _split_words(path: str) -> list[str]:
  """The split names in a relative path, outermost first; [] if hidden."""
  *folders, name = path.split('/')
  if name.startswith('.'):
    return []
  each = folders if _is_like(path, _NONE) else [*folders, name]
  return [*filter(None, map(_word, each))]


def _check_one_split(name: str, paths: Iterable[str]) -> None:
  """UserError if names differ in their splits, or in train and another only."""
  of: dict[frozenset, str] = {}
  alike: dict[str, dict[tuple, str]] = {}
  for path in paths:
    of[frozenset(map(_NAMES.get, _split_words(path)))] = path
    lower = path.lower()
    same = alike.setdefault(_ANY.sub('*', lower), {})
    same[tuple(_NAMES[x] for x in _ANY.findall(lower))] = path
  of.pop(frozenset(), None)
  pairs = (x for x in alike.values() if len(x) > 1 and 'train' in sum(x, ()))
  if mixed := of if len(of) > 1 else next(pairs, {}):
    none = '; or data.splits=none, which reads all files as one text'
    raise UserError(
      f'{name} has names of several splits in one ({listed([*mixed.values()])})'
      '; allowed: names like train.txt and test.txt, or a path for each: '
      f'data.path, data.validation_path, data.test_path{"" if of else none}'
    )


def _is_like(path, patterns):
  name = path.rpartition('/')[2].lower()
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _word(name: str) -> str:
  """The split name in a file or folder name, if there is only one, else ''."""
  words = _WORD.findall(_INNER_CAPITAL.sub(' ', name).lower())
  names = _NAMES.keys() & words
  return names.pop() if len(names) == 1 else ''
