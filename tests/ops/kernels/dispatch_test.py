"""The choice among implementations."""

import functools

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


@pytest.mark.parametrize(
  'kind,ampere',
  [
    ('NVIDIA H100 80GB HBM3', True),
    ('A100-SXM4-40GB', True),
    ('NVIDIA A10G', True),
    ('NVIDIA L40S', True),
    ('NVIDIA GeForce RTX 4090', True),
    ('Tesla T4', False),
    ('Tesla V100-SXM2-16GB', False),
    ('NVIDIA GeForce RTX 2080 Ti', False),
    ('Quadro RTX 5000 with Max-Q Design', False),
    ('NVIDIA RTX 5000 Ada Generation', True),
    ('NVIDIA RTX A6000', True),
    ('NVIDIA GeForce RTX 5090', True),
    ('NVIDIA B200', True),
    ('AMD Instinct MI300X', False),
  ],
)
def test_gpus_that_have_a_kernel(kind, ampere):
  assert target_device.Device('gpu', kind).ampere == ampere
  assert not target_device.Device('tpu', kind).ampere


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


def test_no_such_implementation():
  x = jnp.ones([1, 2, 1, 64])
  r, u = jnp.ones([2, 1, 64]), jnp.ones([1, 64])
  allowed = 'None, xla, triton, tpu, tpu_shift'
  with pytest.raises(ValueError, match=f"'flash'; allowed: {allowed}"):
    kernels.relative_attention(x, x, x, r, u, u, implementation='flash')


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


@pytest.mark.parametrize(
  'keys, span, found',
  [
    (3, None, r'k is \[1, 3, 1, 8\].* S at least T = 4'),
    (6, 0, 'span is 0; allowed: an int, at least 1'),
    (6, 1.5, 'span is 1.5; allowed: an int'),
    (6, 'traced', r'span is .*Tracer.*; allowed: an int'),
  ],
)
def test_arguments_that_mean_nothing(keys, span, found):
  q, x = jnp.ones([1, 4, 1, 8]), jnp.ones([1, keys, 1, 8])
  r, u = jnp.ones([keys, 1, 8]), jnp.ones([1, 8])
  with pytest.raises(ValueError, match=found):
    attend = functools.partial(kernels.relative_attention, q, x, x, r, u, u)
    if span == 'traced':
      jax.jit(lambda span: attend(span=span))(2)
    attend(span=span)


@pytest.mark.parametrize(
  'option, found',
  [
    (dict(dropout_key=0, dropout_rate=0.5), 'dropout_key is 0; allowed: one'),
    (dict(dropout_rate='traced'), r'dropout rate is .*Tracer'),
  ],
)
def test_dropout_that_means_nothing(option, found):
  q, r, u = jnp.ones([1, 4, 1, 8]), jnp.ones([4, 1, 8]), jnp.ones([1, 8])
  attend = functools.partial(kernels.relative_attention, q, q, q, r, u, u)
  with pytest.raises(ValueError, match=found):
    if option['dropout_rate'] == 'traced':
      jax.jit(lambda rate: attend(dropout_rate=rate))(0.5)
    attend(**option)
