"""Reads and writes .safetensors files."""

import pathlib

import numpy as np
import safetensors.numpy

from txl_jax.convert.versions import names
from txl_jax.program import files
from txl_jax.program.errors import UserError, reason


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file, {name: array}; UserError if it cannot be read."""
  try:
    files.open_regular(path).close()  # a pipe would block
    found = safetensors.numpy.load_file(path)
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror or e}') from e
  except Exception as e:  # SafetensorError, or a dtype that numpy lacks
    raise UserError(f'{path} is not a .safetensors file: {reason(e)}') from e
  if wrong := [name for name in found if not names.is_name(name)]:
    raise UserError(f'{path}: {wrong[0]!a:.200} is not a valid name')
  return found


def write(
  path: pathlib.Path, arrays: dict[str, np.ndarray], **metadata: str
) -> None:
  """Writes finite float32 arrays; raises UserError for any others."""
  for name, x in arrays.items():
    if x.dtype != np.float32 or not np.isfinite(x).all():
      problem = x.dtype if x.dtype != np.float32 else 'not finite'
      raise UserError(f'{name} is {problem}; allowed: finite float32')
  try:
    safetensors.numpy.save_file(arrays, path, metadata=metadata or None)
  except (OSError, safetensors.SafetensorError) as e:  # such as a full disk
    raise UserError(f'{path} cannot be written: {reason(e)}') from e
