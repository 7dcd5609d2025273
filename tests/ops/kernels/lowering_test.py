"""Kernels as GPUs and TPUs get them, without one."""

import functools
import re

import jax
import pytest

from tests.ops.kernels import shards_test
from txl_jax.ops import kernels
from txl_jax.ops.kernels import tpu, triton
from txl_jax.program import target_device

# B, T, M, H, K: the configs of enwik8, WikiText-103 and Penn Treebank.
SHAPES = [
  (16, 512, 512, 8, 64),
  (16, 768, 768, 8, 128),
  (16, 150, 150, 10, 41),
  (16, 384, 384, 16, 64),
  (16, 70, 70, 10, 38),
]
SMALL = [(2, 70, 50, 3, 10), (1, 140, 30, 2, 128)]


@pytest.mark.thorough
# jax 0.12 says it of Triton; Mosaic GPU is to take its place.
@pytest.mark.filterwarnings('ignore:The Pallas Triton backend is deprecated')
@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.parametrize(
  'shape',
  [*SMALL, *(pytest.param(x, marks=pytest.mark.slow) for x in SHAPES)],
  ids=str,
)
@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_lowers(platform, shape, dtype):
  """Forward and backward, with dropout; no atomics, no array of T x S."""
  (B, T, M, H, K), kernel = shape, dict(cuda=triton, tpu=tpu)[platform]
  S = T + M
  A = lambda *s, d=dtype: jax.ShapeDtypeStruct(s, d)
  arrays = [A(B, T, H, K), A(B, S, H, K), A(B, S, H, K), A(S, H, K)]
  arrays += [A(B, H, S, d='float32'), A(H, S, d='float32')]
  arrays += [A(B, d='int32'), A(4, d='uint32')]
  off = dict(interpret=False, span=S, rate=0.1)

  def both(dout, *arrays):
    out, logsum = kernel.forward(*arrays, **off)
    return out, kernel.backward(*arrays, out, logsum, dout, **off)

  lowered = jax.jit(both).trace(arrays[0], *arrays)
  text = lowered.lower(lowering_platforms=(platform,)).as_text()
  assert 'custom_call' in text and 'atomic' not in text
  assert not re.search(rf'{T}x(\d+x)?{S}x', text)


@pytest.mark.slow
@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_lowers_in_shard_map(platform, monkeypatch):
  """Where it checks how arrays vary; JAX does not interpret kernels there."""
  kind, device = {
    'cuda': ('triton', target_device.Device('gpu', 'NVIDIA H100 80GB HBM3')),
    'tpu': ('tpu', target_device.Device('tpu', 'TPU v5 lite')),
  }[platform]
  monkeypatch.setattr(target_device, 'device', lambda: device)
  monkeypatch.setattr(shards_test, 'K', 64)
  attend = functools.partial(kernels.relative_attention, implementation=kind)
  run = shards_test.in_shards(shards_test.loss_of(attend, 0.1))
  given = *shards_test.arrays(), jax.random.key(0)
  text = run.trace(*given).lower(lowering_platforms=(platform,)).as_text()
  assert 'custom_call' in text and 'all_reduce' in text
