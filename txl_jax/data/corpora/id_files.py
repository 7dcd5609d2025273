"""Files of token ids: records, NumPy arrays (.npy), and plain numbers (.bin).

A .bin file is little-endian. It has only ids, as written by nanoGPT, or begins
with the header of llm.c, which gives their type.
"""

import hashlib
import io
import json
import pathlib
import re
import struct
from collections.abc import Iterator

import numpy as np

from txl_jax.data import plain_text
from txl_jax.data.corpora import records
from txl_jax.data.data_config import IDS, Data
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError, first_line, reason

DTYPE = np.dtype(np.int32)  # of the ids that `read` yields
META = 'meta.pkl'  # nanoGPT's names of token ids
NAMES = re.compile(rf'\.(bin|npy)$|{records.NAMES.pattern}', re.IGNORECASE)
_BLOCK = 1 << 20  # numbers read at once
_HEADER = 256 * 4  # bytes of llm.c's header
_HEADERS = {20240520: 'uint16', 20240801: 'uint32'}  # by its first number


def read(path: pathlib.Path, config: Data, size: int) -> Iterator[bytes]:
  """Yields the ids of a file in blocks or records, as bytes of DTYPE.

  UserError if the file cannot be read, or an id is not in [0, size).
  """
  if path.suffix.lower() not in ('.bin', '.npy'):
    for where, ids in records.ids(path, config.field):
      yield _checked(ids, where, 0, size)
    return
  ids = array(files.mapped(path), f'{path}', config.id_dtype)
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
  """The numbers in the data of a .npy or .bin, integers [n], without a copy.

  UserError if the data is truncated, has another format than the name says, or
  seems to have another type.
  """
  head = bytes(data[: plain_text.HEAD])
  if head.startswith(b'\x93NUMPY'):
    return _npy(data, name)
  is_npy = name.lower().endswith('.npy')
  found = _other_format(head, '' if is_npy else dtype)
  if found or is_npy:
    allowed = 'a NumPy array' if is_npy else f'{dtype} numbers, or a .npy'
    found = found or 'is damaged at its start'
    raise UserError(f'{name} {found}; allowed: {allowed}')
  magic, _, n = struct.unpack('<3i', bytes(data[:12]).ljust(12, b'\0'))
  if magic in _HEADERS:
    data = data[_HEADER:]
    dtype = _HEADERS[magic]
    wanted = n * np.dtype(dtype).itemsize
    if len(data) != wanted:
      raise UserError(f'{name} has {len(data)} bytes of ids, expected {wanted}')
  of = np.dtype(dtype).newbyteorder('<')
  if len(data) % of.itemsize:
    raise UserError(
      f'{name} has {len(data)} bytes, not a multiple of {of.itemsize}; '
      f'allowed: a whole file of {dtype} (data.id_dtype)'
    )
  ids = np.frombuffer(data, of)
  if other := _other_type(ids[:_BLOCK]):
    raise UserError(
      f'{name} looks like {other} read as {dtype}; allowed: a .npy, which '
      'stores its type, or the type of the file as data.id_dtype'
    )
  return ids


def _other_format(head, dtype):
  """The format of a file with these first bytes; '' if they may be numbers."""
  if found := plain_text.kind(head):
    return found[0]
  # Bytes of text are ids of type uint8, but hardly ever wider ones.
  is_text = len(head) >= 64 and plain_text.is_text(head)
  return 'is a text' if is_text and dtype != 'uint8' else ''


