import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from txl_jax import sharding


def test_mesh_has_all_devices_on_one_axis():
  mesh = sharding.make_mesh()
  assert mesh.axis_names == ('data',)
  assert mesh.axis_types == (AxisType.Auto,)
  assert mesh.devices.tolist() == jax.devices() and mesh.size == 8


def pieces(array):
  """{device: the part of the array that lies there}."""
  return {s.device: np.asarray(s.data) for s in array.addressable_shards}


def test_replicated():
  x = np.arange(6.0, dtype=np.float32)
  array = jax.device_put(x, sharding.replicated(sharding.make_mesh()))
  assert pieces(array).keys() == set(jax.devices())
  for piece in pieces(array).values():
    np.testing.assert_array_equal(piece, x)


def test_rows():
  mesh = sharding.make_mesh()
  x = np.arange(3 * 16 * 2).reshape(3, 16, 2)
  array = jax.device_put(x, sharding.rows(mesh, 1))
  for n, device in enumerate(mesh.devices):
    part = x[:, 2 * n : 2 * n + 2]
    np.testing.assert_array_equal(pieces(array)[device], part)
  assert sharding.rows(mesh).spec == PartitionSpec('data')


def test_batch():
  mesh = sharding.make_mesh()
  x = {
    'inputs': np.arange(16 * 3, dtype=np.int32).reshape(16, 3),
    'lengths': None,
    'reset': np.arange(16) > 7,
  }
  out = sharding.batch(x, mesh)
  assert out['lengths'] is None
  for name in ('inputs', 'reset'):
    assert out[name].dtype == x[name].dtype
    for n, device in enumerate(mesh.devices):
      piece = pieces(out[name])[device]
      np.testing.assert_array_equal(piece, x[name][2 * n : 2 * n + 2])


def test_sums_over_rows_need_no_care():
  mesh = sharding.make_mesh()
  x = sharding.batch(np.arange(16, dtype=np.int32), mesh)
  total = jax.jit(jnp.sum, out_shardings=sharding.replicated(mesh))(x)
  assert total == 120
  assert len(pieces(total)) == 8
