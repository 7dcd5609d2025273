"""Plain operations with the shift of TPUs, interpreted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.kernels import suite
from txl_jax import attention
from txl_jax.ops.kernels import tpu_shift, tpu_tiles, xla
from txl_jax.program import target_device


class TestTpuShift(suite.Suite):
  MODULE = tpu_shift


@pytest.mark.parametrize(
  'kind, strided',
  [('TPU v3', False), ('TPU v4', False), ('TPU v5 lite', True)],
)
def test_rotation_by_rows_where_a_tpu_has_it(kind, strided, monkeypatch):
  """The compiler refuses it for others."""
  device = target_device.Device('tpu', kind)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  x = jax.ShapeDtypeStruct((1, 1, 8, 128), jnp.float32)
  text = str(jax.make_jaxpr(lambda x: tpu_shift.left(x))(x))  # no cached one
  assert ('stride=1' in text) == strided


@pytest.mark.parametrize('rows', [8, 64])
def test_rows_that_rotate_back_by_their_own_amount(rows):
  """As a TPU does it from v5 on; flipped, then each eight rows by a stride."""
  x = np.arange(rows * 128, dtype=np.float32).reshape(rows, 128)
  moved = jax.jit(lambda x: tpu_tiles.rotate_back(x, True))(x)
  rows_of = np.arange(rows).reshape(-1, 8)[:, ::-1].ravel()
  np.testing.assert_array_equal(
    moved, [np.roll(x[row], -row) for row in rows_of]
  )
  back = jax.jit(lambda x: tpu_tiles.flip(x, True))(moved)
  plain = jax.jit(lambda x: tpu_tiles.rotate_back(x, False))(x)
  np.testing.assert_array_equal(back, plain)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'T, S', [(1, 1), (1, 128), (9, 9), (130, 300), (260, 520), (3, 2000)]
)
def test_it_moves_what_a_query_sees(T, S):
  """The very numbers, also across blocks of rows, and back."""
  x = np.random.default_rng(0).normal(size=(2, 1, T, S)).astype(np.float32)
  seen = np.asarray(attention.visibility(T, S - T))[:, None]
  found = np.where(seen, tpu_shift.left(x), 0)
  moved = np.where(seen, attention.relative_shift(jnp.asarray(x)), 0)
  np.testing.assert_array_equal(found, moved)
  for dtype in jnp.float32, jnp.bfloat16:
    g = jnp.where(seen, x, 0).astype(dtype)
    back = tpu_shift.right(g)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, xla._shifted_right(g))
