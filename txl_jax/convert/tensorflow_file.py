"""Checkpoints of TensorFlow 1, read with only NumPy.

A checkpoint model.ckpt-0 is a `tensor bundle`, the format that
tf.train.Saver writes since version 0.12: model.ckpt-0.index, a table of
LevelDB's form that tells of each variable, and the bytes of the variables in
model.ckpt-0.data-00000-of-00001 and so on. The layout follows TensorFlow's
tensor_bundle.proto and LevelDB's doc/table_format.md.

All checksums are verified. Arrays are views of the files in memory.
"""

import dataclasses
import math
import os
import pathlib
import struct

import numpy as np

from txl_jax import files
from txl_jax.convert import torch_storage
from txl_jax.convert.crc32c import masked
from txl_jax.errors import UserError

AnyPath = str | os.PathLike[str]

_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a table
_FOOTER = 48  # bytes
_INDEX = 1 << 24  # bytes of an index
_ENTRIES = 100_000
_SHARDS = 10_000
_RANK = 8
_FIXED64, _TEXT, _FIXED32 = 1, 2, 5  # wire types of protocol buffers
_DTYPES = {
  1: '<f4', 2: '<f8', 3: '<i4', 4: 'u1', 5: '<i2', 6: 'i1', 9: '<i8', 10: '?',
  14: '<u2', 17: '<u2', 19: '<f2', 22: '<u4', 23: '<u8',
}  # fmt: skip
_BFLOAT16, _STRING = 14, 7
_OBJECTS = '_CHECKPOINTABLE_OBJECT_GRAPH'  # of TensorFlow 2
_ENDINGS = '.index', '.meta', '.data-00000-of-00001'
_ODD = *files.ODD, struct.error

# What optimisers and training loops keep in addition to the variables.
_SLOTS = 'Adam', 'Adam_1', 'LAMB', 'LAMB_1', 'ExponentialMovingAverage'
_COUNTERS = 'global_step', 'beta1_power', 'beta2_power'


def read(prefix: AnyPath) -> dict[str, np.ndarray]:
  """The variables of a checkpoint by name, without those of an optimiser.

  The prefix is the path without .index; one with it, or the folder that has a
  file `checkpoint`, will do. Arrays may not be written to; those of bfloat16
  are float32. UserError, one line: the checkpoint is not there, is damaged, or
  of a form that is not read.
  """
  prefix = prefix_of(prefix)
  count, kept = _entries(prefix)
  path, names = f'{prefix}.index', _data_names(prefix, count)
  used = sorted({e.shard for e in kept.values()})
  shards = {i: torch_storage.map_file(names[i]) for i in used}
  total = sum(e.size for e in kept.values())
  if total > sum(map(len, shards.values())):
    raise UserError(f'{path}: its variables have more bytes than the data')
  arrays = {}
  for name, entry in kept.items():
    try:
      arrays[name] = _array(entry, shards[entry.shard])
    except _ODD as e:
      said = f'{names[entry.shard]}: {name}'
      raise UserError(f'{said} is damaged: {e}') from None
  return arrays


def data_files(prefix: AnyPath) -> list[pathlib.Path]:
  """The files with the variables of a checkpoint; UserError as `read`."""
  prefix = prefix_of(prefix)
  count, kept = _entries(prefix)
  names = _data_names(prefix, count)
  return [
    pathlib.Path(names[i]) for i in sorted({e.shard for e in kept.values()})
  ]


def _data_names(prefix, count):
  return [f'{prefix}.data-{i:05}-of-{count:05}' for i in range(count)]


def _entries(prefix):
  """How many files there are, and {name: entry} of what is kept."""
  path = f'{prefix}.index'
  if prefix.is_file() and not os.path.exists(path):
    raise UserError(
      f'{prefix} has no .index beside it; allowed: a checkpoint of the form '
      'V2, as tf.train.Saver writes it since TensorFlow 0.12'
    )
  index = torch_storage.map_file(path)
  try:
    if len(index) > _INDEX:
      raise ValueError(f'it has more than {_INDEX:,} bytes')
    entries = _table(index)
    count = _header(entries.pop(b'', b''))
    # Those of the parts of a partitioned variable are no text.
    names = {k: k.decode('utf-8', 'backslashreplace') for k in entries}
    found = {names[k]: _Entry.parse(v) for k, v in entries.items()}
    kept = {k: e for k, e in found.items() if not _is_of_training(k)}
    wrong = [_reason(k, e, count) for k, e in kept.items()]
    if wrong := [said for said in wrong if said]:
      raise ValueError('; '.join(wrong))
  except _ODD as e:
    raise _refusal(path, e) from None
  return count, kept


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
  for ending in _ENDINGS:
    if path.name.endswith(ending):
      return path.with_name(path.name.removesuffix(ending))
  return path


def _is_of_training(name):
  return name in _COUNTERS or name.rsplit('/', 1)[-1] in (*_SLOTS, *_COUNTERS)


