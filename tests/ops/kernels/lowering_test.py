"""Kernels as GPUs and TPUs get them, without one."""

import functools
import re

import jax
import pytest

from tests.ops.kernels import shards_test
from txl_jax.ops import kernels
from txl_jax.ops.kernels import tpu, tpu_cached, triton
from txl_jax.program import target_device

# jax 0.12 says it; Mosaic GPU is to take its place.
pytestmark = pytest.mark.filterwarnings(
  'ignore:The Pallas Triton backend is deprecated'
)
# B, T, M, H, K: the configs of enwik8, WikiText-103 and Penn Treebank.
SHAPES = [
  (16, 512, 512, 8, 64),
  (16, 768, 768, 8, 128),
  (16, 150, 150, 10, 41),
  (16, 384, 384, 16, 64),
  (16, 70, 70, 10, 38),
]
DEVICES = {
  'cuda': jax.sharding.AbstractDevice('NVIDIA H100 80GB HBM3', None, 'gpu'),
  'tpu': jax.sharding.AbstractDevice('TPU v5 lite', 1, 'tpu'),
}
SMALL = [(2, 70, 50, 3, 10), (1, 140, 30, 2, 128)]


@pytest.mark.thorough
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
  arrays += [
    A(H, K, d='float32'),
    A(H, S, d='float32'),
    A(B, d='int32'),
    A(4, d='uint32'),
  ]
  off = dict(interpret=False, span=S, rate=0.1)

  def both(dout, *arrays):
    out, logsum = kernel.forward(*arrays, **off)
    return out, kernel.backward(*arrays, out, logsum, dout, **off)

  mesh = jax.sharding.AbstractMesh((), (), abstract_device=DEVICES[platform])
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(both).trace(arrays[0], *arrays)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert 'custom_call' in text and 'atomic' not in text
  assert not re.search(rf'{T}x(\d+x)?{S}x', text)


@pytest.mark.parametrize('N', [1, 70, 2048])
def test_segments_with_cached_keys_lower(N, monkeypatch):
  """To a kernel that writes where the old keys and values were."""
  H, K, C = 2, 64, 1024
  to = DEVICES['tpu']
  device = target_device.Device(to.platform, to.device_kind)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  A = lambda *s, d='bfloat16': jax.ShapeDtypeStruct(s, d)
  table = jax.eval_shape(tpu_cached.table, A(C, H, K))
  arrays = *[A(1, N, H, K)] * 3, *[A(1, H, C, K)] * 2, A(*table.shape)
  run = functools.partial(tpu_cached.attend, T=min(N, 128), M=800, span=None)
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=to)
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(run).trace(*arrays, *[A(H, K)] * 2, A(1, d='int32'))
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
  assert text.count('custom_call @tpu_custom_call') == 1
  aliases = r'output_tuple_indices = \[(\d)\], operand_index = (\d)'
  assert re.findall(aliases, text) == [('1', '7'), ('2', '8')]
  assert not re.search(rf'{N}x(\d+x)?{C + N}x', text)


@pytest.mark.slow
@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_lowers_in_shard_map(platform, monkeypatch):
  """Where it checks how arrays vary; JAX does not interpret kernels there."""
  kind = dict(cuda='triton', tpu='tpu')[platform]
  to = DEVICES[platform]
  device = target_device.Device(to.platform, to.device_kind)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  monkeypatch.setattr(shards_test, 'K', 64)
  attend = functools.partial(kernels.relative_attention, implementation=kind)
  mesh = shards_test.mesh_of_rows().abstract_mesh
  mesh = mesh.update(abstract_device=to)
  run = shards_test.in_shards(shards_test.loss_of(attend, 0.1), mesh)
  given = *shards_test.arrays(), jax.random.key(0)
  text = run.trace(*given).lower(lowering_platforms=(platform,)).as_text()
  assert 'custom_call' in text and 'all_reduce' in text
