"""The user's own text: which files it consists of, and how it is split.

Files or sub-folders of a folder that are named for splits become those splits:
a train, and a valid (also validation, val, dev) or a test, or both. A name may
have a word before it (wiki.train.tokens), the number of a shard after it
(train-00000-of-00002.parquet), and a suffix of a text, of records or of a
packed file (see `formats`). Splits are also separate if data.validation_path or
data.test_path is given; data.path is then what to train on. Without a
validation split the last 5 % of the training text are used; without a test
split the validation split is used again. Any other file or folder is one text,
cut at 90 and 95 percent.

The files of a folder are read in the order of their relative posix paths;
hidden files and folders and links to folders are skipped.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Iterable

from txl_jax.data.corpora import documents, formats, local
from txl_jax.data.corpora.local import Part, Split, Splits
from txl_jax.data.options import SPLITS, Data
from txl_jax.program import settings
from txl_jax.program.errors import UserError

_WINDOW = 4096  # bytes within which a cut looks for the start of a line
_SPACE = re.compile(rb'[ \t\n\r\v\f]')  # never part of another UTF-8 character
_NAMES = {'train': 'train', 'test': 'test'}
_NAMES |= dict.fromkeys(('valid', 'validation', 'val', 'dev'), 'validation')
_NAME = re.compile(
  rf'(?P<before>[\w-]+\.)?(?P<name>{"|".join(_NAMES)})'
  r'(-\d+-of-\d+)?(?P<form>\.parquet|(\.(txt|tokens|raw|jsonl))?(\.(gz|zst))?)',
  re.IGNORECASE,
)
_SHOWN = 3  # names shown in a line

Files = dict[str, Part]  # as plain bytes, by relative posix paths


@dataclasses.dataclass(frozen=True)
class Found:
  """The files of a text."""

  asked: Data
  files: dict[str, Files]  # of each split that has its own; '': to be cut
  others: tuple[str, ...] = ()  # what else is in a folder with splits

  def source(self) -> dict:
    """The manifest's entry: path, number of files, bytes, and a sha256.

    The sha256 is over relative paths, sizes and contents as they are on disk,
    and which split each file belongs to.
    """
    path, merged = pathlib.Path(self.asked.path), {}
    for split, files in self.files.items():
      lead = f'{split}/' if split else ''
      merged |= {f'{lead}{name}': part for name, part in files.items()}
    found = local.source(path, merged)
    if set(self.files) != {''}:
      found['splits'] = {split: [*x] for split, x in self.files.items()}
    read_by = (
      ('field', any(formats.has_records(x.path) for x in merged.values())),
      ('separator', self.asked.documents == 'separator'),
    )
    for name in (name for name, here in read_by if here):
      value = getattr(self.asked, name)
      digest = hashlib.sha256(f'{found["sha256"]}\0{value}'.encode())
      found |= {name: value, 'sha256': digest.hexdigest()}
    return found

  def splits(self) -> Splits:
    """The text of each split.

    Documents are never cut: a cut is moved from its offset to the first end of
    a document at or after it. Other text is cut at the first start of a line
    there, or, if there is none within 4096 bytes, at the first byte there that
    does not continue a UTF-8 character. A text of words is then cut after white
    space instead, however far that is, and the end of a file also ends a line.
    UserError: a file cannot be read, or there is too little text.
    """
    texts = {split: self._texts(x.values()) for split, x in self.files.items()}
    if '' in texts:
      return dict(zip(SPLITS, self._cut(texts[''], 90, 95)))
    whole = {split: Split(tuple(parts)) for split, parts in texts.items()}
    if 'validation' not in whole:
      cut = self._cut(texts['train'], 95)
      whole |= dict(zip(('train', 'validation'), cut))
    whole.setdefault('test', whole['validation'])
    return {split: whole[split] for split in SPLITS}

  def told(self, entries: dict[str, dict]) -> str:
    """One line that says which text each split is, with bytes and tokens."""
    names = {split: _listed(files) for split, files in self.files.items()}
    if '' in names:
      shares = 'the first 90 %', 'the next 5 %', 'the last 5 %'
      what = {s: f'{share} of {names[""]}' for s, share in zip(SPLITS, shares)}
    else:
      what = {
        'validation': 'the last 5 % of that, for no file is one',
        'test': 'the validation split again, for no file is one',
      } | names
      if 'validation' not in names:
        what['train'] = f'the first 95 % of {names["train"]}'
    told = []
    for split in SPLITS:
      e = entries[split]
      line = f'{split} is {what[split]}: {e["bytes"]:,} bytes, '
      line += f'{e["tokens"]:,} tokens'
      if self.asked.ends_documents:
        n = e['sentences']
        line += f' of {n:,} document{"s" * (n != 1)}'
      told.append(line)
    line = '; '.join(told)
    if self.others:
      line += f'; left out: {_listed(self.others)}'
    return line

  def _texts(self, parts: Iterable[Part]) -> list[Part]:
    """The text of each file; one that is not plain text is read to its end."""
    found = []
    for part in parts:
      newlines = self.asked.documents != 'record'
      read = formats.reader(part.path, self.asked.field, newlines)
      found.append(Part.whole(part.path, read) if read else part)
    return found

  def _cut(self, files: list[Part], *percents: int) -> list[Split]:
    """The concatenated files, cut at these percentages of their bytes."""
    words, total = self.asked.words, sum(file.size for file in files)
    wanted = [total * p // 100 for p in percents]
    if self.asked.ends_documents:
      cuts = documents.places(self.asked, files, wanted)
    else:
      cuts = [_place(files, offset, words) for offset in wanted if total]
    cuts = [0, *cuts, total]
    if any(start >= stop for start, stop in itertools.pairwise(cuts)):
      raise UserError(
        f'data.path: {self.asked.path} has {total} bytes, too few lines to cut '
        f'it into {len(percents) + 1} splits'
      )
    return [local.between(files, *part) for part in itertools.pairwise(cuts)]


def find(asked: Data) -> Found:
  """The files of a text.

  UserError: a path is not that of a file or folder, a split has files under two
  names, or a key is given that would have no effect.
  """
  path = pathlib.Path(asked.path)
  named, others = _named(path) if path.is_dir() else ({}, ())
  if not asked.validation_path and not asked.test_path:
    files = named or {'': _files('path', path)}
  elif named:
    raise UserError(
      f'data.path: {path} has splits of its own ({", ".join(named)}); allowed: '
      'that without data.validation_path and data.test_path, or a file or '
      'folder to train on'
    )
  else:
    files = {'train': _files('path', path)}
    real = os.path.realpath
    trained = {real(part.path) for part in files['train'].values()}
    for split in SPLITS[1:]:
      name = f'{split}_path'
      if given := getattr(asked, name):
        files[split] = _files(name, pathlib.Path(given))
        for part in files[split].values():
          if real(part.path) in trained:
            raise UserError(
              f'data.{name}: {part.path} is also of data.path; allowed: a text '
              'that is not trained on'
            )
  _check_records(asked, files)
  return Found(asked, files, others if named else ())


def _check_records(asked: Data, files: dict[str, Files]) -> None:
  """Raises a UserError if there are no records where they are asked for."""
  paths = [part.path for x in files.values() for part in x.values()]
  plain = [path for path in paths if not formats.has_records(path)]
  none = 'has no records (.jsonl, .parquet)'
  if asked.field != Data.field and plain == paths:
    allowed = f'{Data.field!r}, for {asked.path} {none}'
    settings.refuse('data.field', asked.field, allowed)
  if asked.documents == 'record' and plain:
    allowed = f'none, file or separator, for {plain[0]} {none}'
    settings.refuse('data.documents', asked.documents, allowed)


def _files(name, path) -> Files:
  """The files at a path, the value of a key."""
  if path.is_dir():
    return local.list_files(path, lambda relative: True)
  if path.is_file():
    return {path.name: Part.whole(path)}
  what = 'is a pipe or device' if path.exists() else 'does not exist'
  raise UserError(f'data.{name}: {path} {what}; allowed: a file or folder')


def _named(root: pathlib.Path) -> tuple[dict[str, Files], tuple[str, ...]]:
  """The files of each split named in a folder, and all other names.

  Both are empty if the names give no training split, or only that.
  """
  files, forms, others, doubled = {}, {}, [], ''
  try:
    paths = sorted(root.iterdir())
  except OSError as e:
    raise UserError(f'data.path: {root} cannot be read: {e.strerror}') from e
  for path in paths:
    found = _NAME.fullmatch(path.name)
    if path.name.startswith('.') or not (path.is_dir() or path.is_file()):
      continue
    if not found or (path.is_dir() and (found['before'] or found['form'])):
      others.append(path.name)
      continue
    split = _NAMES[found['name'].lower()]
    form = found['before'], found['name'], found['form'], path.is_dir()
    first = forms.setdefault(split, (form, path.name))
    if form != first[0]:
      doubled = f'{first[1]} and {path.name}, each for the split {split}'
    lead = f'{path.name}/' if path.is_dir() else ''
    for name, part in _files('path', path).items():
      files.setdefault(split, {})[f'{lead}{name}'] = part
  if 'train' not in forms or len(forms) == 1:
    return {}, ()
  if doubled:
    raise UserError(f'data.path: {root} has {doubled}; allowed: one of them')
  return {s: files.get(s, {}) for s in SPLITS if s in forms}, tuple(others)


def _listed(names: Iterable[str]) -> str:
  """A few names, and how many more there are."""
  names = [*names]
  more = f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''
  return ', '.join(names[:_SHOWN]) + more


def _place(files: list[Part], offset: int, words: bool) -> int:
  """Where a cut wanted at an offset is made, see `Found.splits`."""
  ends = list(itertools.accumulate(file.size for file in files))
  total = ends[-1]
  # A cut of words goes no further than the end of the file.
  end = next(n for n in ends if n >= offset) if words else total
  start, stop = max(offset - 1, 0), min(offset + _WINDOW, end)
  window = b''.join(local.between(files, start, stop)())
  if line := window.find(b'\n') + 1:
    return start + line
  if not words:
    while offset < stop and window[offset - start] & 0xC0 == 0x80:
      offset += 1
    return offset
  if end <= offset + _WINDOW and end < total:
    return end
  for chunk in local.between(files, start, end)():
    if space := _SPACE.search(chunk):
      return start + space.end()
    start += len(chunk)
  return end
