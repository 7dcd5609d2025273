"""A file of parameters that NumPy can read.

The .npz has one float32 array per parameter, named by its path
('layers_0/ff/w1/kernel'), and '__model__', a JSON text with the config of the
model and the vocabulary. Nothing in it is pickled.

  from txl_jax.runs import weights_file
  model, params, vocabulary = weights_file.load('model.npz')
"""

import json
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
from txl_jax.program import errors, files, settings
from txl_jax.program.errors import UserError

Fields = Mapping[str, Any]

_HEADER = '__model__'
_LARGEST_HEADER = 1 << 30  # bytes; NumPy uses four per character
_NPY_HEADER = 1 << 16  # maximum bytes before the data of an array


def save(
  path: files.AnyPath,
  params: Any,
  model: Fields,
  vocabulary: Fields,
  flag: str = '--export_file',
) -> None:
  """Writes a file atomically; UserErrors name the flag.

  `params` is a nested dict of arrays, `model` the section `model` of a config,
  `vocabulary` the result of its `to_json`.
  """
  check_name(path, flag)
  params = jax.device_get(params)
  arrays: Any = flax.traverse_util.flatten_dict(params, sep='/')
  header = json.dumps({'model': model, 'vocabulary': vocabulary})
  arrays[_HEADER] = np.array(header)
  with files.writing(f'{flag}={path}'), files.replacing(path) as f:
    np.savez(f, allow_pickle=False, **arrays)


def check_name(path: files.AnyPath, flag: str) -> None:
  """UserError naming the flag unless the path ends in .npz."""
  if pathlib.Path(path).suffix != '.npz':
    raise UserError(f'{flag}={path}; allowed: a name that ends in .npz')


def load(path: files.AnyPath) -> tuple[base.LanguageModel, Any, AnyVocabulary]:
  """Loads model, parameters and vocabulary from a file written by `save`.

  The model is unbound and has its training config;
  `model.at_test_time(mem_len=1600)` changes its lengths. The parameters are a
  nested dict of NumPy arrays. UserError if the file cannot be read, was not
  written by `save`, or has a non-finite parameter.
  """
  try:
    with files.open_regular(path) as f, np.load(f) as archive:
      header = str(_entry(archive, _HEADER, _LARGEST_HEADER))
      model, vocabulary = described(files.parse_json(header.encode(), _HEADER))
      params = checked(
        model,
        {*archive} - {_HEADER},
        lambda name, x: _entry(archive, name, x.size * x.dtype.itemsize),
      )
  except Exception as e:  # zipfile and NumPy raise many types
    why = getattr(e, 'strerror', '') or errors.reason(e)
    raise UserError(f'{path} is not an export of parameters: {why}') from e
  return model, params, vocabulary


def described(header: Any) -> tuple[base.LanguageModel, AnyVocabulary]:
  """Builds model and vocabulary from {'model': section, 'vocabulary': JSON}.

  UserError, or files.ODD, if the fields are invalid.
  """
  fields = header['model']
  name = header['model']['name']
  if name not in [*models.MODELS]:
    errors.refuse('model.name', name, ', '.join(models.MODELS))
  defaults = models.MODELS[name].Config()
  # Keys newer than the file get their defaults.
  config = settings.fill(defaults, {**vars(defaults), **fields}, 'model')
  settings.check(config, 'model')
  vocabulary = vocabularies.from_json(header['vocabulary'])
  return models.build(config, len(vocabulary)), vocabulary


def checked(
  model: base.LanguageModel,
  names: Collection[str],
  read: Callable[[str, jax.ShapeDtypeStruct], np.ndarray],
) -> Any:
  """Reads a model's parameters as a nested dict; `read` gets path and shape.

  ValueError if one is missing, unknown, non-finite, or of wrong shape or dtype.
  """
  shapes: Any = flax.traverse_util.flatten_dict(
    model.inference_params(base.param_shapes(model)), sep='/'
  )
  for name in sorted({*names} ^ {*shapes}):
    wrong = 'is not in the model' if name in names else 'is missing'
    raise ValueError(f'{name} {wrong}')
  arrays = {}
  for name, expected in shapes.items():
    array = read(name, expected)
    actual, wanted = (f'{x.dtype} {list(x.shape)}' for x in (array, expected))
    if actual != wanted:
      raise ValueError(f'{name} is {actual}; expected {wanted}')
    if not np.isfinite(array).all():
      raise ValueError(f'{name} has values that are not finite')
    arrays[name] = array
  return flax.traverse_util.unflatten_dict(arrays, sep='/')


def _entry(archive, name, nbytes):
  """Reads an array; ValueError if it exceeds nbytes, as in a zip bomb."""
  size = archive.zip.getinfo(f'{name}.npy').file_size
  if size > nbytes + _NPY_HEADER:
    raise ValueError(f'{name} has {size:,} bytes; expected {nbytes:,}')
  return archive[name]
