"""Records with a field of text or token ids: JSON, or rows of tables.

Tables are Parquet files, Arrow files written by `datasets.save_to_disk`, and
.csv or .tsv files, whose first row names the columns. A .json file holds an
array of records, or one record per line.
"""

import csv
import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from txl_jax.data import plain_text
from txl_jax.data.corpora import local
from txl_jax.data.data_config import Data
from txl_jax.program import errors
from txl_jax.program.errors import UserError, listed, shown

_PACKED = r'(\.(gz|bz2|xz|zst))?'
NAMES = re.compile(
  rf'\.((jsonl|ndjson|jsonlines){_PACKED}|parquet|arrow)$', re.IGNORECASE
)
# Records if the first one, or the row of names, has the field.
MAYBE = re.compile(rf'\.(csv|tsv|json){_PACKED}$', re.IGNORECASE)
_CELLS = re.compile(r'\.[ct]sv(\.\w+)?$', re.IGNORECASE)
_TABLES = '.parquet', '.arrow'
_ROWS = 1024  # rows read at once
_TEXT, _IDS = 'a string', 'a list of integers'


def are_in(path: pathlib.Path, field: str) -> bool:
  """Whether a file is read by a field of its records, not as plain text.

  UserError: it cannot have fields, but the field is not the default.
  """
  if NAMES.search(path.name):
    return True
  if not MAYBE.search(path.name):
    if field != Data.field:
      allowed = f'only with records, which {path} does not have'
      errors.refuse('data.field', field, allowed)
    return False
  return field != Data.field or has_field(path, field)


def has_field(path: pathlib.Path, field: str) -> bool:
  """Whether the first record of a .json, or a row of names, has a field."""
  try:
    if _CELLS.search(path.name):
      return field in _columns(path, field)[1]
    first = next(_objects(path, field, _TEXT))[1]
    # pandas writes a column as an object.
    return isinstance(first, dict) and type(first.get(field, {})) is not dict
  except (StopIteration, UserError):  # neither a table nor JSON
    return False


def texts(path: pathlib.Path, newlines: bool, field: str) -> Iterator[bytes]:
  """Yields the text of each record; `newlines` adds a missing final newline.

  Skips blank lines. UserError: an unreadable file, or a record without text.
  """
  # The bytes of a .csv in another encoding are kept, as those of plain text.
  how = 'surrogateescape' if _CELLS.search(path.name) else 'strict'
  for where, value in _values(path, field, _TEXT):
    if not isinstance(value, str):
      _refuse(where, _json(value), field, _TEXT)
    try:
      data = plain_text.normal(value.encode('utf-8', how))
    except UnicodeEncodeError:
      _refuse(where, 'half of a surrogate pair', field, _TEXT)
    needs_one = newlines and not data.endswith(b'\n')
    yield data + b'\n' if needs_one else data


