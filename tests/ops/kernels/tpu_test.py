"""The kernel for TPUs, interpreted."""

import jax
import pytest

from tests.ops.kernels import suite
from txl_jax.ops.kernels import tpu
from txl_jax.program import target_device


class TestTpu(suite.Suite):
  MODULE = tpu


@pytest.mark.parametrize(
  'device, kernels',
  [
    (target_device.Device('cpu'), 0),
    (target_device.Device('tpu', 'TPU v5 lite'), 1),
  ],
)
def test_it_is_interpreted_where_a_program_is_for_cpus(
  monkeypatch, device, kernels
):
  """`target_device` tells, as it does where an implementation is chosen."""
  monkeypatch.setattr(target_device, 'device', lambda: device)
  A = lambda *s, d='float32': jax.ShapeDtypeStruct(s, d)
  arrays = [A(1, 8, 1, 64), A(1, 8, 1, 64), A(1, 8, 1, 64), A(8, 1, 64)]
  arrays += [A(1, 1, 8), A(1, 8), A(1, d='int32'), A(4, d='uint32')]
  run = jax.jit(lambda *a: tpu.forward(*a, span=8, rate=0.0))
  lowered = run.trace(*arrays).lower(lowering_platforms=(device.platform,))
  assert lowered.as_text().count('tpu_custom_call') == kernels
