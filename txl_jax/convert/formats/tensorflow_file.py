"""Reads checkpoints of TensorFlow 1 without TensorFlow.

A checkpoint model.ckpt-0 is a `tensor bundle`, which tf.train.Saver has
written since version 0.12: model.ckpt-0.index, a LevelDB table with an entry
per variable, and the variables' bytes in model.ckpt-0.data-00000-of-00001 and
so on. The layout follows TensorFlow's tensor_bundle.proto and LevelDB's
doc/table_format.md. All checksums are verified. Arrays are views of the
memory-mapped files.

TensorFlow's own reader would need an installation of 1.4 GB; google-crc32c,
which computes the checksums, takes 0.2 MB.
"""

import collections
import math
import pathlib
import struct

import google_crc32c
import jax.numpy as jnp
import numpy as np

from txl_jax.convert.versions import names
from txl_jax.program import files
from txl_jax.program.errors import UserError, reason

_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a table
_FOOTER = 48  # bytes
_RANK = 8
_NUMBER, _TEXT, _FIXED32 = 0, 2, 5  # wire types of protocol buffers
_DTYPES = {
  1: '<f4', 2: '<f8', 3: '<i4', 4: 'u1', 5: '<i2', 6: 'i1', 9: '<i8', 10: '?',
  14: jnp.bfloat16, 17: '<u2', 19: '<f2', 22: '<u4', 23: '<u8',
}  # fmt: skip
_ODD = *files.ODD, struct.error

# The entry of a variable in the index.
_Entry = collections.namedtuple('_Entry', 'dtype shape file offset size crc')

# Variables of optimisers and training loops, which are not read.
_OF_TRAINING = (
  'Adam', 'Adam_1', 'LAMB', 'LAMB_1', 'ExponentialMovingAverage', 'global_step',
  'beta1_power', 'beta2_power',
)  # fmt: skip


def read(prefix: files.AnyPath) -> dict[str, np.ndarray]:
  """The variables of a checkpoint by name, without optimiser variables.

  The prefix is the path of the checkpoint with or without .index. Arrays are
  read-only; bfloat16 becomes float32. Raises UserError if the checkpoint does
  not exist, is damaged, or has an unsupported format.
  """
  prefix = prefix_of(prefix)
  kept = _entries(prefix)
  shards = {path: files.mapped(path) for path in _files(kept)}
  if sum(e.size for e in kept.values()) > sum(map(len, shards.values())):
    path = f'{prefix}.index'
    raise UserError(f'{path}: its variables have more bytes than the data')
  arrays = {}
  for name, entry in kept.items():
    try:
      arrays[name] = _array(entry, shards[entry.file])
    except _ODD as e:
      raise UserError(f'{entry.file}: {name} is damaged: {e}') from e
  return arrays


def data_files(prefix: files.AnyPath) -> list[pathlib.Path]:
  """The data files of a checkpoint; UserError: see `read`."""
  return _files(_entries(prefix_of(prefix)))


def _files(entries):
  return sorted({entry.file for entry in entries.values()})


def _entries(prefix):
  """{name: entry} of the variables without those of training."""
  path = f'{prefix}.index'
  kept = {}
  index = files.mapped(path)
  try:
    entries = _table(index)
    count = dict(_fields(entries.pop(b'', b''))).get(1, 0)  # of data files
    for key, value in entries.items():
      # Keys for parts of a partitioned variable are not UTF-8.
      name = key.decode('utf-8', 'backslashreplace')
      if name.rsplit('/', 1)[-1] not in _OF_TRAINING:
        kept[name] = _entry(name, value, prefix, count)
  except _ODD as e:
    raise UserError(f'{path} is not a readable index: {reason(e)}') from e
  return kept


def has_index(path: files.AnyPath) -> bool:
  """Whether a checkpoint exists at this path."""
  return pathlib.Path(f'{prefix_of(path)}.index').exists()


def prefix_of(path: files.AnyPath) -> pathlib.Path:
  """The path of a checkpoint without .index or .data-…."""
  path = pathlib.Path(path)
  name = path.name.removesuffix('.index').partition('.data-')[0]
  return path.with_name(name)


