"""The device mesh.

Its axes, slowest network first, and what is sharded over them:

  slices  TPU slices or GPU nodes; rows of the batch
  data    rows of the batch, and except on GPUs the optimiser's state
  fsdp    rows of the batch, and all large parameters
  tensor  heads, feed-forward layers and vocabulary

Each slice holds the whole model, so only gradients cross the slow network.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from txl_jax.program.errors import UserError
from txl_jax.program.settings import ON_RESUME, key

AXES = ('slices', 'data', 'fsdp', 'tensor')
# The compiler chooses the shardings of intermediate arrays.
_TYPES = (AxisType.Auto,) * len(AXES)
_key = functools.partial(key, at_least=-1)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The section `mesh` of a config; sizes multiply to the device count."""

  MAY_CHANGE = ON_RESUME

  slices: int = _key(
    1, 'TPU slices or GPU nodes, with a slow network between them.'
  )
  data: int = _key(
    -1,
    'Data-parallel replicas, which share the work of the optimiser, except on '
    'GPUs; -1 (allowed on one axis) uses all remaining devices.',
  )
  fsdp: int = _key(
    1,
    'Shards of the batch and of the parameters, which are gathered when they '
    'are used.',
  )
  tensor: int = _key(
    1, 'Shards of the heads, feed-forward layers and vocabulary.'
  )


def make_mesh(
  sizes: Sizes | Mapping[str, int] | None = None,
  devices: Sequence[Any] | None = None,
) -> Mesh:
  """A mesh of the given devices, by default all.

  Devices adjacent along the last axes are adjacent on the fast network. Axes
  missing from a mapping have size 1; None puts all devices on `data`. UserError
  if the sizes do not fit the number of devices.
  """
  devices = list(jax.devices() if devices is None else devices)
  requested = _shape({'data': -1} if sizes is None else sizes)
  known = abs(math.prod(requested))
  rest, remainder = divmod(len(devices), known or 1)
  free = requested.count(-1)
  fits = not remainder and known and min(requested) >= -1
  if not fits or free > 1 or (not free and rest > 1):
    keys = ', '.join(f'mesh.{axis} = {n}' for axis, n in zip(AXES, requested))
    kind = 'with one -1 a divisor of ' if free else ''
    allowed = f'{kind}the number of devices, {len(devices)}'
    raise UserError(f'{keys}: {known} in all; allowed: {allowed}')
  slices, *shape = (rest if size < 0 else size for size in requested)
  # Devices of a slice, or of a node, are consecutive.
  devices.sort(key=lambda d: getattr(d, 'slice_index', None) or 0)
  grids = [
    mesh_utils.create_device_mesh(shape, part, allow_split_physical_axes=True)
    for part in map(list, np.array_split(np.array(devices), slices))
  ]
  return Mesh(np.stack(grids), AXES, axis_types=_TYPES)


def abstract_mesh(sizes: Sizes | Mapping[str, int]) -> AbstractMesh:
  """A mesh with sizes as for `make_mesh`, without devices; -1 becomes 1."""
  shape = tuple(map(abs, _shape(sizes)))
  return AbstractMesh(shape, AXES, axis_types=_TYPES)


def _shape(sizes: Sizes | Mapping[str, int]) -> list[int]:
  """The sizes of AXES."""
  values = vars(sizes) if isinstance(sizes, Sizes) else sizes
  return [values.get(axis, 1) for axis in AXES]


def own() -> AbstractMesh:
  """The ambient mesh if it is like those of `make_mesh`, else an empty one.

  It is empty in a caller's own program and inside `jax.shard_map`, whose axes
  are Manual: models then run as plain unsharded functions.
  """
  mesh = jax.sharding.get_abstract_mesh()
  is_own = (mesh.axis_names, mesh.axis_types) == (AXES, _TYPES)
  return mesh if is_own else AbstractMesh((), ())


_F = TypeVar('_F', bound=Callable)


def without_mesh(function: _F) -> _F:
  """Wraps a function to run without its caller's mesh; UserError if traced."""

  @functools.wraps(function)
  def call(*args, **kwargs) -> Any:
    try:
      no_mesh = jax.set_mesh(None)
    except ValueError as e:  # within a trace
      raise UserError(
        'this call runs programs of its own, so it cannot be inside jax.jit, '
        "grad or vmap; there, use run.model.apply({'params': run.params}, ...)"
      ) from e
    with no_mesh:
      return function(*args, **kwargs)

  return call  # pyright: ignore[reportReturnType]


def iterate_without_mesh(items: Iterator[Any]) -> Iterator[Any]:
  """Iterates over `items` without the ambient mesh; no item may be None."""
  return iter(without_mesh(lambda: next(items, None)), None)


def ambient(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """A context that sets the mesh for traced functions; None sets nothing."""
  if mesh is None:
    return contextlib.nullcontext()
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
