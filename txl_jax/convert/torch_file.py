"""Weights in files of torch.save, read and written without torch.

A file holds a state dict; a dict with one, as NVIDIA's code saves it; or a
whole module, as the original code saves it, whose classes are not needed.
Arrays are views of the file in memory, so that a file of any size takes no
more than what is used of it.
"""

import os
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from txl_jax import files
from txl_jax.convert import torch_storage
from txl_jax.convert.inert import Name, Object
from txl_jax.convert.names import WRAPPER
from txl_jax.errors import UserError

AnyPath = str | os.PathLike[str]

_DEPTH = 20  # of modules within modules
_FIELDS = 200_000  # of all modules
_ITEMS = 100  # of an option
_ARGUMENTS = 1000  # of a program, which a file may keep
_PLAIN = int, float, bool, str, type(None)
_STATES = 'model_state', 'model_state_dict', 'state_dict', 'model'


class Contents(NamedTuple):
  """What a file holds.

  The tensors of the state dict by name, those of bfloat16 as float32; arrays
  may not be written to. The options are what else it says in numbers and text:
  the attributes of a module by their dotted names, or the other entries of the
  dict that holds the state dict.
  """

  tensors: dict[str, np.ndarray]
  options: dict[str, Any]


def read(path: AnyPath) -> Contents:
  """Tensors and options of a file.

  UserError, one line: it cannot be read, is damaged or of another kind, or
  names what weights do not need.
  """
  root, storages = torch_storage.load(path)
  try:
    named, options = _model(root)
    tensors, total, size = {}, 0, storages.size
    for name, tensor in named.items():
      tensors[name] = torch_storage.array(tensor, storages)
      total += tensors[name].nbytes
      if total > 4 * size:  # tied weights are there twice
        raise ValueError(f'its tensors have more bytes than 4 x {size:,}')
  except torch_storage.ODD as e:
    raise torch_storage.refusal(path, e) from None
  return Contents(tensors, options)


def write(
  path: AnyPath, tensors: Mapping[str, np.ndarray], new: bool = False
) -> None:
  """Writes a state dict that torch.load reads with weights_only=True.

  Names of the same array share a storage, as tied weights do in torch. Arrays
  are float32, float64, float16, integers or booleans, of any strides. It is
  written whole or not at all, and over no other file if it is to be new.
  UserError: it cannot be written.
  """
  storages, described = {}, []
  for name, x in tensors.items():
    x = np.asarray(x)
    same = (x.__array_interface__['data'][0], x.shape, x.strides, x.dtype)
    key, _ = storages.setdefault(same, (len(storages), x))
    described.append((name, x, key))
  with (
    files.writing(f'{path}'),
    files.replacing(path, new) as f,
    zipfile.ZipFile(f, 'w', zipfile.ZIP_STORED) as archive,
  ):
    archive.writestr('archive/data.pkl', _pickle(described))
    archive.writestr('archive/byteorder', 'little')
    for key, x in storages.values():
      x = np.asarray(x, x.dtype.newbyteorder('<'), order='C')
      member = zipfile.ZipInfo(f'archive/data/{key}')
      # Storages begin at multiples of 64 bytes, so that the file can be mapped.
      begin = f.tell() + 30 + len(member.filename) + 20 + 4
      fill = -begin % 64
      member.extra = struct.pack('<2sH', b'FB', fill) + bytes(fill)
      with archive.open(member, 'w', force_zip64=True) as out:
        out.write(x.reshape(-1).view(np.uint8).data)
    archive.writestr('archive/version', '3\n')


def _pickle(described):
  """The pickle of an OrderedDict of tensors, each (name, array, key)."""
  kinds = {np.dtype(d).name: k for k, d in torch_storage.DTYPES.items()}
  del kinds['uint16']  # that stands for bfloat16
  empty = b'ccollections\nOrderedDict\n)R'
  out = [b'\x80\x02', empty, b'(']
  for name, x, key in described:
    if x.dtype.name not in kinds:
      raise UserError(f'{name} is of type {x.dtype}, which torch does not have')
    storage = f'ctorch\n{kinds[x.dtype.name]}Storage\n'.encode()
    strides, step = [], 1
    for n in x.shape[::-1]:
      strides.insert(0, step)
      step *= n
    out += [
      _text(name),
      b'ctorch._utils\n_rebuild_tensor_v2\n((',
      _text('storage'),
    ]
    out += [storage, _text(f'{key}'), _text('cpu'), _whole(x.size), b'tQ']
    out += [_whole(0), _tuple(x.shape), _tuple(strides), b'\x89', empty, b'tR']
  return b''.join([*out, b'u.'])


