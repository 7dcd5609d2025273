"""What kernels share, with a kernel of plain operations."""

import jax
import jax.numpy as jnp

from tests.ops.kernels import plain_kernel, suite


class TestFused(suite.Suite):
  MODULE = plain_kernel
  float32_error = 4e-6


def test_no_barrier_is_between_operations():
  given, *rest, _ = suite.draw(suite.SHAPES['one query'], b=True)
  attend = lambda *a: TestFused().attend(a, *rest).sum()
  arrays = suite.cast(given, jnp.float32)
  text = jax.jit(jax.grad(attend, 1)).lower(*arrays).as_text()
  assert 'optimization_barrier' not in text