def _other_type(ids):
  """The type that the data of numbers seem to have; '' if they look like ids.

  In a wider type, high parts of ids below IDS are all 0, or small and mostly 0,
  since frequent tokens have small ids; low parts are not. Ids of no id_dtype
  are recognised by being integers below IDS.
  """
  # Toy files, which repeat a few numbers, show nothing.
  varies = lambda x: np.count_nonzero(x) >= 16 and x.min() < x.max()
  size = ids.itemsize
  for parts in 8, 4, 2:
    rows = ids[: len(ids) // parts * parts].reshape(-1, parts)
    rows = rows[(rows < np.iinfo(ids.dtype).max).any(axis=1)]  # without -1
    if parts * size > 8 or len(rows) < 32:
      continue
    low, high = rows[:, 0], rows[:, 1:]
    limits = [min(16, max(1, IDS >> 8 * size * k)) for k in range(1, parts)]
    small = (high < limits).all() and np.mean(high == 0) > 0.5
    if small and (low.max() >= 16 or (not high.any() and varies(low))):
      return {2: 'uint16', 4: 'uint32', 8: 'int64'}[parts * size]
  data = ids.tobytes()
  for dtype in map(np.dtype, ('>i8', '>i4', '<f8', '<f4')):
    values = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    is_id = (values >= 0) & (values < IDS)
    if is_id.all() and (values == np.rint(values)).all() and varies(values):
      return f'{"big-endian " * (dtype.byteorder == ">")}{dtype.name}'
  return ''


def _npy(data, name):
  form = np.lib.format
  f = io.BytesIO(data[: 1 << 16])
  try:
    read = {1: form.read_array_header_1_0, 2: form.read_array_header_2_0}
    shape, _, dtype = read[form.read_magic(f)[0]](f)
  except Exception as e:  # NumPy parses the header as Python, and raises many
    raise UserError(f'{name} is damaged: {reason(e)}') from e
  if dtype.kind not in 'iu' or len(shape) != 1:
    raise UserError(f'{name} is {dtype} {list(shape)}; allowed: integers [n]')
  there, wanted = len(data) - f.tell(), shape[0] * dtype.itemsize
  if there != wanted:
    raise UserError(f'{name} has {there} bytes of ids, expected {wanted}')
  return np.frombuffer(data, dtype, offset=f.tell())


def vocabulary(config: Data) -> tuple[Ids | None, dict]:
  """The vocabulary of a corpus of token ids, and its manifest entry.

  Names come from data.vocab_file, or from a meta.pkl next to the files. The
  vocabulary is None if its size is unknown.
  """
  path = pathlib.Path(config.path)
  meta = (path if path.is_dir() else path.parent) / META
  if not (config.vocab_file or meta.is_file()):
    n = config.vocab_size
    return Ids.of_names({}, n) if n else None, {}
  path = pathlib.Path(config.vocab_file or meta)
  name = f'data.vocab_file: {path}' if config.vocab_file else f'{path}'
  data = files.read(path, name)
  try:
    names, size = _names(data, name)
    ids = Ids.of_names(names, config.vocab_size or size)
  except files.ODD as e:
    raise UserError(
      f'{name}: {first_line(e)}; allowed: a list of names, {{name: id}}, or '
      f'the {META} of nanoGPT'
    ) from e
  return ids, {'file': path.name, 'sha256': hashlib.sha256(data).hexdigest()}


def _names(data, name) -> tuple[dict[int, str], int]:
  """{id: name}, and the number of ids; files.ODD for other content."""
  size = 0
  if data.startswith(b'\x80'):
    names = pickles.loads(data, name)[0]
    names, size = names.get('itos', {}), names.get('vocab_size', 0)
    if type(size) is not int:
      raise ValueError('its vocab_size is not an int')
  else:
    names = json.loads(data)
    for key in 'vocab', 'symbols':  # of a tokenizer, or of our vocabulary.json
      inner = names.get(key) if isinstance(names, dict) else None
      names = inner if isinstance(inner, dict | list) else names
  if isinstance(names, list):
    names = dict(enumerate(names[:-1] if names[-1:] == [Ids.end] else names))
  elif {*map(type, names.values())} == {int}:
    by_id = {i: x for x, i in names.items()}
    if len(by_id) < len(names):
      raise ValueError('two names have the same id')
    names = by_id
  if not all(type(x) is str and x for x in names.values()):
    raise ValueError('not every entry is a non-empty name')
  size = max([size, *(i + 1 for i in names)])
  if not all(type(i) is int and 0 <= i < IDS for i in [*names, size - 1]):
    raise ValueError(f'its ids are not from 0 to {IDS - 1}')
  ''.join(names.values()).encode()  # raises for a lone surrogate
  return names, size
