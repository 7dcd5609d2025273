"""Plain operations; and the reference that all are held to."""

import numpy as np

from tests.ops.kernels import reference, suite
from txl_jax.ops.kernels import xla


class TestXla(suite.Suite):
  MODULE = xla


def test_reference_gradients():
  """Against central differences of the reference itself."""
  given, filled, span, dout = suite.draw(suite.SHAPES['odd sizes'], b=True)
  arrays = list(given.values())
  rng = np.random.default_rng(1)
  keep = rng.random((1, 2, 13, 23)) > 0.3
  more = dict(keep=keep, rate=0.3)
  grads = reference.gradients(*arrays, filled, span, dout, **more)
  for n, grad in enumerate(grads):
    direction = rng.normal(size=grad.shape)

    def at(step, n=n, direction=direction):
      moved = list(arrays)
      moved[n] = moved[n] + step * direction
      return np.sum(dout * reference.attend(*moved, filled, span, **more))

    expected = (at(1e-5) - at(-1e-5)) / 2e-5
    np.testing.assert_allclose(np.sum(grad * direction), expected, rtol=1e-7)
