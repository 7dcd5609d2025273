"""Checkpoints of TensorFlow 1, read without TensorFlow.

A checkpoint model.ckpt-0 is a `tensor bundle`, the format that
tf.train.Saver writes since version 0.12: model.ckpt-0.index, a table of
LevelDB's form that tells of each variable, and the bytes of the variables in
model.ckpt-0.data-00000-of-00001 and so on. The layout follows TensorFlow's
tensor_bundle.proto and LevelDB's doc/table_format.md.

All checksums are verified. Arrays are views of the files in memory.

TensorFlow's own reader would take the place of this module, but installing it
takes 1.4 GB; google-crc32c, which computes the checksums, takes 0.2 MB.
"""

import collections
import math
import os
import pathlib
import struct

import google_crc32c
import jax.numpy as jnp
import numpy as np

from txl_jax.convert import names
from txl_jax.program import files
from txl_jax.program.errors import UserError

AnyPath = str | os.PathLike[str]

_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a table
_FOOTER = 48  # bytes
_INDEX = 1 << 24  # bytes of an index
_ENTRIES = 100_000
_SHARDS = 10_000
_RANK = 8
_NUMBER, _TEXT, _FIXED32 = 0, 2, 5  # wire types of protocol buffers
_DTYPES = {
  1: '<f4', 2: '<f8', 3: '<i4', 4: 'u1', 5: '<i2', 6: 'i1', 9: '<i8', 10: '?',
  14: jnp.bfloat16, 17: '<u2', 19: '<f2', 22: '<u4', 23: '<u8',
}  # fmt: skip
_BFLOAT16 = 14
_ODD = *files.ODD, struct.error

# What the index says of a variable.
_Entry = collections.namedtuple(
  '_Entry', 'dtype shape partitioned file offset size crc'
)

# What optimisers and training loops keep in addition to the variables.
_OF_TRAINING = 'Adam', 'Adam_1', 'LAMB', 'LAMB_1', 'ExponentialMovingAverage'
_OF_TRAINING = *_OF_TRAINING, 'global_step', 'beta1_power', 'beta2_power'


def read(prefix: AnyPath) -> dict[str, np.ndarray]:
  """The variables of a checkpoint by name, without those of an optimiser.

  The prefix is the path without .index; one with it, or the folder that has a
  file `checkpoint`, will do. Arrays may not be written to; those of bfloat16
  are float32. UserError, one line: the checkpoint is not there, is damaged, or
  of a form that is not read.
  """
  prefix = prefix_of(prefix)
  kept = _entries(prefix)
  shards = {path: files.mapped(path) for path in _files(kept)}
  if sum(e.size for e in kept.values()) > sum(map(len, shards.values())):
    raise UserError(f'{prefix}.index: its variables have more bytes than the '
                    'data')  # fmt: skip
  arrays = {}
  for name, entry in kept.items():
    try:
      arrays[name] = _array(entry, shards[entry.file])
    except _ODD as e:
      raise UserError(f'{entry.file}: {name} is damaged: {e}') from None
  return arrays


def data_files(prefix: AnyPath) -> list[pathlib.Path]:
  """The files with the variables of a checkpoint; UserError as `read`."""
  return _files(_entries(prefix_of(prefix)))


def _files(entries):
  return sorted({entry.file for entry in entries.values()})


def _entries(prefix):
  """{name: entry} of what is kept."""
  path = f'{prefix}.index'
  index = files.mapped(path)
  try:
    if len(index) > _INDEX:
      raise ValueError(f'it has more than {_INDEX:,} bytes')
    entries = _table(index)
    header = dict(_fields(entries.pop(b'', b'')))
    if header.get(2, 0):
      raise ValueError('it is big-endian, which is not read')
    if not 1 <= (count := header.get(1, 0)) <= _SHARDS:
      raise ValueError(f'its bytes are in {count} files')
    kept, wrong = {}, []
    for key, value in entries.items():
      # Those of the parts of a partitioned variable are no text.
      name = key.decode('utf-8', 'backslashreplace')
      last = name.rsplit('/', 1)[-1]
      if last in _OF_TRAINING:
        continue
      kept[name] = entry = _entry(value, prefix, count)
      if reason := _reason(name, entry):
        wrong.append(f'{name!r:.200} {reason}')
    if wrong:
      raise ValueError('; '.join(wrong))
  except _ODD as e:
    what = ' '.join(f'{e}'.split())[:2000] or type(e).__name__
    raise UserError(
      f'{path} is no index of a checkpoint that is read: {what}'
    ) from None
  return kept


