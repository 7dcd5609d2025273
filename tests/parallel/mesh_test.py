"""Meshes of devices."""

from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.errors import UserError


def test_all_devices_are_for_data_by_default():
  mesh = mesh_lib.make_mesh()
  assert mesh.axis_names == mesh_lib.AXES
  assert set(mesh.axis_types) == {AxisType.Auto}
  assert mesh.shape == dict(slices=1, data=8, fsdp=1, tensor=1)
  assert set(mesh.devices.flat) == set(jax.devices())
  for name in 'a', 'z':  # those of a caller
    with jax.set_mesh(jax.make_mesh((8,), (name,))):
      assert mesh_lib.own().empty


@pytest.mark.parametrize(
  'sizes, shape',
  [
    (dict(slices=2, data=-1, fsdp=1, tensor=2), (2, 2, 1, 2)),
    (dict(slices=1, data=2, fsdp=-1, tensor=1), (1, 2, 4, 1)),
    (dict(slices=1, data=2, fsdp=2, tensor=2), (1, 2, 2, 2)),
  ],
)
def test_sizes(sizes, shape):
  mesh = mesh_lib.make_mesh(sizes)
  assert mesh.devices.shape == shape
  # Devices of one slice, and of one group of tensor, are consecutive.
  ids = np.vectorize(lambda d: d.id)(mesh.devices)
  np.testing.assert_array_equal(ids.ravel(), np.arange(8))
  assert placement.row_parts(mesh) == 8 // shape[3]


@pytest.mark.parametrize(
  'sizes, message',
  [
    (dict(data=3), r'mesh.data = 3, .*: 3 in all; allowed: the number .*, 8'),
    (dict(data=-1, tensor=3), r'mesh.tensor = 3: 3 in all; .*a divisor of'),
    (dict(data=-1, tensor=-1), r'mesh.tensor = -1: 1 in all; .*with one -1'),
    (dict(data=0), r'mesh.data = 0, .*: 0 in all'),
    (dict(data=16), '16 in all'),
    (dict(data=4), r'4 in all; allowed: the number of devices, 8$'),
    (dict(data=-2, tensor=4), 'mesh.data = -2'),
  ],
)
def test_sizes_that_do_not_fit(sizes, message):
  with pytest.raises(UserError, match=message):
    mesh_lib.make_mesh(sizes)


def test_slices_are_those_of_the_devices():
  """Devices that say in which slice they are, listed in another order."""

  class Device:
    platform, device_kind = 'tpu of a test', 'none'

    def __init__(self, id, slice_index):
      self.id, self.slice_index = id, slice_index
      self.process_index = 0

    def __repr__(self):
      return f'Device({self.id})'

  devices = [Device(i, i % 2) for i in range(4)]
  mesh = mesh_lib.make_mesh(dict(slices=2, data=2), devices)
  slices = np.vectorize(lambda d: d.slice_index)(mesh.devices)
  np.testing.assert_array_equal(slices[:, :, 0, 0], [[0, 0], [1, 1]])


def test_an_axis_may_divide_one_of_the_machine():
  """TPUs in a square of 4 x 4, of which a mesh has 8 x 2."""
  same = dict(platform='tpu', device_kind='TPU v4', process_index=0)
  same |= dict(core_on_chip=0, slice_index=0)
  at = [(n % 4, n // 4, 0) for n in range(16)]
  devices = [mock.Mock(id=n, coords=x, **same) for n, x in enumerate(at)]
  assert mesh_lib.make_mesh(dict(data=8, tensor=2), devices).size == 16
  assert mesh_lib.without_mesh(test_sizes).__name__ == 'test_sizes'
