"""Which device holds what: a mesh, and rules over the paths of arrays.

The axes of the mesh, the slowest network first:

  slices  slices of TPUs or nodes of GPUs; rows of the batch
  data    rows of the batch
  fsdp    rows of the batch, and a part of every large parameter
  tensor  heads, feed-forward and vocabulary

Rows of batches, memories and nll are divided over ROWS; parameters, averages
and the state of the optimiser by the rules of the model. Each slice holds a
whole model, so only gradients cross the slow network.
"""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import (
  AbstractMesh,
  AxisType,
  Mesh,
  NamedSharding,
)
from jax.sharding import PartitionSpec as P

from txl_jax.program.errors import UserError
from txl_jax.program.settings import ON_RESUME, key

AXES = ('slices', 'data', 'fsdp', 'tensor')
# The compiler decides how what a program makes on the way is divided.
_TYPES = (AxisType.Auto,) * len(AXES)
ROWS = ('slices', 'data', 'fsdp')
VOCABULARY = ('fsdp', 'tensor')
# The features that a product makes, of models whose layers are convolutions or
# recurrent. With fsdp along what the product sums and tensor along these, XLA
# (jax 0.10.2) has given wrong gradients of its input where rows were divided
# over data and fsdp; `tests/models/mesh_test.py` holds every model to that.
OUTPUTS = ('fsdp', 'tensor')

AnyMesh = Mesh | AbstractMesh
Rules = Sequence[tuple[str, tuple]]  # (regex of a path's end, axes)
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


def make(function: Callable[[], Any], abstract: Any) -> Any:
  """Calls a function with its results placed as those of `abstract`."""
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  return jax.jit(function, out_shardings=shardings)()


def row_parts(mesh: AnyMesh) -> int:
  """Into how many parts the rows of a batch are divided."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def ambient(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """A context in which traced functions find the mesh; None is no mesh."""
  if mesh is None:
    return contextlib.nullcontext()
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def replicated(mesh: AnyMesh) -> NamedSharding:
  """The sharding of what every device holds whole."""
  return NamedSharding(mesh, P())


def rows(mesh: AnyMesh, axis: int = 0) -> NamedSharding:
  """The sharding of an array whose given axis is the rows of a batch.

  A negative axis is none: every device holds it whole.
  """
  if axis < 0:
    return replicated(mesh)
  return NamedSharding(mesh, P(*(None,) * axis, ROWS))


def path_name(path: tuple[Any, ...]) -> str:
  """The path of a leaf as text: 'layers_0/ff/w1/kernel', whatever the nodes."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_rules(tree: Any, mesh: AnyMesh, rules: Rules) -> Any:
  """Shardings for parameters, or for what has their paths within its own.

  Scalars are on every device; of other arrays, or of their shapes, the first
  rule counts that fits the path. ValueError if none does.
  """

  def place(path, x):
    if not x.shape:
      return replicated(mesh)
    name = path_name(path)
    for pattern, axes in rules:
      if re.search(f'(^|/)({pattern})$', name):
        return NamedSharding(mesh, fit(axes, x.shape, mesh))
    raise ValueError(f'no rule in SHARDING of the model fits {name}')

  return jax.tree_util.tree_map_with_path(place, tree)


def with_shardings(abstract: Any, shardings: Any) -> Any:
  """Shapes of arrays (a pytree) with the shardings that they are to have."""
  return jax.tree.map(
    lambda x, s: x.update(sharding=s, weak_type=False), abstract, shardings
  )


def fit(axes: Sequence[Any], shape: Sequence[int], mesh: Any) -> P:
  """The PartitionSpec of an array whose dimensions go over some axes.

  Each goes over an axis, a tuple of them, or None, as those beyond do. One that
  its axes do not divide is not divided, nor one whose axes all have size 1.
  """
  dims = []
  for n, axis in zip(shape, axes):
    names = (axis,) if isinstance(axis, str) else axis or ()
    names = tuple(name for name in names if mesh.shape[name] > 1)
    whole = n % math.prod(mesh.shape[name] for name in names)
    dims.append(None if whole or not names else names)
  while dims and dims[-1] is None:
    dims.pop()
  return P(*dims)
