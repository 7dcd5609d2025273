"""Rows of a batch on the devices of several processes; put and fetch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding


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