def _text(text):
  data = text.encode()
  return b'X' + struct.pack('<I', len(data)) + data


def _whole(n):
  return b'\x8a\x08' + struct.pack('<q', n)


def _tuple(numbers):
  return b'(' + b''.join(map(_whole, numbers)) + b't'


def _is_tensor(x):
  if type(x) is Object and x.kind == Name('torch.nn.parameter', 'Parameter'):
    return bool(x.args) and _is_tensor(x.args[0])
  return type(x) is Object and x.kind.module == 'torch._utils'


def _tensor(x, name):
  """The object of a tensor that is not a parameter; ValueError for others."""
  for _ in range(_DEPTH):
    kind = x.kind.name if _is_tensor(x) else ''
    if kind in ('_rebuild_tensor', '_rebuild_tensor_v2'):
      return x
    if kind not in (
      'Parameter',
      '_rebuild_parameter',
      '_rebuild_parameter_with_state',
    ):
      break
    x = x.args[0]
  raise ValueError(f'{name!r:.200} is no dense tensor')


def _model(root):
  """{name: tensor} and options of the object that was saved."""
  options = {}
  if type(root) is dict and not any(map(_is_tensor, root.values())):
    keys = [key for key in _STATES if key in root]
    if not keys:
      raise ValueError(f'it has no tensors, nor {" or ".join(_STATES)}')
    rest = {k: v for k, v in root.items() if k != keys[0]}
    options, root = _options(rest), root[keys[0]]
  if type(root) is Object:
    named, attributes = _module(root)
    options |= attributes
  elif type(root) is dict:
    named = {k: _tensor(x, k) for k, x in root.items() if _is_tensor(x)}
    options |= _options({k: x for k, x in root.items() if k not in named})
  else:
    raise ValueError(f'it holds a {type(root).__name__}')
  if not named or not all(
    type(k) is str and torch_storage.is_name(k) for k in named
  ):
    raise ValueError('it has no tensors, or they have no names')
  while all(name.startswith(WRAPPER) for name in named):  # of DataParallel
    named = {k.removeprefix(WRAPPER): x for k, x in named.items()}
    own = {k: x for k, x in options.items() if not k.startswith(WRAPPER)}
    inner = options.keys() - own.keys()
    options = own | {k.removeprefix(WRAPPER): options[k] for k in inner}
  return {name: _tensor(x, name) for name, x in named.items()}, options


def _module(root):
  """{name: tensor} and attributes of a module that was pickled whole."""
  named, attributes = {}, {}
  waiting, left = [('', root, 0)], _FIELDS
  while waiting:
    prefix, module, depth = waiting.pop()
    if type(module) is not Object or depth > _DEPTH:
      raise ValueError(f'{prefix!r:.80} is no module')
    fields = module.fields
    children = fields.get('_modules', {})
    tensors = fields.get('_parameters', {}) | fields.get('_buffers', {})
    # A module may be in many others, and these in many more.
    left -= 1 + len(fields) + len(children) + len(tensors)
    if left < 0 or any(len(f'{k}') > 100 for k in (*children, *tensors)):
      raise ValueError('it has too many modules, or too long names')
    for name, x in tensors.items():
      if x is not None:
        named[f'{prefix}{name}'] = _tensor(x, name)
    own = {k: x for k, x in fields.items() if f'{k}'[:1] != '_'}
    attributes |= {f'{prefix}{k:.100}': x for k, x in _options(own).items()}
    inside = [(f'{prefix}{k}.', m, depth + 1) for k, m in children.items() if m]
    waiting += inside[::-1]
  return named, attributes


def _options(fields):
  """The plain values of a dict, and of the dicts and namespaces in it."""
  found = {k: x for k, x in fields.items() if type(k) is str and _is_plain(x)}
  for key, value in fields.items():
    if type(value) is Object and value.kind.name == 'Namespace':  # argparse's
      value = value.fields
    if type(key) is str and type(value) is dict and len(value) <= _ARGUMENTS:
      found[key] = {k: x for k, x in value.items() if _is_plain(x)}
  return found


def _is_plain(value):
  """Whether a value is a number or text, or a few of these."""
  if type(value) in (list, tuple):
    return len(value) <= _ITEMS and all(type(x) in _PLAIN for x in value)
  return type(value) in _PLAIN
