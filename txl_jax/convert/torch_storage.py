"""What torch.save writes: an object, and the storages of its tensors.

Both forms are read: the zip archive, and the older file of several pickles
with the bytes of the storages after them.
"""

import math
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np

from txl_jax import files
from txl_jax.convert import archive, inert, pickles
from txl_jax.errors import UserError

AnyPath = str | os.PathLike[str]
ODD = *files.ODD, struct.error  # what damaged data raise where they are used

_MAGIC = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # of the older form
_ZIP = b'PK\x03\x04'
_VERSION = b'\x80\x02M\xe9\x03.'
_PICKLE = 1 << 28  # bytes of the pickle of an archive
_RANK = 8
_NAME = 1000  # characters of the name of a tensor

DTYPES = {
  'Float': '<f4', 'Double': '<f8', 'Half': '<f2', 'BFloat16': '<u2',
  'Long': '<i8', 'Int': '<i4', 'Short': '<i2', 'Char': 'i1', 'Byte': 'u1',
  'Bool': '?',
}  # fmt: skip


class Storage(NamedTuple):
  """Elements of one type that tensors are views of."""

  dtype: str  # a key of DTYPES
  key: str  # of where its bytes are
  size: int  # elements
  offset: int = 0  # elements, within the bytes of that key


def load(path: AnyPath) -> tuple[Any, 'Storages']:
  """The object of a file as `pickles.loads` gives it, and its storages.

  UserError: it cannot be read, is damaged or of another kind, or names what is
  not allowed.
  """
  data = map_file(path)
  try:
    if bytes(data[:4]) == _ZIP:
      return _load_archive(data, path)
    if bytes(data[: len(_MAGIC)]) == _MAGIC:
      return _load_old(data, path)
  except ODD as e:
    raise refusal(path, e) from None
  raise UserError(
    f'{path} is no file of torch.save; allowed: one that is, .safetensors, our '
    '.npz, a checkpoint of TensorFlow, or a folder with one of these'
  )


def is_torch(data: memoryview) -> bool:
  """Whether a file begins like one of torch.save, in either form."""
  return bytes(data[:4]) == _ZIP or bytes(data[: len(_MAGIC)]) == _MAGIC


def is_name(text: str) -> bool:
  """Whether a text can be a tensor's name, and be shown in one line."""
  return 0 < len(text) <= _NAME and text.isprintable()


def refusal(path: AnyPath, e: Exception) -> UserError:
  """The UserError for a file, from an error about its contents."""
  what = ' '.join(f'{e}'.split())[:300] or type(e).__name__
  return UserError(f'{path} is no file of weights that is read: {what}')


def map_file(path: AnyPath) -> memoryview:
  """The bytes of a file, mapped into memory; UserError if there is none."""
  try:
    with files.open_regular(path) as f:
      if not os.fstat(f.fileno()).st_size:
        return memoryview(b'')
      return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}') from e


class Storages:
  """Bytes by key; {key: member} of an archive, or filled in order."""

  def __init__(self, data):
    self.size, self.data, self.found = len(data), data, {}

  def __getitem__(self, key):
    return self.found[key]


class _InArchive(Storages):
  """Storages in an archive, whose checksums are verified once each."""

  def __init__(self, data, members, folder):
    super().__init__(data)
    self.members, self.folder = members, folder

  def __getitem__(self, key):
    if key not in self.found:
      name = f'{self.folder}/data/{key}'
      if name not in self.members:
        raise ValueError(f'it has no member {name!r:.80}')
      self.found[key] = archive.contents(self.data, self.members[name])
    return self.found[key]


def _load_archive(data, path):
  members = archive.members(data)
  folders = [
    n.removesuffix('/data.pkl')
    for n in members
    if n.endswith('/data.pkl') and n.count('/') == 1
  ]
  if len(folders) != 1:
    raise ValueError('it has no member data.pkl, or several')
  (folder,) = folders
  order = members.get(f'{folder}/byteorder')
  if order and bytes(archive.contents(data, order)) != b'little':
    raise ValueError('it is big-endian, which is not read')
  member = members[f'{folder}/data.pkl']
  if member.size > _PICKLE:
    raise ValueError(f'its pickle has {member.size:,} bytes')
  pickle = archive.contents(data, member)
  root, _ = pickles.loads(pickle, f'{path}', _storage)
  return root, _InArchive(data, members, folder)


