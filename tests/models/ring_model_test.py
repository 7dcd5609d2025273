"""The sizes of rings; what they hold is in `transformer_xl_test.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.small import B, T, make, text
from txl_jax.models import base, ring_model
from txl_jax.ops.kernels import tpu_cached
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


ORDERED = {
  'plain': dict(memory_init='zeros', clamp_len=3),
  'pre_norm': dict(pre_norm=True, untie_biases=True),
  'span': dict(mem_len=3, same_length='M', unroll=2),
  'tied': dict(tie_positions=True),
}


@pytest.mark.default_cases('pre_norm')
@pytest.mark.parametrize('case', ORDERED)
def test_ordered_keys_are_read_like_a_ring(case, monkeypatch):
  """Several segments, part of one, padded ones, after rewinds and resets."""
  fields = dict(longest=T, dtype='float32') | ORDERED[case]
  models = [make(**fields)]
  monkeypatch.setattr(ring_model.WithOrderedKeys, 'works', lambda model: True)
  monkeypatch.setattr(tpu_cached, 'UNIT', 128)
  models.append(make(**fields))
  assert [type(x) for x in models] == [
    ring_model.WithRing,
    ring_model.WithOrderedKeys,
  ]
  params = direct.random_params(models[0])
  found = [_read(model, params) for model in models]
  for x, y in zip(*found, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-5)


def _read(model, params):
  """The nll of calls of several kinds, each after the other."""
  tokens, targets = text(9, T)
  variables = jax.jit(model.frozen)(jax.tree.map(jnp.float32, params))
  run = jax.jit(functools.partial(model.apply, variables, train=False))
  nll, memory = [], model.init_memory(B)

  def read(segments, lengths=None, width=None):
    nonlocal memory
    pair = (np.concatenate(x[segments], axis=1) for x in (tokens, targets))
    x, y = (z[:, :width] for z in pair)
    if lengths is not None:
      y = np.where(np.arange(T) < lengths[:, None], y, -1)
    out = run(x, y, memory, lengths=lengths)
    memory = out.memory
    nll.append(np.asarray(out.nll))

  read(slice(3))
  read(slice(3, 4), np.array([1, T]))
  memory = model.rewind(memory, jnp.array([1, 2]))
  read(slice(3, 8))
  read(slice(8, 9), width=T - 1)
  memory = model.reset_memory(memory, jnp.array([True, False]))
  read(slice(9))
  return nll


def test_which_models_have_ordered_keys(monkeypatch):
  """On TPUs, in bfloat16, if they read several segments, without a bias."""
  device = target_device.Device('tpu', 'TPU v5p')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  fields = dict(mem_len=600, attention='auto', dtype='bfloat16')

  def ordered(several=True, **changes):
    model = make(**fields | changes).at_test_time(T, several)
    return isinstance(model, ring_model.WithOrderedKeys)

  assert ordered() and ordered(tie_positions=True)
  assert not ordered(several=False)
  assert not ordered(dtype='float32')
  assert not ordered(attention='xla')
  assert not ordered(mem_len=100_000)
  assert not ordered(name='shaw', table_len=8)
  assert ordered(name='shaw', table_len=8, biases=False)
