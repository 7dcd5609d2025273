"""The sizes of rings; what they hold is in `transformer_xl_test.py`."""

import jax
import pytest

from tests.models.small import B, make
from txl_jax.models import base, ring_model
from txl_jax.program import target_device

LARGE, SMALL = dict(n_layer=2, d_head=384), dict(n_layer=2, d_head=30)


@pytest.mark.parametrize(
  'platform, M, T, sizes, several, slots, columns',
  [
    ('cpu', 1000, 7, LARGE, True, 1120, 128),  # 17 segments, an eighth
    ('cpu', 4096, 1, LARGE, True, 4096 + 128, 128),
    ('cpu', 4096, 16, LARGE, False, 4096 + 16, 128),
    ('cpu', 4096, 1, SMALL, True, 4096 + 2 * 30, 64),
    ('cpu', 4096, 64, SMALL, True, 4096 + 64, 128),
    ('tpu', 4096, 1, LARGE, True, 4096 + 256, 4416),
    ('tpu', 512, 16, LARGE, False, 640, 128),  # in multiples of 128
  ],
)
def test_slots_and_columns_of_tables(
  platform, M, T, sizes, several, slots, columns, monkeypatch
):
  """A TPU that reads several segments has columns of clamped distances."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  model = make(mem_len=M, clamp_len=50, dtype='float32', **sizes)
  model, K = model.at_test_time(T, several), sizes['d_head']
  states = jax.eval_shape(lambda: model.init_memory(B)).states
  assert [x.shape for x in jax.tree.leaves(states)] == [(B * 2, slots, K)] * 4
  variables = jax.eval_shape(model.frozen, base.param_shapes(model))
  shapes = [x.r.shape for x in variables['frozen']['tables']]
  assert shapes == [(2, K, columns)] * 2


def test_what_a_model_with_a_ring_reads():
  model = make(dtype='float32')
  one = model.at_test_time(4, several=False)
  again = one.at_test_time(5), one.at_test_time(6, several=False)
  found = [ring_model.joint_segment_len(x) for x in (model, one, *again)]
  assert found == [0, 0, 5, 0]
  assert [ring_model.rewindable(x) for x in (model, one, *again)] == [
    0,
    4,
    5,
    6,
  ]
