"""Records with a field of text or token ids: JSON lines, or rows of tables.

Tables are Parquet files, or Arrow files written by `datasets.save_to_disk`.
"""

import importlib
import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from txl_jax.data import plain_text
from txl_jax.data.corpora import local
from txl_jax.program.errors import UserError, first_line, listed, shorten, shown

NAMES = re.compile(
  r'\.((jsonl|ndjson|jsonlines)(\.(gz|bz2|xz))?|parquet|arrow)$', re.IGNORECASE
)
_TABLES = '.parquet', '.arrow'
_ROWS = 1024  # rows read at once
_TEXT, _IDS = 'a string', 'a list of integers'


def texts(path: pathlib.Path, newlines: bool, field: str) -> Iterator[bytes]:
  """Yields the text of each record; `newlines` adds a missing final newline.

  Skips blank lines. UserError: an unreadable file, or a record without text.
  """
  for where, value in _values(path, field, _TEXT):
    if not isinstance(value, str):
      _refuse(where, _json(value), field, _TEXT)
    try:
      data = plain_text.normal(value.encode())
    except UnicodeEncodeError:
      _refuse(where, 'half of a surrogate pair', field, _TEXT)
    needs_one = newlines and not data.endswith(b'\n')
    yield data + b'\n' if needs_one else data


def ids(path: pathlib.Path, field: str) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (location, ids [n]) of each record; UserError if it has no ids."""
  for where, value in _values(path, field, _IDS):
    ids = value
    # NumPy would accept True as 1.
    if type(value) is list and {*map(type, value)} <= {int}:
      ids = np.array(value) if value else np.zeros([0], np.int32)
    if getattr(ids, 'ndim', 0) != 1 or ids.dtype.kind not in 'iu':
      _refuse(where, _json(value), field, _IDS)
    yield where, ids


def _values(path, field, what) -> Iterator[tuple[str, Any]]:
  """Yields the location and the field's value of each record."""
  if path.suffix.lower() in _TABLES:
    yield from _rows(path, field, what)
    return
  for number, line in enumerate(_lines(local.plain(path)), 1):
    where, record = f'{path}: line {number}', None
    if not line.strip():
      continue
    try:
      record = json.loads(line)
      value = record[field]
    except KeyError:
      names = listed([*map(repr, record or ())])
      found = f'the fields {names}' if names else 'no fields'
      _refuse(where, found, field, what)
    except (ValueError, RecursionError):
      found = f'{shown(line.decode(errors="replace"))}, not JSON'
      _refuse(where, found, field, what)
    except TypeError:
      _refuse(where, _json(record), field, what)
    yield where, value


def _rows(path, field, what):
  """`_values` for a table; lists are numpy arrays."""
  try:
    arrow = importlib.import_module('pyarrow')
    parquet = importlib.import_module('pyarrow.parquet')
  except ImportError as e:
    raise UserError(
      f"{path} needs pyarrow; run: pip install 'txl_jax[parquet]'"
    ) from e
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
      for value in column.to_numpy(zero_copy_only=False):
        yield f'{path}: row {next(number)}', value
  except (arrow.ArrowException, OSError) as e:
    raise UserError(f'{path} is damaged: {first_line(e)}') from e


def _lines(chunks):
  """Yields the lines of a text, without newlines."""
  rest = b''
  for chunk in chunks:
    *lines, rest = (rest + chunk).split(b'\n')
    yield from lines
  yield rest


def _json(value):
  plain = lambda x: x.tolist() if isinstance(x, np.ndarray) else repr(x)
  return shorten(json.dumps(value, default=plain))


def _refuse(where, found, field, what) -> NoReturn:
  raise UserError(
    f'{where} has {found}; allowed: an object whose field {shown(field)} '
    f'(data.field) is {what}'
  )
