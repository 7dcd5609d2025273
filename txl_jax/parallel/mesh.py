"""The mesh of all devices.

Its axes, the slowest network first:

  slices  slices of TPUs or nodes of GPUs; rows of the batch
  data    rows of the batch
  fsdp    rows of the batch, and a part of every large parameter
  tensor  heads, feed-forward and vocabulary

Each slice holds a whole model, so only gradients cross the slow network.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from txl_jax.program.errors import UserError
from txl_jax.program.settings import ON_RESUME, key

AXES = ('slices', 'data', 'fsdp', 'tensor')
# The compiler decides how what a program makes on the way is divided.
_TYPES = (AxisType.Auto,) * len(AXES)
_key = functools.partial(key, at_least=-1)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The section `mesh` of a config; the product is all devices, -1 the rest."""

  MAY_CHANGE = ON_RESUME

  slices: int = _key(
    1, 'TPU slices or GPU nodes, with a slow network between them.'
  )
  data: int = _key(
    -1,
    'Parts of the batch, each with a full copy of the model; -1, on one axis, '
    'is all remaining devices.',
  )
  fsdp: int = _key(
    1,
    'Parts of the batch and of the parameters, which are gathered when they '
    'are used.',
  )
  tensor: int = _key(
    1, 'Parts of the heads, feed-forward layers and vocabulary.'
  )


def make_mesh(sizes: Any = None, devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh of some devices, all by default.

  Neighbours in the last axes are neighbours on the fast network. The sizes are
  a mapping as the section `mesh`; None is all devices for data. UserError if
  they do not fit the number of devices.
  """
  devices = list(jax.devices() if devices is None else devices)
  asked = [(sizes or {'data': -1}).get(axis, 1) for axis in AXES]
  known = abs(math.prod(asked))
  rest, left = divmod(len(devices), known or 1)
  free = asked.count(-1)
  fits = not left and known and min(asked) >= -1
  if not fits or free > 1 or (not free and rest > 1):
    given = ', '.join(f'mesh.{x} = {n}' for x, n in zip(AXES, asked))
    kind = 'with one -1 a divisor of ' if free else ''
    allowed = f'{kind}the number of devices, {len(devices)}'
    raise UserError(f'{given}: {known} in all; allowed: {allowed}')
  slices, *shape = (rest if size < 0 else size for size in asked)
  # Devices of a slice, or of a node, are consecutive.
  devices.sort(key=lambda d: getattr(d, 'slice_index', None) or 0)
  grids = [
    mesh_utils.create_device_mesh(shape, part, allow_split_physical_axes=True)
    for part in map(list, np.array_split(np.array(devices), slices))
  ]
  return Mesh(np.stack(grids), AXES, axis_types=_TYPES)


def abstract_mesh(sizes: Any) -> AbstractMesh:
  """A mesh of sizes as for `make_mesh`, without devices; -1 counts as 1."""
  shape = tuple(abs(sizes.get(axis, 1)) for axis in AXES)
  return AbstractMesh(shape, AXES, axis_types=_TYPES)


def own() -> AbstractMesh:
  """The ambient mesh if it has the axes of `make_mesh`, else an empty one.

  Elsewhere, and in `jax.shard_map`, whose axes are Manual, a model is a plain
  function.
  """
  mesh = jax.sharding.get_abstract_mesh()
  is_own = (mesh.axis_names, mesh.axis_types) == (AXES, _TYPES)
  return mesh if is_own else AbstractMesh((), ())


_F = TypeVar('_F', bound=Callable)


def apart(function: _F) -> _F:
  """The function, computed outside the mesh that its caller may have set."""

  @functools.wraps(function)
  def call(*args, **kwargs) -> Any:
    with jax.set_mesh(None):
      return function(*args, **kwargs)

  return call  # pyright: ignore[reportReturnType]


def each_apart(items: Iterator[Any]) -> Iterator[Any]:
  """The items, none of them None, each computed as by `apart`."""
  return iter(apart(lambda: next(items, None)), None)


def ambient(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """A context in which traced functions find the mesh; None is no mesh."""
  if mesh is None:
    return contextlib.nullcontext()
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
