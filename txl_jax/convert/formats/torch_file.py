"""Weights in files of torch.save, read and written without torch.

A file holds a state dict; a dict with one, as NVIDIA's code saves it; or a
whole module, as the original code saves it, whose classes are not needed. It is
a zip archive or, before torch 1.6, several pickles with the bytes of the
storages after them. Arrays are views of the file in memory, so that a file of
any size takes no more than what is used of it.

torch.load(weights_only=True) refuses the modules, checkpoints and vocabularies
that the published code bases have saved, and installing torch downloads 2.7 GB
from PyPI on Linux, or 0.2 GB without CUDA.
"""

import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from txl_jax.convert import options
from txl_jax.convert.versions import names
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError

# What damaged data raise where they are used.
ODD = *files.ODD, OSError, struct.error, zipfile.BadZipFile, NotImplementedError

_FIELDS = 200_000  # of all modules
_ITEMS = 1000  # of an option
_LONGEST = 1000  # characters of a name
_PLAIN = int, float, bool, str, type(None)
_STATES = 'model_state', 'model_state_dict', 'state_dict', 'model'

_MAGIC = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # of the older form
_ZIP = b'PK\x03\x04'

_DTYPES = {
  'FloatStorage': '<f4', 'DoubleStorage': '<f8', 'HalfStorage': '<f2',
  'BFloat16Storage': jnp.bfloat16, 'LongStorage': '<i8', 'IntStorage': '<i4',
  'ShortStorage': '<i2', 'CharStorage': 'i1', 'ByteStorage': 'u1',
  'BoolStorage': '?',
}  # fmt: skip
Storages = Mapping[str, memoryview]  # bytes by the keys of storages


class Contents(NamedTuple):
  """What a file holds.

  The tensors of the state dict by name, those of bfloat16 as float32; arrays
  may not be written to. The options are what else it says in numbers and text:
  the attributes of a module by their dotted names, or the other entries of the
  dict that holds the state dict.
  """

  tensors: dict[str, np.ndarray]
  options: dict[str, Any]


def load(path: files.AnyPath) -> tuple[Any, Storages]:
  """The object of a file as `pickles.loads` gives it, and its storages.

  UserError: it cannot be read, is of another kind, or names what is not
  allowed. One of ODD if it is damaged.
  """
  data = files.mapped(path)
  if not is_torch(data):
    raise UserError(
      f'{path} is no file of torch.save; allowed: one that is, .safetensors, '
      'our .npz, a checkpoint of TensorFlow, or a folder with one of these'
    )
  form = _load_archive if data[:4] == _ZIP else _load_old
  return form(data, path)


def is_torch(data: memoryview) -> bool:
  """Whether a file begins like one of torch.save, in either form."""
  return data[:4] == _ZIP or data[: len(_MAGIC)] == _MAGIC


def read(path: files.AnyPath) -> Contents:
  """Tensors and options of a file.

  UserError, one line: it cannot be read, is damaged or of another kind, or
  names what weights do not need.
  """
  tensors = {}
  try:
    root, storages = load(path)
    named, said = _model(root)
    left = 4 * os.path.getsize(path)  # tied weights count twice
    for name, tensor in named.items():
      tensors[name] = _array(tensor, storages)
      left -= tensors[name].nbytes
      if left < 0:
        raise ValueError('its tensors have more bytes than four times the file')
  except ODD as e:
    what = ' '.join(f'{e}'.split())[:300] or type(e).__name__
    raise UserError(
      f'{path} is no file of weights that is read: {what}'
    ) from None
  return Contents(tensors, said)


def _load_archive(data, path):
  with zipfile.ZipFile(path) as archive:
    members = {m.filename: m for m in archive.infolist()}
  roots = [name for name in members if name.endswith('/data.pkl')]
  if len(roots) != 1:
    raise ValueError('it has no member data.pkl, or several')
  whole = _contents(data, members[roots[0]])
  root, _ = pickles.loads(whole, f'{path}', _storage)
  inside = roots[0].removesuffix('.pkl') + '/'
  return root, {
    name.removeprefix(inside): _contents(data, member)
    for name, member in members.items()
    if name.startswith(inside)
  }


def _contents(data, member):
  """The bytes of a member, a view of the file, whose checksum is verified."""
  if member.compress_type:
    raise ValueError(f'{member.filename!r:.80} is compressed')
  # zipfile does not tell where they begin: after a header of its own.
  lengths = struct.unpack_from('<HH', data, member.header_offset + 26)
  start = member.header_offset + 30 + sum(lengths)
  found = data[start : start + member.file_size]
  # torch writes 0 if it was asked not to compute checksums.
  if member.CRC and zlib.crc32(found) != member.CRC:
    raise ValueError('a checksum is wrong')
  return found


def _load_old(data, path):
  at = len(_MAGIC)
  for _ in range(2):  # its version, and the system that wrote it
    _, at = pickles.loads(data, f'{path}', start=at)
  kinds = {}  # of storages by key; the file does not tell them again

  def persistent(identity):
    if identity[0] == 'storage':
      kinds.setdefault(identity[2], identity[1])
    return _storage(identity)

  root, at = pickles.loads(data, f'{path}', persistent, at)
  keys, at = pickles.loads(data, f'{path}', start=at)
  storages = {}
  for key in keys:
    (count,) = struct.unpack_from('<Q', data, at)
    size = count * np.dtype(_DTYPES[kinds[key]]).itemsize
    storages[key] = data[at + 8 : at + 8 + size]
    at += 8 + size
  if at > len(data):
    raise ValueError('its storages are not whole')
  return root, storages