def _entry(name, data, prefix, count):
  """Parses a BundleEntryProto; ValueError if it is not supported."""
  found = dict(_fields(data))
  kind, shard, offset, size, crc = (found.get(n, 0) for n in (1, 3, 4, 5, 6))
  shape = _shape(found.get(2, b''))
  is_name = names.is_name(name)
  name = f'{name!r:.100}'
  if not is_name:
    raise ValueError(f'{name} is not a valid name')
  if kind not in _DTYPES:  # such as object graphs of TensorFlow 2
    raise ValueError(f'{name} has dtype {kind}, which is not numeric')
  if 7 in found:
    raise ValueError(f'{name} is partitioned')
  dtype = np.dtype(_DTYPES[kind])
  if len(shape) > _RANK or math.prod(shape) * dtype.itemsize != size:
    raise ValueError(f'{name} has {size} bytes for the shape {shape}')
  if shard >= count:
    raise ValueError(f'{name} is in file {shard} of {count}')
  file = pathlib.Path(f'{prefix}.data-{shard:05}-of-{count:05}')
  return _Entry(dtype, shape, file, offset, size, crc)


def _table(data):
  """{key: value} of a table, sorted by key."""
  if len(data) < _FOOTER:
    raise ValueError('it is too short')
  footer = data[-_FOOTER:]
  if struct.unpack_from('<Q', footer, _FOOTER - 8)[0] != _MAGIC:
    raise ValueError('its footer is not that of a LevelDB table')
  at = 0
  for _ in range(2):  # place and size of the metaindex block, which is empty
    _, at = _varint(footer, at)
  place, at = _varint(footer, at)
  size, _ = _varint(footer, at)
  found = {}
  left = len(data)
  for _, handle in _block(data, place, size):
    place, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    left -= size
    if left < 0:
      raise ValueError('its blocks are larger than the file')
    found |= _block(data, place, size)
  return found


def _block(data, place, size):
  """Yields (key, value) of a block; verifies its checksum."""
  if place + size + 5 > len(data):
    raise ValueError('a block is truncated')
  block = data[place : place + size + 1]
  (crc,) = struct.unpack_from('<I', data, place + size + 1)
  if masked(block) != crc:
    raise ValueError('a checksum is wrong')
  if block[-1]:
    raise ValueError('it is compressed')
  (restarts,) = struct.unpack_from('<I', block, size - 4)
  end = size - 4 - 4 * restarts
  at = 0
  key = b''
  while at < end:
    shared, at = _varint(block, at)
    rest, at = _varint(block, at)
    length, at = _varint(block, at)
    if shared > len(key) or at + rest + length > end or shared + rest > 1000:
      raise ValueError('a block is damaged')
    key = key[:shared] + bytes(block[at : at + rest])
    at += rest
    yield key, block[at : at + length]
    at += length


def masked(data: memoryview) -> int:
  """LevelDB's masked checksum: CRC-32C, rotated, plus a constant."""
  crc = google_crc32c.value(np.frombuffer(data, np.uint8))
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data, at):
  """A varint (seven bits per byte), and the position after it."""
  found = 0
  for i in range(10):
    byte = data[at + i]
    found |= (byte & 0x7F) << 7 * i
    if byte < 0x80:
      return found, at + i + 1
  raise ValueError('a number has too many bytes')


def _fields(data):
  """Yields (field number, value) of a protocol buffer; value: int or view."""
  at = 0
  while at < len(data):
    tag, at = _varint(data, at)
    kind = tag & 7
    start = at
    if kind == _FIXED32:
      at += 4
      value = int.from_bytes(data[start:at], 'little')
    elif kind in (_NUMBER, _TEXT):
      value, at = _varint(data, at)
      if kind == _TEXT:
        value, at = data[at : at + value], at + value
    else:
      raise ValueError(f'a message has a field of type {kind}')
    if at > len(data):
      raise ValueError('a message is truncated')
    yield tag >> 3, value


def _shape(data):
  """The sizes in a TensorShapeProto; -1 (unknown) is read as 2^64 - 1."""
  sizes = [value for number, value in _fields(data) if number == 2]
  return [dict(_fields(size)).get(1, 0) for size in sizes]


def _array(entry, data):
  """The array of a variable as a view of the data."""
  piece = data[entry.offset : entry.offset + entry.size]
  if len(piece) < entry.size:
    raise ValueError('the file is too short')
  if masked(piece) != entry.crc:
    raise ValueError('its checksum is wrong')
  x = np.frombuffer(piece, entry.dtype).reshape(entry.shape)
  return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x
