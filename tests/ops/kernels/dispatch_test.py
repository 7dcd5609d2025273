"""The choice among implementations."""

import jax
import jax.numpy as jnp
import pytest

from tests import promotions
from tests.ops.kernels import plain_kernel
from txl_jax import attention
from txl_jax.ops import kernels
from txl_jax.ops.kernels import dispatch
from txl_jax.program import target_device

CPU = target_device.Device('cpu', 'cpu')
CASE = kernels.Case(CPU, 'bfloat16', T=64, M=64, K=64, rate=0.0)


def on(platform, kind, **changes):
  return CASE._replace(device=target_device.Device(platform, kind), **changes)


AMPERE = (
  'NVIDIA H100 80GB HBM3', 'A100-SXM4-40GB', 'NVIDIA A10G', 'NVIDIA L40S',
  'NVIDIA GeForce RTX 4090', 'NVIDIA RTX 5000 Ada Generation',
  'NVIDIA RTX A6000', 'NVIDIA GeForce RTX 5090', 'NVIDIA B200',
)  # fmt: skip
OTHERS = (
  'Tesla T4', 'Tesla V100-SXM2-16GB', 'NVIDIA GeForce RTX 2080 Ti',
  'Quadro RTX 5000 with Max-Q Design', 'AMD Instinct MI300X',
)  # fmt: skip


@pytest.mark.parametrize('kind', AMPERE + OTHERS)
def test_gpus_that_have_a_kernel(kind):
  assert target_device.Device('gpu', kind).ampere == (kind in AMPERE)
  for other in 'cpu', 'tpu':
    assert not target_device.Device(other, kind).ampere


def test_plain_operations_where_there_is_no_kernel():
  assert kernels.choose(CASE) == ('xla', 'no kernel for a cpu')
  name, why = kernels.choose(on('gpu', 'Tesla T4'))
  assert name == 'xla' and 'triton' in why


@pytest.mark.parametrize(
  'kind, sizes, without, name, said',
  [
    ('TPU v5 lite', dict(T=768, M=768), (), 'tpu', 'for TPU v5 lite'),
    ('TPU v5 lite', dict(T=512, M=512), ('tpu',), 'tpu_shift', 'it failed'),
    ('TPU v5 lite', dict(T=150, M=150, K=41), (), 'tpu_shift', 'segments'),
    ('TPU v5 lite', dict(T=4096, M=4096), (), 'tpu', 'for TPU v5 lite'),
    ('TPU v4', dict(T=4096, M=4096), (), 'tpu_shift', 'more than 16 MiB'),
    ('TPU v3', dict(T=768, M=768), (), 'tpu_shift', 'needs a TPU v4'),
    ('TPU v3', dict(), ('tpu_shift',), 'xla', 'not tpu_shift: it failed'),
  ],
)
def test_what_a_tpu_runs(kind, sizes, without, name, said):
  chosen, why = dispatch.choose(on('tpu', kind, **sizes), without)
  assert chosen == name and said in why


@pytest.mark.parametrize('name', ['triton', 'tpu', 'tpu_shift'])
def test_asked_for_by_name_and_unable(name):
  x = jnp.ones([1, 2, 1, 64])
  r, u = jnp.ones([2, 1, 64]), jnp.ones([1, 64])
  with pytest.raises(kernels.Unable, match=f'{name} cannot do this: it needs'):
    kernels.relative_attention(x, x, x, r, u, u, implementation=name)


@pytest.mark.thorough
@pytest.mark.parametrize('filled', [None, [2, 0]])
@pytest.mark.parametrize('span', [None, 3, 100])
def test_relative_attention_is_that_with_a_mask(filled, span, monkeypatch):
  """By plain operations, and by a kernel that is chosen where there is one."""
  B, T, M, H, K = 2, 3, 2, 2, 64
  keys = jax.random.split(jax.random.key(0), 7)
  shapes = (B, T, H, K), (B, M + T, H, K), (B, M + T, H, K), (M + T, H, K)
  arrays = [
    jax.random.normal(k, s) for k, s in zip(keys, (*shapes, (H, K), (H, K)))
  ]
  filled = None if filled is None else jnp.array(filled)
  mask = attention.visibility(T, M, filled, span)
  dropped = dict(dropout_rate=0.2, dropout_key=keys[-1])
  expected = attention.relative_attention(*arrays, mask, **dropped)
  given = dict(filled=filled, span=span, **dropped)
  found = kernels.relative_attention(*arrays, **given)
  assert jnp.allclose(found, expected, atol=1e-6)
  with promotions.forbidden():
    again = kernels.relative_attention(*arrays, **given)
  assert jnp.array_equal(again, found)
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
  found = kernels.relative_attention(*arrays, **given)
  assert jnp.allclose(found, expected, atol=1e-6)
