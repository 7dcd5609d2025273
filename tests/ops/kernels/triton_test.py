"""The kernel for GPUs from Ampere on, interpreted."""

import jax.numpy as jnp
import pytest

from tests.ops.kernels import suite
from txl_jax.ops.kernels import triton


class TestTriton(suite.Suite):
  MODULE = triton

  @pytest.mark.default_cases('several tiles')
  @pytest.mark.parametrize('shape', ['several tiles', 'a short span'])
  def test_a_few_queries_at_a_time(self, shape, monkeypatch):
    """Of more rows, by more calls than one, whose sums are the gradients."""
    monkeypatch.setattr(triton, '_BUFFER', 1)
    _, T, H, K, M, filled, span = suite.SHAPES[shape]
    assert T > 32, 'one tile of float32'
    shape = 2, T, H, K, M, (*filled, 0), span
    given, *rest = suite.draw(shape)
    self.check(given, *rest, jnp.float32, self.float32_error)


def test_tiles_at_once():
  """As many as keep 264 programs busy, of those that the buffer holds."""
  tile = triton._BUFFER // 1000
  assert triton._tiles_at_once(12, 128, tile // 400) == 2  # 256 of 264
  assert triton._tiles_at_once(8, 176, tile // 800) == 3  # two waves, exactly
  assert triton._tiles_at_once(8, 88, tile) == 3  # whole waves
  assert triton._tiles_at_once(8, 176, triton._BUFFER + 1) == 1
