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

_HEADER = '__model__'
_NOT_OURS = (OSError, ValueError, KeyError, TypeError, EOFError)
_NOT_OURS += (zipfile.BadZipFile,)


def save(
  path: str | os.PathLike,
  params: Any,
  model: Mapping[str, Any],
  vocabulary: Mapping[str, Any],
) -> None:
  """Writes a file, whole or not at all.

  Args:
    path: of the file, ending in .npz.
    params: pytree (nested dict) of arrays.
    model: the section `model` of a config.
    vocabulary: as its `to_json` gives it.

  UserError: the path does not end in .npz, or cannot be written.
  """
  path = pathlib.Path(path)
  if path.suffix != '.npz':
    raise UserError(f'--export_file={path}; allowed: a name that ends in .npz')
  arrays: dict[str, Any] = dict(
    flax.traverse_util.flatten_dict(jax.device_get(params), sep='/')
  )
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


def load(
  path: str | os.PathLike,
) -> tuple[base.LanguageModel, Any, Vocabulary | Words]:
  """Reads a file that `save` has written.

  Returns:
    The model as it was trained, unbound (`model.at_test_time(mem_len=1600)`
    changes its lengths); its parameters, a nested dict of numpy arrays; the
    vocabulary.

  UserError: the file cannot be read or is of another kind.
  """
  try:
    with open(path, 'rb') as f, np.load(f, allow_pickle=False) as file:
      arrays = dict(file)
    header = json.loads(str(arrays.pop(_HEADER)))
    vocabulary = vocabulary_lib.from_json(header['vocabulary'])
    model = models.build(header['model'], len(vocabulary))
  except _NOT_OURS as e:
    raise UserError(f'{path} is no file of exported parameters: {e}') from e
  params = flax.traverse_util.unflatten_dict(arrays, sep='/')
  return model, params, vocabulary
