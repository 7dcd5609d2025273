"""The kernel for GPUs from Ampere on, interpreted."""

from tests.kernels import suite
from txl_jax.kernels import triton


class TestTriton(suite.Suite):
  MODULE = triton
