"""Which device holds what: shardings, and arrays that are put there.

Rows of batches, memories and nll are divided over ROWS, also where the devices
are those of several processes; parameters, averages and the state of the
optimiser by the rules of the model over paths of arrays. The axes are those of
`parallel.mesh`.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import (
  AbstractMesh,
  Mesh,
  NamedSharding,
  PartitionSpec,
  Sharding,
)

from txl_jax.program import settings

ROWS = ('slices', 'data', 'fsdp')
VOCABULARY = ('fsdp', 'tensor')
# The features that a product makes, of models whose layers are convolutions or
# recurrent. With fsdp along what the product sums and tensor along these, XLA
# (jax 0.10.2) has given wrong gradients of its input where rows were divided
# over data and fsdp; `tests/models/mesh_test.py` holds every model to that.
OUTPUTS = ('fsdp', 'tensor')

AnyMesh = Mesh | AbstractMesh
Rules = Sequence[tuple[str, tuple]]  # (regex of a path's end, axes)


def make(function: Callable[[], Any], abstract: Any) -> Any:
  """Calls a function with its results placed as those of `abstract`."""
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  return jax.jit(function, out_shardings=shardings)()


def row_parts(mesh: AnyMesh) -> int:
  """Into how many parts the rows of a batch are divided."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def replicated(mesh: AnyMesh) -> NamedSharding:
  """The sharding of what every device holds whole."""
  return NamedSharding(mesh, PartitionSpec())


def rows(mesh: AnyMesh, axis: int = 0) -> NamedSharding:
  """The sharding of an array whose given axis is the rows of a batch.

  A negative axis is none: every device holds it whole.
  """
  if axis < 0:
    return replicated(mesh)
  return NamedSharding(mesh, PartitionSpec(*(None,) * axis, ROWS))


def path_name(path: tuple[Any, ...]) -> str:
  """The path of a leaf as text: 'layers_0/ff/w1/kernel', whatever the nodes."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_rules(tree: Any, mesh: AnyMesh, rules: Rules) -> Any:
  """Shardings for parameters, or for what has their paths within its own.

  Scalars are on every device; of other arrays, or of their shapes, the first
  rule counts that fits the path. UserError if none does, or it has more axes.
  """

  def place(path, x):
    if not x.shape:
      return replicated(mesh)
    name = path_name(path)
    fits = (axes for rule, axes in rules if re.search(f'(^|/)({rule})$', name))
    axes = next(fits, None)
    if axes is None or len(axes) > len(x.shape):
      allowed = f'a tuple, at most an axis for each of {list(x.shape)}'
      settings.refuse(f'the rule for {name} in SHARDING', axes, allowed)
    return NamedSharding(mesh, fit(axes, x.shape, mesh))

  return jax.tree_util.tree_map_with_path(place, tree)


def with_shardings(abstract: Any, shardings: Any) -> Any:
  """Shapes of arrays (a pytree) with the shardings that they are to have."""
  return jax.tree.map(
    lambda x, s: x.update(sharding=s, weak_type=False), abstract, shardings
  )


def fit(axes: Sequence[Any], shape: Sequence[int], mesh: Any) -> PartitionSpec:
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
  return PartitionSpec(*dims)


def local_rows(sharding: Sharding, size: int) -> np.ndarray:
  """Which rows of an array lie on this process: int64 [b], ascending."""
  pieces = sharding.addressable_devices_indices_map((size,)).values()
  rows = np.arange(size)
  return np.unique(np.concatenate([rows[piece] for piece in pieces]))


def from_rows(
  tree: Any, rows: np.ndarray, size: int, sharding: Sharding
) -> Any:
  """Arrays on all devices, from the rows that each process has.

  The numpy arrays of the tree have the b rows of `local_rows`, int64 [b]; the
  results have all of them.
  """

  def one(x):
    def piece(index):
      first, last, _ = index[0].indices(size)
      here = slice(*np.searchsorted(rows, (first, last)))
      return x[here, *index[1:]]

    shape = (size, *x.shape[1:])
    return jax.make_array_from_callback(shape, sharding, piece)

  return jax.tree.map(one, tree)


def put(x: Any, sharding: Sharding) -> jax.Array:
  """A value that every process has, as an array on all devices.

  Unlike jax.device_put it compares nothing between the processes, and the
  result is whole where each of them has a single device (jax 0.10.2).
  """
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])


def fetch(array: jax.Array) -> np.ndarray:
  """An array on the devices as numpy array on every process, whole."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return multihost_utils.process_allgather(array, tiled=True)


def highest(number: int) -> jax.Array:
  """The highest int32 [] of one for each process; waits for no device."""
  devices = np.array(jax.devices())
  each = NamedSharding(Mesh(devices, 'all'), PartitionSpec('all'))
  piece = np.full(1, number, np.int32)
  numbers = jax.make_array_from_callback(devices.shape, each, lambda at: piece)
  return jnp.max(numbers)
