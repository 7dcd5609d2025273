"""Rows of a batch on the devices of several processes; put and fetch."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def local_rows(sharding, size):
  """The rows of an array that lie on this process.

  Args:
    sharding: of an array whose first axis is the rows of a batch.
    size: B, how many rows there are.

  Returns:
    int64 [b], ascending.
  """
  pieces = sharding.addressable_devices_indices_map((size,)).values()
  rows = np.arange(size)
  return np.unique(np.concatenate([rows[piece] for piece in pieces]))


def from_rows(tree, rows, size, sharding, axis=0):
  """Arrays [B, ...] on all devices, from the rows that each process has.

  Args:
    tree: pytree of numpy arrays [b, ...].
    rows: int64 [b], from `local_rows`.
    size: B.
    sharding: of the results.
    axis: of the rows.
  """

  def one(x):
    def piece(index):
      first, last, _ = index[axis].indices(size)
      at = np.searchsorted(rows, first)
      here = slice(at, at + last - first)
      return x[*index[:axis], here, *index[axis + 1 :]]

    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return jax.make_array_from_callback(shape, sharding, piece)

  return jax.tree.map(one, tree)


def put(x, sharding):
  """A value that every process has, as an array on all devices.

  Unlike jax.device_put it compares nothing between the processes, and the
  result is whole where each of them has a single device (jax 0.10.2).
  """
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])


def fetch(array):
  """An array on the devices as numpy array on every process, whole."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return multihost_utils.process_allgather(array, tiled=True)