def ids(path: pathlib.Path, field: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (location, ids [n]) of each record; UserError if it has no ids."""
  for where, value in _values(path, field, _IDS):
    # MidiTok writes a .json for each piece, with a list for each track.
    nested = path.suffix == '.json' and type(value) is list
    nested = nested and {*map(type, value)} == {list}
    for ids in value if nested else [value]:
      # NumPy would accept True as 1.
      is_list = type(ids) is list and {*map(type, ids)} <= {int}
      array: Any = np.array(ids or np.zeros([0], int)) if is_list else ids
      if getattr(array, 'ndim', 0) != 1 or array.dtype.kind not in 'iu':
        _refuse(where, _json(value), field, _IDS)
      yield where, array


def _values(path, field, what) -> Iterator[tuple[str, Any]]:
  """Yields the location and the field's value of each record."""
  if path.suffix.lower() in _TABLES:
    yield from _rows(path, field, what)
    return
  if _CELLS.search(path.name):
    yield from _cells(path, field, what)
    return
  for where, record in _objects(path, field, what):
    try:
      value = record[field]
    except KeyError:
      names = listed([*map(repr, record)])
      found = f'the fields {names}' if names else 'no fields'
      _refuse(where, found, field, what)
    except TypeError:
      _refuse(where, _json(record), field, what)
    yield where, value


def _objects(path, field, what) -> Iterator[tuple[str, Any]]:
  """Yields the location and the value of each record of a JSON file."""
  lines = enumerate(local.between_separators(local.plain(path), b'\n'), 1)
  texts = ((f'{path}: line {i}', x) for i, x in lines if x.strip())
  for where, text in texts:
    array = MAYBE.search(path.name) and text.lstrip().startswith(b'[')
    if array:
      text = b'\n'.join([text, *(x for _, x in texts)])
    try:
      value = json.loads(text)
    except (ValueError, RecursionError):
      kind = 'a JSON array or lines' if MAYBE.search(path.name) else 'JSON'
      found = f'{shown(text.decode(errors="replace"))}, not {kind}'
      _refuse(where, found, field, what)
    if array and isinstance(value, list):
      yield from ((f'{path}: record {i}', x) for i, x in enumerate(value, 1))
    else:
      yield where, value


def _cells(path, field, what) -> Iterator[tuple[str, str]]:
  """`_values` for a .csv or .tsv; skips blank lines."""
  delimiter, names = _columns(path, field)
  if not names:  # an empty file
    return
  if names.count(field) != 1:
    found = f'the columns {listed([*map(repr, names)])}'
    _refuse(f'{path}', found, field, what)
  rows = _reader(path, delimiter, True)
  column = names.index(field)
  try:
    next(rows)
    for row in rows:
      where = f'{path}: line {rows.line_num}'
      if row and len(row) != len(names):
        raise UserError(
          f'{where} has {len(row)} cells, the first row {len(names)}; allowed: '
          'quoted cells; or name the file .txt, to read it as plain text'
        )
      if row:
        yield where, row[column]
  except csv.Error as e:
    raise UserError(f'{path}: line {rows.line_num} is damaged: {e}') from e


def _columns(path, field):
  """The delimiter that finds the field, or most columns, and their names."""
  most = '', []
  for delimiter in '\t', ',', ';', '|':  # commas may be in a single column
    names = next(_reader(path, delimiter, False), [])
    if field in names:
      return delimiter, names
    most = max(most, (delimiter, names), key=lambda x: len(x[1]))
  return most


def _reader(path, delimiter, strict):
  csv.field_size_limit(1 << 30)
  lines = local.between_separators(local.plain(path), b'\n')
  decoded = (x.decode('utf-8', 'surrogateescape') + '\n' for x in lines)
  return csv.reader(decoded, delimiter=delimiter, strict=strict)


def _rows(path, field, what):
  """`_values` for a table; lists are numpy arrays."""
  arrow = errors.extra('parquet', 'pyarrow', f'{path}')
  parquet = errors.extra('parquet', 'pyarrow.parquet', f'{path}')
  number = itertools.count(1)
  try:
    if path.suffix.lower() == '.parquet':
      file = parquet.ParquetFile(path, memory_map=True)
      names = file.schema_arrow.names
      batches = file.iter_batches(_ROWS, columns=[field])
    else:
      batches = file = arrow.ipc.open_stream(arrow.memory_map(f'{path}'))
      names = file.schema.names
    if names.count(field) != 1:
      found = f'the columns {listed([*map(repr, names)])}'
      _refuse(f'{path}', found, field, what)
    for batch in batches:
      column = batch.column(field)
      if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
      is_list = hasattr(column, 'offsets')
      if is_list and column.flatten().null_count:  # NumPy has no null
        values = column.to_pylist()
      else:
        values = column.to_numpy(zero_copy_only=False)
      for value in values:
        yield f'{path}: row {next(number)}', value
  except (arrow.ArrowException, OSError) as e:
    raise UserError(f'{path} is damaged: {errors.first_line(e)}') from e


def _json(value):
  plain = lambda x: x.tolist() if isinstance(x, np.ndarray) else repr(x)
  return errors.shorten(json.dumps(value, default=plain))


def _refuse(where, found, field, what) -> NoReturn:
  raise UserError(
    f'{where} has {found}; allowed: an object whose field {shown(field)} '
    f'(data.field) is {what}'
  )
