"""Just the parameters, in one file that NumPy reads.

The file is an .npz: one float32 array for each parameter, named by its path
('layers_0/ff/w1/kernel'), and '__model__', JSON text with the fields of the
model and the vocabulary. Nothing in it is pickled.

  from txl_jax.runs import weights_file
  model, params, vocabulary = weights_file.load('model.npz')
"""

import json
import os
import pathlib
from collections.abc import Mapping
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


def save(
  path: AnyPath,
  params: Any,
  model: Fields,
  vocabulary: Fields,
  flag: str = '--export_file',
  new: bool = False,
) -> None:
  """Writes a file, whole or not at all; UserErrors name the flag.

  The parameters are a nested dict of arrays, the model is the section `model`
  of a config, the vocabulary is what its `to_json` gives. With `new`, no
  existing file is overwritten.
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
  changes its lengths. The parameters are a nested dict of NumPy arrays.
  UserError: the file cannot be read, or is not as `save` writes it; or a
  parameter is not finite.
  """
  try:
    with files.open_regular(path) as f, np.load(f) as archive:
      model, vocabulary = _model(archive)
      shapes = _shapes(model)
      for name in sorted({*archive} ^ {_HEADER, *shapes}):
        wrong = 'is none of the model' if name in archive else 'is missing'
        raise ValueError(f'{name} {wrong}')
      found = {name: _read(archive, name, x) for name, x in shapes.items()}
  except Exception as e:  # whatever zipfile and NumPy raise for a damaged file
    what = getattr(e, 'strerror', '') or f'{e}' or type(e).__name__
    what = ' '.join(what.split())[:300]
    raise UserError(f'{path} is no file of exported parameters: {what}') from e
  return model, flax.traverse_util.unflatten_dict(found, sep='/'), vocabulary


def _model(archive):
  """The model and vocabulary that the file describes."""
  header = files.parse_json(str(archive[_HEADER]).encode(), _HEADER)
  fields, name = header['model'], header['model']['name']
  if name not in [*models.MODELS]:
    settings.refuse('model.name', name, ', '.join(models.MODELS))
  config = models.MODELS[name].Config
  # A key that was declared later had its default.
  fields = {**settings.defaults(config), **fields}
  settings.check({'model': config}, {'model': fields})
  vocabulary = vocabularies.from_json(header['vocabulary'])
  return models.build(fields, len(vocabulary)), vocabulary


def _shapes(model):
  """{name: shape and dtype} of the parameters of a model."""
  found = jax.eval_shape(
    lambda: model.inference_params(base.init_params(model, jax.random.key(0)))
  )
  return flax.traverse_util.flatten_dict(found, sep='/')


def _read(archive, name, like):
  """The array of a name; ValueError if it is not as the model has it."""
  array = archive[name]
  found, wanted = (f'{x.dtype} {list(x.shape)}' for x in (array, like))
  if found != wanted:
    raise ValueError(f'{name} is {found}; expected {wanted}')
  if not np.isfinite(array).all():
    raise ValueError(f'{name} has values that are not finite')
  return array