def prefix_of(path: AnyPath) -> pathlib.Path:
  """The path of a checkpoint without its endings; of a folder, the newest.

  UserError: its file `checkpoint`, which names that, cannot be read.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    state = path / 'checkpoint'
    text = files.read(state, largest=1 << 20).decode('utf-8', 'replace')
    for line in text.splitlines():
      key, _, value = line.partition(':')
      if key == 'model_checkpoint_path':
        # Only its name: the folder may have been moved.
        return path / value.strip(' "').replace('\\', '/').split('/')[-1]
    raise UserError(f'{state} names no checkpoint')
  for ending in '.index', '.meta':
    if path.name.endswith(ending):
      return path.with_name(path.name.removesuffix(ending))
  return path.with_name(path.name.partition('.data-')[0])


def _entry(data, prefix, count):
  """What a BundleEntryProto says; ValueError if it is invalid."""
  found = dict(_fields(data))
  dtype, shard, *numbers = (found.get(number, 0) for number in (1, 3, 4, 5, 6))
  if shard >= count:
    raise ValueError(f'a variable is in file {shard} of {count}')
  file = pathlib.Path(f'{prefix}.data-{shard:05}-of-{count:05}')
  return _Entry(dtype, _shape(found.get(2, b'')), 7 in found, file, *numbers)


def _table(data):
  """{key: value} of a table in the order of its keys."""
  if len(data) < _FOOTER:
    raise ValueError('it is too short')
  footer = data[-_FOOTER:]
  if struct.unpack_from('<Q', footer, _FOOTER - 8)[0] != _MAGIC:
    raise ValueError('it does not end as a table does')
  at = 0
  for _ in range(2):  # place and size of a block that says nothing
    _, at = _varint(footer, at)
  place, at = _varint(footer, at)
  size, _ = _varint(footer, at)
  found = {}
  for _, handle in _block(data, place, size):
    place, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    before = len(found)
    for key, value in _block(data, place, size):
      if key in found:
        raise ValueError('a key is there twice')
      found[key] = value
      if len(found) > _ENTRIES:
        raise ValueError(f'it has more than {_ENTRIES:,} entries')
    if len(found) == before:  # or it could be there any number of times
      raise ValueError('a block is empty')
  return found


def _block(data, place, size):
  """Keys and values of a block, whose checksum is verified."""
  if place + size + 5 > len(data):
    raise ValueError('a block is not whole')
  block = data[place : place + size + 1]
  (crc,) = struct.unpack_from('<I', data, place + size + 1)
  if masked(block) != crc:
    raise ValueError('a checksum is wrong')
  if block[-1]:
    raise ValueError('it is compressed')
  (restarts,) = struct.unpack_from('<I', block, size - 4)
  end, at, key = size - 4 - 4 * restarts, 0, b''
  while at < end:
    shared, at = _varint(block, at)
    more, at = _varint(block, at)
    length, at = _varint(block, at)
    if shared > len(key) or at + more + length > end or shared + more > 1000:
      raise ValueError('a block is damaged')
    key = key[:shared] + bytes(block[at : at + more])
    at += more
    yield key, block[at : at + length]
    at += length


def masked(data: memoryview) -> int:
  """The checksum as LevelDB stores it: CRC-32C, rotated, plus a number."""
  crc = google_crc32c.value(np.frombuffer(data, np.uint8))
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data, at):
  """A number whose bytes have seven bits each, and the place after it."""
  found = 0
  for i in range(10):
    byte = data[at + i]
    found |= (byte & 0x7F) << 7 * i
    if byte < 0x80:
      return found, at + i + 1
  raise ValueError('a number has too many bytes')


def _fields(data):
  """(number, value) of a message: whole numbers, or views of the data."""
  at = 0
  while at < len(data):
    tag, at = _varint(data, at)
    kind, start = tag & 7, at
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
      raise ValueError('a message is not whole')
    yield tag >> 3, value


def _shape(data):
  shape = []
  for number, value in _fields(data):
    if number == 2:
      size = dict(_fields(value)).get(1, 0)
      shape.append(size - (1 << 64) if size >> 63 else size)
    if len(shape) > _RANK or (number == 3 and value):
      raise ValueError('a variable has an unknown shape, or too many axes')
  return shape


def _reason(name, entry):
  """Why a variable cannot be read; '' if it can."""
  shape, dtype = entry.shape, entry.dtype
  if not names.is_name(name):
    return 'is no name'
  if entry.partitioned:
    return 'is partitioned'
  if dtype not in _DTYPES:  # such as the objects of TensorFlow 2
    return f'is of type {dtype}, no numbers'
  size = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
  if size != entry.size or any(not 0 <= n < 1 << 48 for n in shape):
    return f'has {entry.size} bytes for the shape {shape}'
  return ''


def _array(entry, data):
  """The array of a variable, a view of the data."""
  piece = data[entry.offset : entry.offset + entry.size]
  if len(piece) < entry.size:
    raise ValueError('the file is too short')
  if masked(piece) != entry.crc:
    raise ValueError('its checksum is wrong')
  found = np.frombuffer(piece, _DTYPES[entry.dtype]).reshape(entry.shape)
  return found.astype(np.float32) if entry.dtype == _BFLOAT16 else found
