"""Just the parameters, in one file that NumPy reads.

The file is an .npz: one float32 array for each parameter, named by its path
('layers_0/ff/w1/kernel'), and '__model__', JSON text with the fields of the
model and the vocabulary. Nothing in it is pickled.

  from txl_jax.runs import weights_file
  model, params, vocabulary = weights_file.load('model.npz')
"""

import functools
import json
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from txl_jax import models
from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.models import base
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError

AnyPath = str | os.PathLike[str]
Fields = Mapping[str, Any]

_HEADER = '__model__'
_LARGEST_HEADER = 1 << 30  # bytes; NumPy keeps four for each character
_NPY_HEADER = 1 << 16  # at most, before the numbers of an array


def save(
  path: AnyPath,
  params: Any,
  model: Fields,
  vocabulary: Fields,
  flag: str = '--export_file',
) -> None:
  """Writes a file, whole or not at all; UserErrors name the flag.

  The parameters are a nested dict of arrays, the model is the section `model`
  of a config, the vocabulary is what its `to_json` gives.
  """
  path = pathlib.Path(path)
  if path.suffix != '.npz':
    raise UserError(f'{flag}={path}; allowed: a name that ends in .npz')
  params = jax.device_get(params)
  arrays: Any = flax.traverse_util.flatten_dict(params, sep='/')
  header = json.dumps({'model': model, 'vocabulary': vocabulary})
  arrays[_HEADER] = np.array(header)
  with files.writing(f'{flag}={path}'), files.replacing(path) as f:
    np.savez(f, allow_pickle=False, **arrays)


def load(path: AnyPath) -> tuple[base.LanguageModel, Any, AnyVocabulary]:
  """The model, parameters and vocabulary of a file written by `save`.

  The model is as it was trained, unbound; `model.at_test_time(mem_len=1600)`
  changes its lengths. The parameters are a nested dict of NumPy arrays.
  UserError: the file cannot be read, or is not as `save` writes it; or a
  parameter is not finite.
  """
  try:
    with files.open_regular(path) as f, np.load(f) as archive:
      header = str(_entry(archive, _HEADER, _LARGEST_HEADER))
      model, vocabulary = described(files.parse_json(header.encode(), _HEADER))
      names = {*archive} - {_HEADER}
      params = checked(model, names, functools.partial(_array, archive))
  except Exception as e:  # whatever zipfile and NumPy raise for a damaged file
    what = getattr(e, 'strerror', '') or f'{e}' or type(e).__name__
    what = ' '.join(what.split())[:300]
    raise UserError(f'{path} is no file of exported parameters: {what}') from e
  return model, params, vocabulary


def described(header: Any) -> tuple[base.LanguageModel, AnyVocabulary]:
  """The model and vocabulary of {'model': its section, 'vocabulary': JSON}.

  UserError, or files.ODD, if there are none like them.
  """
  fields, name = header['model'], header['model']['name']
  if name not in [*models.MODELS]:
    settings.refuse('model.name', name, ', '.join(models.MODELS))
  config = models.MODELS[name].Config
  # A key that was declared later had its default.
  fields = {**settings.defaults(config), **fields}
  settings.check({'model': config}, {'model': fields})
  vocabulary = vocabularies.from_json(header['vocabulary'])
  return models.build(fields, len(vocabulary)), vocabulary


def checked(
  model: base.LanguageModel,
  names: Collection[str],
  read: Callable[[str, jax.ShapeDtypeStruct], np.ndarray],
) -> Any:
  """The parameters of a model, a nested dict, from arrays by their paths.

  ValueError: one is missing, none of the model, or not as the model has it.
  """
  shapes: Any = flax.traverse_util.flatten_dict(
    model.inference_params(base.param_shapes(model)), sep='/'
  )
  for name in sorted({*names} ^ {*shapes}):
    wrong = 'is none of the model' if name in names else 'is missing'
    raise ValueError(f'{name} {wrong}')
  found = {}
  for name, like in shapes.items():
    array = read(name, like)
    here, wanted = (f'{x.dtype} {list(x.shape)}' for x in (array, like))
    if here != wanted:
      raise ValueError(f'{name} is {here}; expected {wanted}')
    if not np.isfinite(array).all():
      raise ValueError(f'{name} has values that are not finite')
    found[name] = array
  return flax.traverse_util.unflatten_dict(found, sep='/')


def _entry(archive, name, nbytes):
  """An array; ValueError if it is larger than so many, as a bomb is."""
  found = archive.zip.getinfo(f'{name}.npy').file_size
  if found > nbytes + _NPY_HEADER:
    raise ValueError(f'{name} has {found:,} bytes; expected {nbytes:,}')
  return archive[name]


def _array(archive, name, like):
  return _entry(archive, name, like.size * like.dtype.itemsize)
