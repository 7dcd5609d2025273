"""Just the parameters, in one file that NumPy reads.

The file is an .npz: one float32 array for each parameter, named by its path
('layers_0/ff/w1/kernel'), and '__model__', JSON text with the fields of the
model and the vocabulary. Nothing in it is pickled.

  from txl_jax.runs import weights_file
  model, params, vocabulary = weights_file.load('model.npz')
"""

import json
import math
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from txl_jax import files, models, settings
from txl_jax.data import vocabulary as vocabulary_lib
from txl_jax.data.vocabulary import AnyVocabulary
from txl_jax.errors import UserError
from txl_jax.models import base

AnyPath = str | os.PathLike[str]
Fields = Mapping[str, Any]

_HEADER = '__model__'
_LARGEST = 1 << 28  # bytes of the JSON text


def save(
  path: AnyPath,
  params: Any,
  model: Fields,
  vocabulary: Fields,
  flag: str = '--export_file',
  new: bool = False,
) -> None:
  """Writes a file, whole or not at all.

  The parameters are a nested dict of arrays, the model is the section `model`
  of a config, the vocabulary is what its `to_json` gives. With `new`, no
  existing file is overwritten. UserError, which names the flag: the path does
  not end in .npz, or cannot be written.
  """
  path = pathlib.Path(path)
  if path.suffix != '.npz':
    raise UserError(f'{flag}={path}; allowed: a name that ends in .npz')
  params = jax.device_get(params)
  arrays: Any = flax.traverse_util.flatten_dict(params, sep='/')
  header = json.dumps({'model': model, 'vocabulary': vocabulary})
  arrays[_HEADER] = np.array(header)
  with files.writing(f'{flag}={path}'), files.replacing(path, new) as f:
    np.savez(f, allow_pickle=False, **arrays)


def load(path: AnyPath) -> tuple[base.LanguageModel, Any, AnyVocabulary]:
  """The model, parameters and vocabulary of a file written by `save`.

  The model is as it was trained, unbound; `model.at_test_time(mem_len=1600)`
  changes its lengths. The parameters are a nested dict of NumPy arrays. Their
  headers are checked against the model before they are read: this takes no more
  memory than the file has bytes. UserError: the file cannot be read, or is not
  as `save` writes it; or a parameter is not finite.
  """
  model, arrays, vocabulary = _open(path)
  return model, flax.traverse_util.unflatten_dict(arrays, sep='/'), vocabulary


def about(path: AnyPath) -> tuple[base.LanguageModel, AnyVocabulary]:
  """The model and vocabulary of a file, as from `load`, without parameters."""
  model, _, vocabulary = _open(path, arrays=False)
  return model, vocabulary


def _open(path, arrays=True):
  """What `load` finds, with parameters as {name: array}, or without arrays."""
  found = {}
  try:
    with files.open_regular(path) as f, zipfile.ZipFile(f) as archive:
      members = _members(archive)
      model, vocabulary = _model(archive, members)
      shapes = _shapes(model)
      _compare(archive, members, shapes, os.fstat(f.fileno()).st_size)
      for name in shapes if arrays else ():
        found[name] = _read(archive, members[name], name)
  except Exception as e:  # whatever zipfile and NumPy raise for a damaged file
    what = getattr(e, 'strerror', '') or f'{e}' or type(e).__name__
    what = ' '.join(what.split())[:300]
    raise UserError(f'{path} is no file of exported parameters: {what}') from e
  return model, found, vocabulary


def _members(archive):
  """{name: member} of the arrays in an archive, none of them compressed.

  A compressed one could become a thousand times larger than the file.
  """
  found = {}
  for member in archive.infolist():
    name = member.filename.removesuffix('.npy')
    if member.compress_type != zipfile.ZIP_STORED:
      raise ValueError(f'{name} is compressed')
    if name in found:
      raise ValueError(f'{name} is there twice')
    found[name] = member
  return found


def _model(archive, members):
  """The model and vocabulary that the file describes."""
  if _HEADER not in members:
    raise ValueError(f'it has no {_HEADER}')
  with archive.open(members[_HEADER]) as f:
    shape, dtype = _kind(f)
    if shape or dtype.kind != 'U':
      raise ValueError(f'{_HEADER} is no text')
    # NumPy writes text as UTF-32, which is allowed for JSON.
    header = files.parse_json(files.limited(f, _HEADER, _LARGEST), _HEADER)
  vocabulary = vocabulary_lib.from_json(header.get('vocabulary'))
  fields = header.get('model')
  if not isinstance(fields, dict):
    raise ValueError(f'its model is {fields!r}')
  name = fields.get('name')
  if name not in [*models.MODELS]:
    settings.refuse('model.name', name, ', '.join(models.MODELS))
  config = models.MODELS[name].Config
  # A model of an older version lacks keys that were added later.
  fields = {**settings.defaults(config), **fields}
  settings.check({'model': config}, {'model': fields})
  # Tracing takes time for each layer and tail, which have their own arrays.
  parts, most = (
    max(fields.get('n_layer', 0), len(fields['cutoffs'])),
    len(members),
  )
  if parts > most:
    raise ValueError(f'it has {most} arrays for {parts} layers or tails')
  return models.build(fields, len(vocabulary)), vocabulary


def _shapes(model):
  """{name: shape and dtype} of the parameters of a model."""
  found = jax.eval_shape(
    lambda: model.inference_params(base.init_params(model, jax.random.key(0)))
  )
  return flax.traverse_util.flatten_dict(found, sep='/')


def _compare(archive, members, shapes, size):
  """Raises a ValueError unless the parameters are those of the model."""
  for name in sorted(members.keys() ^ {_HEADER, *shapes}):
    wrong = 'is none of the model' if name in members else 'is missing'
    raise ValueError(f'{name} {wrong}')
  for name, expected in shapes.items():
    with archive.open(members[name]) as f:
      found, wanted = _said(*_kind(f)), _said(expected.shape, expected.dtype)
      if found != wanted:
        raise ValueError(f'{name} is {found}; expected {wanted}')
      rest, n = members[name].file_size - f.tell(), _bytes(expected)
      if rest != n:
        raise ValueError(f'{name} has {rest} bytes, expected {n}')
  # Members could share the same bytes.
  if (n := sum(map(_bytes, shapes.values()))) > size:
    raise ValueError(f'its arrays have {n:,} bytes, the file {size:,}')


def _bytes(kind):
  return math.prod(kind.shape) * kind.dtype.itemsize


def _kind(f):
  """Shape and dtype of an array whose data follow in the file."""
  if np.lib.format.read_magic(f) != (1, 0):
    raise ValueError('it is not as numpy.savez writes it')
  shape, _, dtype = np.lib.format.read_array_header_1_0(f)
  return shape, dtype


def _said(shape, dtype):
  return f'{dtype} {list(shape)}'


def _read(archive, member, name):
  """The array of a member; ValueError if it is not finite."""
  with archive.open(member) as f:
    array = np.lib.format.read_array(f, allow_pickle=False)
  if not np.isfinite(array).all():
    raise ValueError(f'{name} has values that are not finite')
  return array
