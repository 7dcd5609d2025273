"""Files that hold a text in another form: packed (.gz, .zst) or as records.

Records are the lines of a .jsonl, each a JSON object, or the rows of a
.parquet; the text of each is one field, plus a newline unless it ends in one or
is a document of its own.
A .gz or .zst holds a text, or, as .jsonl.gz or .jsonl.zst, records. All are
read in pieces: memory holds one record, or what pyarrow reads at once from a
row group of a .parquet.
"""

import functools
import gzip
import itertools
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from txl_jax.data import optional_packages
from txl_jax.program.errors import UserError, first_line
from txl_jax.program.files import open_regular

SUFFIXES = '.gz', '.zst', '.jsonl', '.parquet'
_CHUNK = 1 << 20  # bytes read at a time
# Bytes read at a time from a .zst, so that they unpack to at most 128 MiB.
_PACKED = 1 << 12
_ROWS = 1 << 10  # rows of a .parquet read at a time
_HALF = re.compile('[\ud800-\udfff]')
Chunks = Iterator[bytes]


def has_records(path: pathlib.Path) -> bool:
  """Whether a file holds records, judged by its name."""
  return '.jsonl' in _suffixes(path) or path.suffix.lower() == '.parquet'


def reader(
  path: pathlib.Path, field: str, newlines: bool = True
) -> Callable[[], Chunks] | None:
  """A function that gives the text of a file; None for a plain text file.

  For records it gives the text of each, which ends in a newline if newlines are
  asked for. When called, it raises a UserError for a file that cannot be read,
  is cut off or damaged, has a record without the field, or needs a package that
  is not installed.
  """
  found = _suffixes(path)
  if path.suffix.lower() == '.parquet':
    return functools.partial(_rows, path, field, newlines)
  if '.jsonl' in found:
    return functools.partial(_objects, path, field, newlines)
  return functools.partial(_unpacked, path) if found else None


def _suffixes(path):
  """The last suffixes of a name, which tell its format, lower-cased."""
  last = [x.lower() for x in path.suffixes[-2:]]
  if last and last[-1] in SUFFIXES:
    inner = last[-1] in ('.gz', '.zst') and last[0] == '.jsonl'
    return last if inner else last[-1:]
  return []


def _unpacked(path) -> Chunks:
  """The bytes of a file, unpacked if it is packed."""
  suffix = path.suffix.lower()
  try:
    with open_regular(path) as f:
      if suffix == '.zst':
        yield from _zstandard(path, f)
      else:
        source = gzip.GzipFile(fileobj=f) if suffix == '.gz' else f
        yield from iter(functools.partial(source.read, _CHUNK), b'')
  except (EOFError, zlib.error, gzip.BadGzipFile) as e:
    raise UserError(f'{path} is damaged or cut off: {first_line(e)}') from e
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}') from e


def _zstandard(path, f: BinaryIO) -> Chunks:
  zstandard = optional_packages.load('zstandard', f'{path}: reading a .zst')
  # Allows windows as large as those of `zstd --long=31`.
  unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
  frame, whole = unpacker.decompressobj(), False
  try:
    while data := f.read(_PACKED):
      while data:
        frame = unpacker.decompressobj() if frame.eof else frame
        yield frame.decompress(data)
        data, whole = frame.unused_data, frame.eof
  except zstandard.ZstdError as e:
    raise UserError(f'{path} is damaged: {first_line(e)}') from e
  if not whole:  # the package does not report this
    raise UserError(f'{path} is cut off, or empty')


def _objects(path, field, newlines) -> Chunks:
  """The texts of the objects in a .jsonl; blank lines are skipped."""
  for number, line in _lines(path):
    where = f'{path}: line {number}'
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as e:
      raise UserError(f'{where} is no JSON: {first_line(e)}') from e
    if not isinstance(record, dict):
      raise UserError(f'{where} is no JSON object')
    if field not in record:
      raise _no_field(where, field, record)
    yield _text(where, field, record[field], newlines)


def _lines(path):
  """(number, line) of the lines of a file that are not blank."""
  rest, number = b'', 0
  for chunk in itertools.chain(_unpacked(path), [b'\n']):
    *lines, rest = (rest + chunk).split(b'\n')
    for line in lines:
      number += 1
      if line.strip():
        yield number, line


def _rows(path, field, newlines) -> Chunks:
  """The texts of the rows of a .parquet."""
  what = f'{path}: reading a .parquet'
  arrow = optional_packages.load('pyarrow', what)
  parquet = optional_packages.load('pyarrow.parquet', what)
  try:
    with open_regular(path) as f:
      file = parquet.ParquetFile(f, buffer_size=_CHUNK)
      if field not in (names := file.schema_arrow.names):
        raise _no_field(f'{path}: record 1', field, names)
      number = 0
      for group in range(file.num_row_groups):
        # Given several groups at once, it keeps what was read from each.
        batches = file.iter_batches(_ROWS, [group], [field], use_threads=False)
        for batch in batches:
          for value in batch.column(0):
            number += 1
            where = f'{path}: record {number}'
            yield _text(where, field, value.as_py(), newlines)
  except arrow.ArrowException as e:
    raise UserError(f'{path} is damaged or cut off: {first_line(e)}') from e
  except OSError as e:
    reason = e.strerror or first_line(e)
    raise UserError(f'{path} cannot be read: {reason}') from e


def _text(where, field, value, newlines):
  """The text of a record's field; UserError if it is not text."""
  if not isinstance(value, str):
    kind = 'null' if value is None else f'a {type(value).__name__}'
    raise UserError(
      f'{where}: the field {field!r} is {kind}; allowed: a text (data.field)'
    )
  # JSON may escape half of a character, which UTF-8 cannot hold.
  text = _HALF.sub('\N{REPLACEMENT CHARACTER}', value).encode()
  return text + b'\n' if newlines and not text.endswith(b'\n') else text


def _no_field(where, field, names):
  there = ', '.join(repr(x) for x in [*names][:20]) or 'no field'
  return UserError(
    f'{where} has no field {field!r}; allowed for data.field: {there}'
  )
