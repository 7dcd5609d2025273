"""The kernel for TPUs, interpreted."""

from tests.kernels import suite
from txl_jax.kernels import tpu


class TestTpu(suite.Suite):
  MODULE = tpu
