"""What kernels share, with a kernel of plain operations."""

from tests.ops.kernels import plain_kernel, suite


class TestFused(suite.Suite):
  MODULE = plain_kernel
  float32_error = 4e-6
