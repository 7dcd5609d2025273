"""Which device holds what.

One mesh axis, 'data', over all devices: the rows of a batch and of the memory
are divided among them, everything else is on each of them.
"""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def make_mesh():
  """A mesh of all devices, its one axis named 'data'."""
  auto = (AxisType.Auto,)
  return jax.make_mesh((jax.device_count(),), ('data',), axis_types=auto)


def replicated(mesh):
  """The sharding of what every device holds whole."""
  return NamedSharding(mesh, PartitionSpec())


def rows(mesh, axis=0):
  """The sharding of an array whose given axis is the rows of a batch."""
  return NamedSharding(mesh, PartitionSpec(*(None,) * axis, 'data'))


def batch(batch, mesh):
  """A batch [B, ...] of numpy arrays as arrays on the devices."""
  return jax.device_put(batch, rows(mesh))
