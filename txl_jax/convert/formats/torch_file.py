"""Reads and writes weights in files of torch.save, without torch.

A file holds a state dict; a dict that contains one, as NVIDIA's code saves it;
or a pickled module, as the original code saves it, whose class need not exist
here. It is a zip archive or, before torch 1.6, several pickles followed by the
bytes of the storages. Arrays are views of the memory-mapped file, so only the
parts in use take memory.

torch itself is no alternative: torch.load(weights_only=True) refuses the
modules, checkpoints and vocabularies of the published code bases, and a
download of torch is 2.7 GB from PyPI on Linux, or 0.2 GB without CUDA.
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

from txl_jax.convert import convert_options
from txl_jax.convert.versions import names
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError, reason

# Exceptions that damaged data raise.
ODD = *files.ODD, OSError, struct.error, zipfile.BadZipFile, NotImplementedError

_FIELDS = 200_000  # of all modules together
_ITEMS = 1000  # of an option that is a list
_LONGEST = 1000  # characters of a name
_PLAIN = int, float, bool, str, type(None)
_STATES = 'model_state', 'model_state_dict', 'state_dict', 'model'

_MAGIC = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # before torch 1.6
_ZIP = b'PK\x03\x04'

_DTYPES = {
  'FloatStorage': '<f4', 'DoubleStorage': '<f8', 'HalfStorage': '<f2',
  'BFloat16Storage': jnp.bfloat16, 'LongStorage': '<i8', 'IntStorage': '<i4',
  'ShortStorage': '<i2', 'CharStorage': 'i1', 'ByteStorage': 'u1',
  'BoolStorage': '?',
}  # fmt: skip
Storages = Mapping[str, memoryview]  # {storage key: bytes}


class Contents(NamedTuple):
  """The contents of a file.

  `tensors` is the state dict: read-only arrays, with bfloat16 as float32.
  `options` holds numbers and text: the attributes of a module by their dotted
  names, or the other entries of the dict that contains the state dict.
  """

  tensors: dict[str, np.ndarray]
  options: dict[str, Any]


def load(path: files.AnyPath) -> tuple[Any, Storages]:
  """The object in a file, as `pickles.loads` returns it, and its storages.

  Raises UserError if the file cannot be read, is not a file of torch.save or
  names a class or function that is not allowed; one of ODD if it is damaged.
  """
  data = files.mapped(path)
  if not is_torch(data):
    raise UserError(
      f'{path} has an unknown format; allowed: a file of torch.save, '
      '.safetensors, our .npz, a TensorFlow checkpoint, or a folder with one'
    )
  return (_load_archive if data[:4] == _ZIP else _load_old)(data, path)


def is_torch(data: memoryview) -> bool:
  """Whether a file begins like one of torch.save, in either format."""
  return data[:4] == _ZIP or data[: len(_MAGIC)] == _MAGIC


def read(path: files.AnyPath) -> Contents:
  """Tensors and options of a file.

  Raises UserError if the file cannot be read, is damaged, has another format,
  or names a class or function that weights do not need.
  """
  tensors = {}
  try:
    root, storages = load(path)
    named, attributes = _model(root)
    limit = 4 * os.path.getsize(path)  # tied weights count twice
    for name, tensor in named.items():
      tensors[name] = _array(tensor, storages)
      limit -= tensors[name].nbytes
      if limit < 0:
        raise ValueError('its tensors have more bytes than four times the file')
  except ODD as e:
    raise UserError(f'{path} is not a file of weights: {reason(e)}') from e
  return Contents(tensors, attributes)


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
  """The bytes of an archive member as a view; verifies its checksum."""
  if member.compress_type:
    raise ValueError(f'{member.filename!r:.80} is compressed')
  # The data follow a local header, whose length zipfile does not report.
  lengths = struct.unpack_from('<HH', data, member.header_offset + 26)
  start = member.header_offset + 30 + sum(lengths)
  contents = data[start : start + member.file_size]
  # torch writes 0 if checksums are switched off.
  if member.CRC and zlib.crc32(contents) != member.CRC:
    raise ValueError('a checksum is wrong')
  return contents


def _load_old(data, path):
  at = len(_MAGIC)
  for _ in range(2):  # the format version, and the writer's system info
    _, at = pickles.loads(data, f'{path}', start=at)
  kinds = {}  # {storage key: type}; later parts of the file omit the type

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
    raise ValueError('its storages are truncated')
  return root, storages


def _storage(identity):
  """(type, key) of a storage, or the class of a module, by persistent id."""
  kind, name, *rest = identity
  if kind == 'module':  # class, file and source text
    return name
  key, _, _, *view = rest
  if kind != 'storage' or name not in _DTYPES or any(view):
    raise ValueError(f'it has a {name:.80}, which is not supported')
  return name, key


def _array(tensor, storages):
  """A tensor as a view of its storage; ValueError if it lies outside."""
  (kind, key), offset, shape, strides = tensor.args[:4]
  dtype = np.dtype(_DTYPES[kind])
  data = storages[key]
  last = offset + sum((n - 1) * step for n, step in zip(shape, strides))
  outside = math.prod(shape) and (last + 1) * dtype.itemsize > len(data)
  if outside or any(n < 0 for n in (offset, *shape, *strides)):
    raise ValueError(f'a tensor of shape {[*shape]} is not in its storage')
  steps = [n * dtype.itemsize for n in strides]
  x = np.ndarray(shape, dtype, data, offset * dtype.itemsize, steps)
  return x.astype(np.float32) if dtype == jnp.bfloat16 else x


def _model(root):
  """{name: tensor} and options of a saved object."""
  fields = pickles.fields(root)
  settings = {}
  attributes = {}
  key = next((key for key in _STATES if key in fields), '')
  if key and not _tensors(fields):
    settings = _plain(fields)
    for name in convert_options.ARGUMENTS:
      arguments = pickles.fields(fields.get(name))
      model = pickles.fields(arguments.get('model'))
      settings[name] = _plain(model or arguments)
    fields = pickles.fields(fields[key])
  if '_modules' in fields:
    tensors, attributes = _module(fields)
    settings |= _plain(pickles.fields(fields.get('config')))  # of transformers
  else:
    tensors = _tensors(fields)
  if not tensors:
    raise ValueError(f'it has no tensors and no entry {" or ".join(_STATES)}')
  if not all(map(names.is_name, tensors)):
    raise ValueError('a tensor name is invalid')
  attributes = {names.unwrapped(k): x for k, x in attributes.items()}
  return tensors, settings | attributes


def _tensors(fields):
  return {k: x for k, x in fields.items() if isinstance(x, pickles.Tensor)}


def _module(root):
  """{name: tensor} and attributes of a pickled module."""
  named, attributes = {}, {}
  stack = [('', root)]
  left = _FIELDS
  while stack:
    prefix, module = stack.pop()
    children = pickles.fields(module.get('_modules'))
    tensors = {
      **pickles.fields(module.get('_parameters')),
      **pickles.fields(module.get('_buffers')),
    }
    # The limit stops modules that share submodules: paths grow exponentially.
    left -= 1 + len(module) + len(children) + len(tensors)
    if left < 0 or len(prefix) > _LONGEST:
      raise ValueError('it has too many modules, or overlong names')
    named |= {f'{prefix}{k}': x for k, x in _tensors(tensors).items()}
    attributes |= {f'{prefix}{k}': x for k, x in _plain(module).items()}
    inside = [(f'{prefix}{k}.', pickles.fields(x)) for k, x in children.items()]
    stack += inside[::-1]
  return named, attributes


def _plain(fields):
  """The fields that are numbers, text, or lists of these."""

  def is_plain(value):
    each = value if isinstance(value, list | tuple) else [value]
    return len(each) <= _ITEMS and all(type(x) in _PLAIN for x in each)

  return {k: x for k, x in fields.items() if type(k) is str and is_plain(x)}


def write(path: files.AnyPath, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a state dict that torch.load reads with weights_only=True.

  Arrays become float32. Two names of one array share a storage, as tied weights
  do in torch. The file is written atomically. Raises UserError if it cannot be
  written.
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
  """The pickle of an OrderedDict of tensors, from (name, array, key)."""

  def plain(value):
    return pickle.dumps(value, 2)[2:-1]  # without header and STOP

  empty = b'ccollections\nOrderedDict\n)R'
  out = [b'\x80\x02', empty, b'(']
  for name, x, key in described:
    strides = tuple(math.prod(x.shape[i + 1 :]) for i in range(x.ndim))
    out += [plain(name), b'ctorch._utils\n_rebuild_tensor_v2\n((']
    out += [plain('storage'), b'ctorch\nFloatStorage\n']
    out += [*map(plain, (key, 'cpu', x.size)), b'tQ']
    out += [*map(plain, (0, x.shape, strides, False)), empty, b'tR']
  return b''.join([*out, b'u.'])