def _load_old(data, path):
  at = len(_MAGIC)
  if bytes(data[at : at + len(_VERSION)]) != _VERSION:
    raise ValueError('it is of another version')
  system, at = pickles.loads(data, f'{path}', start=at + len(_VERSION))
  if not system['little_endian']:
    raise ValueError('it is big-endian, which is not read')
  kinds = {}  # storages by key; the file does not tell their types again

  def persistent(identity):
    storage = _storage(identity)
    if isinstance(storage, Storage):
      kinds.setdefault(storage.key, storage.dtype)
    return storage

  root, at = pickles.loads(data, f'{path}', persistent, at)
  keys, at = pickles.loads(data, f'{path}', start=at)
  storages = Storages(data)
  for key in keys:
    if type(key) is not str or key not in kinds or key in storages.found:
      raise ValueError('a storage is unknown, or there twice')
    (count,) = struct.unpack_from('<q', data, at)
    size = count * np.dtype(DTYPES[kinds[key]]).itemsize
    at += 8
    if not 0 <= size <= len(data) - at:
      raise ValueError(f'storage {key!r:.80} is not whole')
    storages.found[key] = data[at : at + size]
    at += size
  return root, storages


def _storage(identity):
  """The storage of a persistent id, or the class of a module."""
  kind, name, *rest = identity
  if kind == 'module':  # class, file and source text
    return name
  if kind != 'storage' or type(name) is not inert.Name:
    raise ValueError('it refers to what is no storage')
  key, _, size, *view = rest
  dtype = name.name.removesuffix('Storage')
  if dtype not in DTYPES:
    raise inert.Refused(f'it has a {name}, whose type is not read')
  offset = 0
  if view and view[0] is not None:
    _, offset, size = view[0]
  if type(key) is not str or type(size) is not int or type(offset) is not int:
    raise ValueError('a storage is not described as one')
  return Storage(dtype, key, size, offset)


def array(tensor: inert.Object, storages: Storages) -> np.ndarray:
  """The array of a tensor, a view of its storage; ValueError if it has none."""
  storage, offset, shape, strides = tensor.args[:4]
  if any(tensor.args[6:]):  # {'neg': True}: the numbers are not those stored
    raise ValueError(f'a tensor has the metadata {tensor.args[6]!r:.80}')
  for numbers in shape, strides, (offset,):
    few = type(numbers) is tuple and len(numbers) <= _RANK
    if not few or any(type(n) is not int for n in numbers):
      raise ValueError('a tensor is not described as one')
    if any(not 0 <= n < 1 << 48 for n in numbers):
      raise ValueError(f'a tensor has the shape {shape}, which cannot be')
  if not isinstance(storage, Storage) or len(shape) != len(strides):
    raise ValueError('a tensor is not described as one')
  dtype = np.dtype(DTYPES[storage.dtype])
  last = offset + sum((n - 1) * step for n, step in zip(shape, strides))
  count = math.prod(shape)
  if count and (last >= storage.size or count > storage.size):
    raise ValueError(f'a tensor of shape {shape} is not in its storage')
  data = storages[storage.key]
  if (storage.offset + storage.size) * dtype.itemsize > len(data):
    raise ValueError(f'storage {storage.key!r:.80} has {len(data)} bytes')
  if not count:
    return np.zeros(shape, dtype)
  steps = [n * dtype.itemsize for n in strides]
  start = (storage.offset + offset) * dtype.itemsize
  found = np.ndarray(shape, dtype, data, start, steps)
  if storage.dtype == 'BFloat16':
    return (found.astype(np.uint32) << 16).view(np.float32)
  return found
