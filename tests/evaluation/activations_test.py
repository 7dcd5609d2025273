"""Segments share a program; values are tested in the Python API."""

import jax
import numpy as np
import pytest

from tests import compilations
from tests.models.small import T, V, make
from txl_jax.evaluation import activations
from txl_jax.models import base

pytestmark = pytest.mark.thorough


def test_segments_compile_once():
  model = make(dtype='float32').at_test_time()
  # On a device of its own, as parameters of a checkpoint are.
  params = base.init_params(model, jax.random.key(0))
  params = jax.device_put(params, jax.devices()[0])
  tokens = np.arange(3 * T + 1) % V
  with compilations.counted() as compiled:
    segments = [*activations.segments(model, params, tokens, T, 'states')]
  assert [length for _, length, _ in segments] == [T, T, T, 1]
  assert compiled.count('jit(read)') == 1
