"""Token ids in files: records, arrays of NumPy, and plain numbers (.bin).

A .bin is little-endian: just the numbers, as nanoGPT writes them, or after the
header of llm.c, which also tells their type.
"""

import hashlib
import io
import json
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_jax.data.corpora import records
from txl_jax.data.options import IDS, Data
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError, first_line

DTYPE = np.dtype(np.int32)  # of the ids that are read
META = 'meta.pkl'  # of nanoGPT: the names of a folder
NAMES = re.compile(rf'\.(bin|npy)$|{records.NAMES.pattern}', re.IGNORECASE)
_BLOCK = 1 << 20  # numbers that are read at once
_HEADER = 256 * 4  # bytes of the header of llm.c
_HEADERS = {20240520: 'uint16', 20240801: 'uint32'}  # by its first number


def read(path: pathlib.Path, asked: Data, size: int) -> Iterator[bytes]:
  """The ids of a file, DTYPE, in blocks or records.

  UserError: it cannot be read, or holds an id that is not below the size.
  """
  if records.NAMES.search(path.name):
    for where, ids in records.ids(path, asked.field):
      yield _checked(ids, where, 0, size)
    return
  ids = array(files.mapped(path), f'{path}', asked.id_dtype)
  for at in range(0, len(ids), _BLOCK):
    yield _checked(ids[at : at + _BLOCK], f'{path}', at, size)


def _checked(ids, where, at, size):
  if ids.size and not 0 <= ids.min() <= ids.max() < size:
    i = int(np.argmax((ids < 0) | (ids >= size)))
    raise UserError(
      f'{where} has the id {ids[i]} at position {at + i}; allowed: 0 to '
      f'{size - 1}, the tokens of the vocabulary (data.vocab_size)'
    )
  return ids.astype(DTYPE).tobytes()


def array(data: memoryview | bytes, name: str, dtype: str) -> np.ndarray:
  """The numbers of a .npy or .bin, integers [n], which are not copied.

  UserError: it is cut short, or holds anything else.
  """
  if bytes(data[:6]) == b'\x93NUMPY':
    return _npy(data, name)
  magic, _, n = struct.unpack('<3i', bytes(data[:12]).ljust(12, b'\0'))
  if magic in _HEADERS:
    data, dtype = data[_HEADER:], _HEADERS[magic]
    wanted = n * np.dtype(dtype).itemsize
    if len(data) != wanted:
      raise UserError(f'{name} has {len(data)} bytes of ids, expected {wanted}')
  of = np.dtype(dtype).newbyteorder('<')
  if len(data) % of.itemsize:
    raise UserError(
      f'{name} has {len(data)} bytes, no multiple of {of.itemsize}; allowed: a '
      f'whole file of {dtype} (data.id_dtype)'
    )
  ids = np.frombuffer(data, of)
  if wider := _wider(ids[:_BLOCK]):
    raise UserError(
      f'{name} looks like {wider} read as {dtype}; allowed: data.id_dtype='
      f'{wider}, or a .npy, which tells its type'
    )
  return ids


def _wider(ids):
  """The type whose parts numbers seem to be; '' if they are ids.

  The high parts of ids below IDS are then small, and the low ones are not.
  """
  size = ids.itemsize
  for parts in 4, 2:
    rows = ids[: len(ids) // parts * parts].reshape(-1, parts)
    high = [min(16, max(1, IDS >> 8 * size * k)) for k in range(1, parts)]
    small = len(rows) >= 32 and (rows[:, 1:] < high).all()
    if parts * size <= 8 and small and rows[:, 0].max() >= 16:
      return {2: 'uint16', 4: 'uint32', 8: 'int64'}[parts * size]
  return ''


def _npy(data, name):
  form, f = np.lib.format, io.BytesIO(data[: 1 << 16])
  try:
    read = {1: form.read_array_header_1_0, 2: form.read_array_header_2_0}
    shape, _, dtype = read[form.read_magic(f)[0]](f)
    if dtype.kind not in 'iu' or len(shape) != 1:
      raise UserError(
        f'{name} is {dtype} {list(shape)}; allowed: whole numbers [n]'
      )
    there = len(data) - f.tell()
    if there != shape[0] * dtype.itemsize:
      raise UserError(f'{name} has {there} bytes of {dtype} {list(shape)}')
    return np.frombuffer(data, dtype, offset=f.tell())
  except files.ODD as e:
    raise UserError(f'{name} is damaged: {first_line(e)}') from e


def vocabulary(asked: Data) -> tuple[Ids | None, dict]:
  """The token ids of a corpus, by their names, and the entry of the manifest.

  The names are those of data.vocab_file, or of a meta.pkl beside the files.
  None: nothing tells how many there are.
  """
  path = pathlib.Path(asked.path)
  meta = (path if path.is_dir() else path.parent) / META
  if not (asked.vocab_file or meta.is_file()):
    n = asked.vocab_size
    return Ids.of_names({}, n) if n else None, {}
  path = pathlib.Path(asked.vocab_file or meta)
  name = f'data.vocab_file: {path}' if asked.vocab_file else f'{path}'
  data = files.read(path, name)
  try:
    names, size = _names(data, name)
    ids = Ids.of_names(names, asked.vocab_size or size)
  except files.ODD as e:
    raise UserError(
      f'{name}: {first_line(e)}; allowed: a list of names, {{name: id}}, or '
      f'the {META} of nanoGPT'
    ) from e
  return ids, {'file': path.name, 'sha256': hashlib.sha256(data).hexdigest()}


def _names(data, name) -> tuple[dict[int, str], int]:
  """{id: name}, and how many ids there are; files.ODD for anything else."""
  size = 0
  if data.startswith(b'\x80'):
    found = pickles.loads(data, name)[0]
    found, size = found.get('itos', {}), found.get('vocab_size', 0)
    if type(size) is not int:
      raise ValueError('its vocab_size is no int')
  else:
    found: Any = json.loads(data)
    for key in 'vocab', 'symbols':  # within settings, or of our own
      inner = found.get(key) if isinstance(found, dict) else None
      found = inner if isinstance(inner, dict | list) else found
  if isinstance(found, list):
    found = dict(enumerate(found[:-1] if found[-1:] == [Ids.end] else found))
  elif {*map(type, found.values())} == {int}:
    by_id = {i: x for x, i in found.items()}
    if len(by_id) < len(found):
      raise ValueError('two names have one id')
    found = by_id
  if not all(type(x) is str and x for x in found.values()):
    raise ValueError('it has other things than names')
  size = max([size, *(i + 1 for i in found)])
  if not all(type(i) is int and 0 <= i < IDS for i in [*found, size - 1]):
    raise ValueError(f'its ids are not from 0 to {IDS - 1}')
  ''.join(found.values()).encode()  # a lone surrogate has no bytes
  return found, size