def _refusal(path, e):
  what = ' '.join(f'{e}'.split())[:2000] or type(e).__name__
  return UserError(f'{path} is no index of a checkpoint that is read: {what}')


@dataclasses.dataclass
class _Entry:
  """What the index says about a variable."""

  dtype: int = 0
  shape: tuple[int, ...] = ()
  shard: int = 0
  offset: int = 0
  size: int = 0
  crc: int = 0
  partitioned: bool = False

  @classmethod
  def parse(cls, data):
    """The entry of a BundleEntryProto; ValueError if it is invalid."""
    found = cls()
    names = {1: 'dtype', 3: 'shard', 4: 'offset', 5: 'size', 6: 'crc'}
    for number, value in _fields(data):
      if number == 2:
        found.shape = tuple(_shape(value))
      elif number == 7:
        found.partitioned = True
      elif number in names and type(value) is int:
        setattr(found, names[number], value)
    return found


# The table


def _table(data):
  """{key: value} of a table in the order of its keys."""
  if len(data) < _FOOTER:
    raise ValueError('it is too short')
  footer = data[-_FOOTER:]
  if struct.unpack_from('<Q', footer, _FOOTER - 8)[0] != _MAGIC:
    raise ValueError('it does not end as a table does')
  numbers, at = [], 0
  for _ in range(4):  # places and sizes of two blocks
    number, at = _varint(footer, at)
    numbers.append(number)
  _, _, place, size = numbers
  found, last = {}, None
  for _, handle in _block(data, place, size):
    place, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    before = len(found)
    for key, value in _block(data, place, size):
      if last is not None and key <= last:
        raise ValueError('its keys are not in order, or one is there twice')
      found[key] = value
      last = key
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
    kind = {1: 'with Snappy'}.get(block[-1], f'in a way {block[-1]}')
    raise ValueError(f'it is compressed {kind}')
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


def _varint(data, at):
  """A number whose bytes have seven bits each, and the place after it."""
  found = 0
  for i in range(10):
    byte = data[at + i]
    found |= (byte & 0x7F) << 7 * i
    if byte < 0x80:
      return found, at + i + 1
  raise ValueError('a number has too many bytes')


# Protocol buffers


def _fields(data):
  """(number, value) of a message: whole numbers, or views of the data."""
  at = 0
  while at < len(data):
    tag, at = _varint(data, at)
    kind = tag & 7
    if kind in (_FIXED32, _FIXED64):
      form, size = ('<I', 4) if kind == _FIXED32 else ('<Q', 8)
      (value,) = struct.unpack_from(form, data, at)
      at += size
    else:
      value, at = _varint(data, at)
      if kind == _TEXT:
        value, at = data[at : at + value], at + value
      elif kind or at > len(data):
        raise ValueError(f'a message has a field of type {kind}')
    if at > len(data):
      raise ValueError('a message is not whole')
    yield tag >> 3, value


def _header(data):
  """How many files the bytes are in."""
  found = dict(_fields(data))
  if found.get(2, 0):
    raise ValueError('it is big-endian, which is not read')
  if not 1 <= (count := found.get(1, 0)) <= _SHARDS:
    raise ValueError(f'its bytes are in {count} files')
  return count


def _shape(data):
  shape = []
  for number, value in _fields(data):
    if number == 2:
      size = dict(_fields(value)).get(1, 0)
      shape.append(size - (1 << 64) if size >> 63 else size)
    if len(shape) > _RANK or (number == 3 and value):
      raise ValueError('a variable has an unknown shape, or too many axes')
  return shape


def _reason(name, entry, count):
  """Why a variable cannot be read; '' if it can."""
  shape, dtype = [*entry.shape], entry.dtype
  said = f'{name!r:.200}'
  if not torch_storage.is_name(name):
    return f'{said} is no name'
  if name == _OBJECTS:
    return 'it was written by TensorFlow 2, for objects'
  if entry.partitioned:
    return f'{said} is partitioned'
  if dtype not in _DTYPES:
    return f'{said} is of type {"string" if dtype == _STRING else dtype}'
  if any(not 0 <= n < 1 << 48 for n in shape):
    return f'{said} has the shape {shape}'
  size = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
  if size != entry.size:
    return f'{said} has {entry.size} bytes for the shape {shape}'
  if entry.shard >= count:
    return f'{said} is in file {entry.shard} of {count}'
  return ''


def _array(entry, data):
  """The array of a variable, a view of the data."""
  offset, size = entry.offset, entry.size
  if offset + size > len(data):
    raise ValueError('the file is too short')
  piece = data[offset : offset + size]
  if masked(piece) != entry.crc:
    raise ValueError('its checksum is wrong')
  dtype = np.dtype(_DTYPES[entry.dtype])
  found = np.frombuffer(piece, dtype).reshape(entry.shape)
  if entry.dtype == _BFLOAT16:
    return (found.astype(np.uint32) << 16).view(np.float32)
  return found
