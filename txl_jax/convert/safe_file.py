"""Files of safetensors, alone or as the shards of one model."""

import pathlib

import numpy as np
import safetensors

from txl_jax import files
from txl_jax.convert import torch_file, torch_storage
from txl_jax.errors import UserError, first_line

INDEX = '.index.json'  # of shards
_HEADER = 1 << 24  # bytes of a header, which is read whole
_TEXT = 1 << 24  # bytes of an index


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file, {name: array}; UserError if it cannot be read."""
  try:
    with files.open_regular(path) as f:
      size = int.from_bytes(f.read(8), 'little')
    if 1 << 63 > size > _HEADER:
      raise UserError(
        f'{path} has a header of {size:,} bytes; allowed: {_HEADER:,}'
      )
    with safetensors.safe_open(path, framework='numpy') as f:
      names = [*f.keys()]
      if wrong := [x for x in names if not torch_storage.is_name(x)]:
        raise UserError(f'{path}: {wrong[0]!a:.200} is no name')
      return {name: f.get_tensor(name) for name in names}
  except UserError:
    raise
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror or e}') from e
  except Exception as e:  # its own, and those of kinds that numpy has not
    what = ' '.join(first_line(e).split())[:200]
    raise UserError(f'{path} is no file of safetensors: {what}') from e


def shards(index: pathlib.Path) -> tuple[dict[str, np.ndarray], list]:
  """The arrays of all files that an index names, and these; or a UserError."""
  found = files.parse_json(files.read(index, largest=_TEXT), f'{index}')
  places = found.get('weight_map')
  if not isinstance(places, dict) or not places:
    raise UserError(f'{index} has no weight_map')
  names = []
  for name in places.values():
    if not isinstance(name, str) or not _is_beside(name):
      raise UserError(f'{index} names {name!a:.80}; allowed: a file beside it')
    names.append(name)
  paths = {name: index.with_name(name) for name in sorted({*names})}
  parts = {
    name: read(path)
    if path.suffix == '.safetensors'
    else torch_file.read(path).tensors
    for name, path in paths.items()
  }
  state = {}
  for tensor, name in places.items():
    if tensor not in parts[name]:
      raise UserError(f'{paths[name]} has no {ascii(tensor)[1:-1]:.200}')
    state[tensor] = parts[name][tensor]
  return state, [*paths.values()]


def _is_beside(name):
  """Whether a name is that of a file with weights in the same folder."""
  ending = name.endswith(('.safetensors', '.bin', '.pt'))
  return ending and name.isprintable() and '/' not in name and '\\' not in name