def _storage(identity):
  """The type and key of a storage by its persistent id; or what a module is."""
  kind, name, *rest = identity
  if kind == 'module':  # class, file and source text
    return name
  key, _, _, *view = rest
  if kind != 'storage' or name not in _DTYPES or any(view):
    raise ValueError(f'it has a {name:.80}, which is not read')
  return name, key


def _array(tensor, storages):
  """The array of a tensor, a view of its storage; ValueError if it has none."""
  (kind, key), offset, shape, strides = tensor.args[:4]
  dtype, data = np.dtype(_DTYPES[kind]), storages[key]
  last = offset + sum((n - 1) * step for n, step in zip(shape, strides))
  outside = math.prod(shape) and (last + 1) * dtype.itemsize > len(data)
  if outside or any(n < 0 for n in (offset, *shape, *strides)):
    raise ValueError(f'a tensor of shape {[*shape]} is not in its storage')
  steps = [n * dtype.itemsize for n in strides]
  found = np.ndarray(shape, dtype, data, offset * dtype.itemsize, steps)
  return found.astype(np.float32) if dtype == jnp.bfloat16 else found


def _model(root):
  """{name: tensor} and options of the object that was saved."""
  found, said = pickles.fields(root), {}
  key = next((key for key in _STATES if key in found), '')
  if key and not _tensors(found):
    said = _plain(found)
    for name in options.ARGUMENTS:
      within = pickles.fields(found.get(name))
      said[name] = _plain(pickles.fields(within.get('model')) or within)
    found = pickles.fields(found[key])
  if '_modules' in found:
    tensors, more = _module(found)
    said |= _plain(pickles.fields(found.get('config')))  # of transformers
  else:
    tensors, more = _tensors(found), {}
  if not tensors:
    raise ValueError(f'it has no tensors, nor {" or ".join(_STATES)}')
  if not all(map(names.is_name, tensors)):
    raise ValueError('its tensors have no names')
  return tensors, said | {names.unwrapped(k): x for k, x in more.items()}


def _tensors(found):
  return {k: x for k, x in found.items() if isinstance(x, pickles.Tensor)}


def _module(root):
  """{name: tensor} and attributes of a module that was pickled whole."""
  named, attributes = {}, {}
  waiting, left = [('', root)], _FIELDS
  while waiting:
    prefix, module = waiting.pop()
    children = pickles.fields(module.get('_modules'))
    tensors = {
      **pickles.fields(module.get('_parameters')),
      **pickles.fields(module.get('_buffers')),
    }
    # A module may be in many others, and these in many more.
    left -= 1 + len(module) + len(children) + len(tensors)
    if left < 0 or len(prefix) > _LONGEST:
      raise ValueError('it has too many modules, or too long names')
    named |= {f'{prefix}{k}': x for k, x in _tensors(tensors).items()}
    attributes |= {f'{prefix}{k}': x for k, x in _plain(module).items()}
    inside = [(f'{prefix}{k}.', pickles.fields(x)) for k, x in children.items()]
    waiting += inside[::-1]
  return named, attributes


def _plain(found):
  """What is a number or text, or a list of these."""

  def is_plain(value):
    each = value if isinstance(value, list | tuple) else [value]
    return len(each) <= _ITEMS and all(type(x) in _PLAIN for x in each)

  return {k: x for k, x in found.items() if type(k) is str and is_plain(x)}


def write(path: files.AnyPath, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a state dict that torch.load reads with weights_only=True.

  The arrays are written as float32. Names of the same array share a storage, as
  tied weights do in torch. It is written whole or not at all. UserError: it
  cannot be written.
  """
  kept = {id(x): (f'{i}', x) for i, x in enumerate(tensors.values())}
  described = [(name, x, kept[id(x)][0]) for name, x in tensors.items()]
  with (
    files.writing(f'{path}'),
    files.replacing(path) as f,
    zipfile.ZipFile(f, 'w', zipfile.ZIP_STORED) as archive,
  ):
    archive.writestr('archive/data.pkl', _pickle(described))
    archive.writestr('archive/byteorder', 'little')
    for key, x in kept.values():
      member = zipfile.ZipInfo(f'archive/data/{key}')
      with archive.open(member, 'w', force_zip64=True) as out:
        out.write(np.ascontiguousarray(x, '<f4').reshape(-1).view('u1').data)
    archive.writestr('archive/version', '3\n')


def _pickle(described):
  """The pickle of an OrderedDict of tensors, each (name, array, key)."""

  def plain(value):
    return pickle.dumps(value, 2)[2:-1]  # without its ends

  empty = b'ccollections\nOrderedDict\n)R'
  out = [b'\x80\x02', empty, b'(']
  for name, x, key in described:
    strides = tuple(math.prod(x.shape[i + 1 :]) for i in range(x.ndim))
    out += [plain(name), b'ctorch._utils\n_rebuild_tensor_v2\n((']
    out += [plain('storage'), b'ctorch\nFloatStorage\n']
    out += [*map(plain, (key, 'cpu', x.size)), b'tQ']
    out += [*map(plain, (0, x.shape, strides, False)), empty, b'tR']
  return b''.join([*out, b'u.'])
