"""The user's own text: cuts the files of `finding` into splits.

Without a validation split, the last 5 % of the training text is used; without a
test split, the validation split is used again. A text without splits is cut at
90 and 95 percent. Files are plain text or records; for token ids see
`id_files`.
"""

import codecs
import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable

from txl_jax.data.corpora import id_files, local, records
from txl_jax.data.corpora.finding import SplitFiles
from txl_jax.data.corpora.local import Part, Split, Splits
from txl_jax.data.data_config import IDS, SPLITS, Data
from txl_jax.program.errors import UserError, refuse

_WINDOW = 4096  # bytes in which a cut looks for the start of a line
_SPACE = re.compile(rb'[ \t\n\r\v\f]')  # never inside a UTF-8 character


def source(config: Data, files: SplitFiles) -> dict:
  """The manifest entry for the source: path, number of files, bytes, sha256.

  The sha256 covers relative paths, sizes, contents on disk, the split of each
  file, and which columns were plain text in version 1.0.
  """
  merged = {}
  for split, parts in files.splits.items():
    lead = f'{split}/' if split else ''
    for name, part in parts.items():
      column = part.by_field and records.MAYBE.search(name)
      merged[f'{lead}{name}{f": {config.field}" if column else ""}'] = part
  return local.source(pathlib.Path(config.path), merged)


def files_of(files: SplitFiles, splits: Splits) -> dict:
  """The rest of the entry: files of each split, and files left out.

  A file that is cut belongs to several splits.
  """
  names = {x.path: name for y in files.splits.values() for name, x in y.items()}
  each = {s: [names[x.path] for x in y.parts] for s, y in splits.items()}
  return {'files_of': each | {'left out': files.left_out}}


def notes(config: Data, files: SplitFiles, splits: Splits) -> dict:
  """The entry for files that may not be what the user expects, by reason."""
  parts = [x for split in splits.values() for x in split.parts if x.size]
  whole = {x.path: dataclasses.replace(x, start=0, stop=x.size) for x in parts}
  names = {x.path: name for y in files.splits.values() for name, x in y.items()}
  found = {'empty': [names[x] for x in names if x not in whole]}
  if not (config.raw or config.is_id_level):
    text = [x for x in whole if not records.NAMES.search(x.name)]
    found['not UTF-8'] = [names[x] for x in text if not _is_utf8(whole[x])]
    by_field = [names[x] for x in whole if whole[x].by_field]
    maybe = [x for x in text if records.MAYBE.search(x.name)]
    plain = [names[x] for x in maybe if not whole[x].by_field]
    if plain and by_field:
      raise UserError(
        f'{plain[0]} is not read by the field {config.field!r} (data.field), '
        f'unlike {by_field[0]}; allowed: the same field in both'
      )
    found[f'plain text, not read by the field {config.field!r}'] = plain
  return {'notes': found}


def _is_utf8(part):
  try:
    for _ in codecs.iterdecode(part(), 'utf-8'):
      pass
  except UnicodeDecodeError:
    return False
  return True


def splits(config: Data, files: SplitFiles, size: int = IDS) -> Splits:
  """The text of each split, or its token ids, which must be below `size`.

  Documents are never cut, see `local.document_ends`. Other text is cut at the
  first start of a line within 4096 bytes after the offset; without one, a text
  of words is cut after the first white space, and other text at the first start
  of a UTF-8 character. Token ids are cut anywhere. UserError if a file cannot
  be read, or there is too little text.
  """
  texts = {
    split: _texts(config, x.values(), size) for split, x in files.splits.items()
  }
  if '' in texts:
    return dict(zip(SPLITS, _cut(config, texts[''], 90, 95)))
  whole = {split: Split(tuple(parts)) for split, parts in texts.items()}
  if 'validation' not in whole:
    cut = _cut(config, texts['train'], 95)
    whole |= dict(zip(('train', 'validation'), cut))
  whole.setdefault('test', whole['validation'])
  return {split: whole[split] for split in SPLITS}


def _texts(config: Data, parts: Iterable[Part], size: int) -> list[Part]:
  """The text of each file; those that are not plain are read for their size."""
  texts = []
  of_records = config.documents == 'record'
  for part in parts:
    path, by_field = part.path, part.by_field
    of_ids = config.is_id_level and not by_field
    if config.of_texts and (of_ids or of_records != by_field):
      text = '' if of_ids else ', line, blank, separator'
      allowed = f'none, file{", record" if by_field else text}, since {path} '
      allowed += f'has {"" if by_field else "no "}records'
      refuse('data.documents', config.documents, allowed)
    if config.is_id_level:
      read = functools.partial(id_files.read, path, config, size)
      part = Part.whole(path, read)
    elif by_field:
      how = not of_records, config.field
      part = Part.whole(path, functools.partial(records.texts, path, *how))
    elif config.of_texts:
      read = functools.partial(local.documents, config, path)
      part = Part.whole(path, read)
    elif not config.raw:
      part = local.text(path)
    texts.append(dataclasses.replace(part, by_field=by_field))
  return texts


def _cut(config: Data, parts: list[Part], *percents: int) -> list[Split]:
  """Cuts the concatenated files at percentages of their bytes."""
  total = sum(part.size for part in parts)
  unit = id_files.DTYPE.itemsize if config.is_id_level else 1
  wanted = [total * p // 100 // unit * unit for p in percents]
  if config.ends_documents:
    cuts = local.document_ends(config, parts, wanted)
  elif config.is_id_level:
    cuts = wanted
  else:
    cuts = [_cut_position(parts, i, config.is_word_level) for i in wanted]
  pairs = [*itertools.pairwise([0, *cuts, total])]
  if any(start >= stop for start, stop in pairs):
    what = 'ids' if config.is_id_level else 'lines'
    how = f'data.documents={config.documents} {config.separator}'.rstrip()
    what = f'documents ({how})' if config.ends_documents else what
    raise UserError(
      f'data.path: {config.path} has {total} bytes, too few {what} to '
      f'make {len(pairs)} splits; provide more text, or set '
      'data.validation_path and data.test_path'
    )
  return [local.between(parts, *pair) for pair in pairs]


def _cut_position(parts: list[Part], offset: int, words: bool) -> int:
  """The position of a cut at or after an offset, see `splits`."""
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
