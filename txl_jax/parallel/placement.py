"""Shardings of arrays over the mesh, and arrays with these shardings.

Rows of batches, memories and nll are sharded over ROWS, within and across
processes. Parameters and averages follow the rules in the model's SHARDING,
which map array paths to mesh axes (see `parallel.mesh`). What they shard over
fsdp, optimiser state has sharded over data, too, except on GPUs: each replica
updates a part.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from txl_jax.program import errors, target_device

ROWS = ('slices', 'data', 'fsdp')
VOCABULARY = ('fsdp', 'tensor')
# Output features of products, in convolutional and recurrent models. With fsdp
# on the contracted axis and tensor on this one, XLA (jax 0.10.2) has computed
# wrong gradients of the input if rows were sharded over data and fsdp;
# `tests/models/mesh_test.py` checks the gradients of every model.
OUTPUTS = ('fsdp', 'tensor')

AnyMesh = Mesh | AbstractMesh
Rules = Sequence[tuple[str, tuple]]  # (regex of a path's end, axes)


def create(function: Callable[[], Any], abstract: Any) -> Any:
  """Jits and calls `function`; its results have the shardings of `abstract`."""
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  return jax.jit(function, out_shardings=shardings)()


def row_parts(mesh: AnyMesh) -> int:
  """Number of shards of the rows of a batch."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def replicated(mesh: AnyMesh) -> NamedSharding:
  """The sharding of a replicated array."""
  return NamedSharding(mesh, P())


def by_rows(mesh: AnyMesh, axis: int = 0) -> NamedSharding:
  """The sharding of an array whose rows are on the given axis.

  If the axis is negative, the array is replicated.
  """
  if axis < 0:
    return replicated(mesh)
  return NamedSharding(mesh, P(*(None,) * axis, ROWS))


def path_name(path: tuple[Any, ...]) -> str:
  """The path of a leaf as text, such as 'layers_0/ff/w1/kernel'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_rules(
  tree: Any, mesh: AnyMesh, rules: Rules, over_data: bool = False
) -> Any:
  """Shardings of `tree`, by the first rule that matches the end of each path.

  Optimiser moments and averages thus follow their parameter; scalars are
  replicated. `over_data` is as for `spec`. UserError if no rule matches, or one
  has more axes than the array.
  """

  def place(path, x):
    if not x.shape:
      return replicated(mesh)
    name = path_name(path)
    matches = (a for rule, a in rules if re.search(f'(^|/)({rule})$', name))
    axes = next(matches, None)
    if axes is None or len(axes) > len(x.shape):
      allowed = f'a tuple of length at most {len(x.shape)}'
      errors.refuse(f'the rule for {name} in SHARDING', axes, allowed)
    return NamedSharding(mesh, spec(axes, x.shape, mesh, over_data))

  return jax.tree_util.tree_map_with_path(place, tree)


def of_update(tree: Any, mesh: AnyMesh, rules: Rules) -> Any:
  """Shardings of optimiser state: `by_rules`, over data as well.

  Not on GPUs, where small arrays cost their launches, and parts of them are
  more: 1,405 for `enwik8_12l` on eight H100, else 1,128 (as compiled).
  """
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    over_data = target_device.device().platform != 'gpu'
  return by_rules(tree, mesh, rules, over_data)


def with_shardings(abstract: Any, shardings: Any) -> Any:
  """Adds shardings to a pytree of ShapeDtypeStructs."""
  return jax.tree.map(
    lambda x, s: x.update(sharding=s, weak_type=False), abstract, shardings
  )


def spec(
  axes: Sequence[Any],
  shape: Sequence[int],
  mesh: Any,
  over_data: bool = False,
) -> P:
  """The PartitionSpec of an array of the given shape.

  Each entry of `axes` is a mesh axis, a tuple of axes, or None (replicated);
  missing entries are None. A dimension that its axes do not divide evenly is
  replicated. Axes of size 1 are dropped. With `over_data`, what may be sharded
  over fsdp is sharded over data as well: in the first dimension, that of fsdp
  before the others, of which every part has eight entries or more, as many as a
  TPU stores at least.
  """
  size = lambda names: math.prod(mesh.shape[name] for name in names)
  dims = []
  for n, axis in itertools.zip_longest(shape, axes):
    names = (axis,) if isinstance(axis, str) else axis or ()
    names = tuple(name for name in names if mesh.shape[name] > 1)
    dims.append(() if n % size(names) else names)
  large = [axis is not None and 'fsdp' in axis for axis in axes]
  named = any('data' in names for names in dims)
  if over_data and any(large) and not named and mesh.shape['data'] > 1:
    first = large.index(True)
    for i in first, *range(len(shape)):
      part, remainder = divmod(shape[i], size((*dims[i], 'data')))
      if part >= 8 and not remainder:
        dims[i] = *dims[i], 'data'
        break
  dims = [names or None for names in dims]
  while dims and dims[-1] is None:
    dims.pop()
  return P(*dims)


def for_update(tree: Any, mesh: AnyMesh, shardings: Any) -> Any:
  """Prepares traced gradients for the update of arguments.

  On a TPU it gives them the layout that arguments have: XLA would copy
  parameters and moments to another and back. The mesh may be empty.
  """
  platform = target_device.device().platform
  if platform == 'gpu':
    return _with_one(tree)
  if platform != 'tpu':
    return tree
  layout = functools.partial(jax.tree.map, _as_argument)
  if mesh.size <= 1:
    return layout(tree)
  # Of each shard: the compiler would gather what is to have a layout.
  specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
  on_shards = jax.shard_map(
    layout, in_specs=(specs,), out_specs=specs, check_vma=False
  )
  return on_shards(tree)


def _with_one(tree):
  """Multiplies arrays by one element of an array of ones that all share.

  XLA makes one kernel of those over arrays of one shape, here norms and
  updates, if they read the same array of more than one element.
  """
  ones = jax.lax.optimization_barrier(jnp.ones([2]))
  return jax.tree.map(lambda x: x * ones[0].astype(x.dtype), tree)


def _as_argument(array):
  """They are padded least: their last axes to multiples of 8 and 128."""
  if array.ndim < 2:
    return array

  def padded(axes):
    *others, i, j = (array.shape[axis] for axis in axes)
    rows = min(8, 1 << (i - 1).bit_length())
    return math.prod(others) * -(-i // rows) * rows * -(-j // 128)

  order = min(itertools.permutations(range(array.ndim)), key=padded)
  return with_layout_constraint(array, Layout(order))


def local_rows(sharding: Sharding, size: int) -> np.ndarray:
  """Indices of the rows on this process's devices: int64 [b], ascending."""
  pieces = sharding.addressable_devices_indices_map((size,)).values()
  rows = np.arange(size)
  return np.unique(np.concatenate([rows[piece] for piece in pieces]))


def put(x: Any, sharding: Sharding) -> jax.Array:
  """Makes a global array from a value that every process has.

  Unlike jax.device_put it does not compare the processes' values, and returns
  the whole array even if each process has a single device (jax 0.10.2).
  """
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])


def fetch(array: jax.Array) -> np.ndarray:
  """Copies a global array to every process as a numpy array."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return multihost_utils.process_allgather(array, tiled=True)


def max_over_processes(number: int) -> jax.Array:
  """The maximum over all processes, int32 []; does not block."""
  devices = np.array(jax.devices())
  sharding = NamedSharding(Mesh(devices, 'all'), P('all'))
  piece = np.full(1, number, np.int32)
  shape = devices.shape
  return jnp.max(jax.make_array_from_callback(shape, sharding, lambda _: piece))
