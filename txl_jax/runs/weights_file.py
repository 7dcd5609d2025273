"""Parameters alone, in one file that numpy reads.

The file is an .npz: one float32 array for each parameter, named by its path
('layers_0/ff/w1/kernel'), and '__model__', JSON text with the fields of the
model and the vocabulary. Nothing in it is pickled.

  from txl_jax.runs import weights_file
  model, params, vocabulary = weights_file.load('model.npz')
"""

import contextlib
import json
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from txl_jax import models
from txl_jax.data import vocabulary as vocabulary_lib
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError
from txl_jax.models import base

AnyPath = str | os.PathLike[str]
Fields = Mapping[str, Any]

_HEADER = '__model__'
_BROKEN = zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError, TypeError


def save(path: AnyPath, params: Any, model: Fields, vocabulary: Fields) -> None:
  """Writes a file, whole or not at all.

  The parameters are a nested dict of arrays, the model is the section `model`
  of a config, the vocabulary what its `to_json` gives. UserError: the path does
  not end in .npz, or cannot be written.
  """
  path = pathlib.Path(path)
  if path.suffix != '.npz':
    raise UserError(f'--export_file={path}; allowed: a name that ends in .npz')
  params = jax.device_get(params)
  arrays: Any = flax.traverse_util.flatten_dict(params, sep='/')
  header = json.dumps({'model': model, 'vocabulary': vocabulary})
  arrays[_HEADER] = np.array(header)
  temporary = path.with_name(path.name + '.tmp')
  try:
    with temporary.open('wb') as f:
      np.savez(f, allow_pickle=False, **arrays)
      f.flush()
      os.fsync(f.fileno())
    temporary.replace(path)
  except OSError as e:
    with contextlib.suppress(OSError):
      temporary.unlink()
    raise UserError(f'--export_file={path}: {e.strerror}') from e


def load(path: AnyPath) -> tuple[base.LanguageModel, Any, Vocabulary | Words]:
  """The model, parameters and vocabulary of a file that `save` has written.

  The model is as it was trained, unbound; `model.at_test_time(mem_len=1600)`
  changes its lengths. The parameters are a nested dict of numpy arrays.
  UserError: the file cannot be read or is of another kind.
  """
  try:
    with open(path, 'rb') as f, np.load(f, allow_pickle=False) as file:
      arrays = dict(file)
    header = json.loads(str(arrays.pop(_HEADER)))
    vocabulary = vocabulary_lib.from_json(header['vocabulary'])
    model = models.build(header['model'], len(vocabulary))
  except _BROKEN as e:
    raise UserError(f'{path} is no file of exported parameters: {e}') from e
  params = flax.traverse_util.unflatten_dict(arrays, sep='/')
  return model, params, vocabulary
