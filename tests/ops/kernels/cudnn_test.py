"""The arguments that cuDNN gets, with attention of JAX in its place."""

import functools

import jax
import pytest

from tests.ops.kernels import suite
from txl_jax.ops.kernels import cudnn


class TestCudnn(suite.Suite):
  MODULE = cudnn
  supports_dropout = False

  @pytest.fixture(autouse=True)
  def plain(self, monkeypatch):
    """cuDNN is for GPUs alone; what it computes is what these compute."""
    attend = jax.nn.dot_product_attention

    @functools.wraps(attend)
    def plain(*args, implementation, **options):
      assert implementation == 'cudnn'
      return attend(*args, implementation='xla', **options)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', plain)
