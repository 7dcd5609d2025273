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
  assert dispatch.to_slots('xla') is None
  why = 'not triton: it needs an NVIDIA GPU of compute capability 8.0 or above'
  assert kernels.choose(on('gpu', 'Tesla T4')) == ('xla', why)
  why = 'not triton: it needs float32 or bfloat16, not float16'
  case = on('gpu', 'NVIDIA A10G', dtype='float16')
  assert kernels.choose(case) == ('xla', why)


def test_a_backend_that_jax_has_dropped(monkeypatch):
  monkeypatch.setitem(dispatch._KERNELS, 'triton', 'txl_jax.dropped')
  why = f'not triton: jax {jax.__version__} does not have it '
  why += "(No module named 'txl_jax.dropped')"
  assert kernels.choose(on('gpu', 'NVIDIA A10G')) == ('xla', why)


TOO_SMALL = 'heads below 64 or segments below 256 are faster without'


@pytest.mark.parametrize(
  'kind, sizes, why_not_tpu',
  [
    ('TPU v5 lite', dict(T=256, M=0), ''),
    ('TPU v5 lite', dict(T=255), TOO_SMALL),
    ('TPU v5 lite', dict(T=256, K=63), TOO_SMALL),
    ('TPU v5 lite', dict(T=256, dtype='float32'), 'float32 is faster without'),
    ('TPU v5 lite', dict(T=768, K=128), ''),
    ('TPU v4', dict(K=129), 'it needs heads of width 128 or less, not 129'),
    ('TPU v5 lite', dict(T=2**13, M=2**13), ''),
    ('TPU v4', dict(T=2**12, M=2**12), (4096, 8192, 16)),
    ('TPU v5p', dict(T=2**13, M=2**12), (8192, 12288, 64)),
    ('TPU v5 lite', dict(T=2**14, M=2**12), (16384, 20480, 128)),
    ('TPU v6 lite', dict(T=2**14, M=2**12), (16384, 20480, 128)),
    ('TPU v3', dict(T=768), 'it needs a TPU v4 or newer'),
  ],
)
def test_what_a_tpu_runs(kind, sizes, why_not_tpu):
  if isinstance(why_not_tpu, tuple):
    T, S, limit = why_not_tpu
    why_not_tpu = f'{T} queries and {S} keys need more than {limit} MiB of VMEM'
  case, name = on('tpu', kind, **sizes), 'tpu_shift' if why_not_tpu else 'tpu'
  why = f'for {kind}' + (f'; not tpu: {why_not_tpu}' if why_not_tpu else '')
  assert dispatch.choose(case) == (name, why)
  reason = f'not tpu: {why_not_tpu or "it failed"}'
  found = dispatch.choose(case, ['tpu'])
  assert found == ('tpu_shift', f'for {kind}; {reason}')
  found = dispatch.choose(case, ['tpu', 'tpu_shift'])
  assert found == ('xla', f'{reason}; not tpu_shift: it failed')


def test_the_case_of_arrays():
  q, k = jnp.ones([2, 3, 5, 7], jnp.bfloat16), jnp.ones([2, 14, 5, 7])
  expected = kernels.Case(target_device.device(), 'bfloat16', 3, 11, 7, 0.1)
  assert kernels.case_of(q, k, 0.1) == expected


@pytest.mark.parametrize('name', ['triton', 'tpu', 'tpu_shift'])
def test_asked_for_by_name_and_unable(name):
  x = jnp.ones([1, 2, 1, 64])
  r, u = jnp.ones([2, 1, 64]), jnp.ones([1, 64])
  with pytest.raises(kernels.Unable, match=f'{name} cannot do this: it needs'):
    kernels.relative_attention(x, x, x, r, u, u, implementation=name)


@pytest.mark.thorough
@pytest.mark.parametrize('filled', [None, [2, 0]])
@pytest.mark.parametrize('span', [None, 1, 3, 100])
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
