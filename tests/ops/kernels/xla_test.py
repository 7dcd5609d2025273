"""Plain operations; and the reference that all are held to."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention_test import B, H, K, cases, settings
from tests.ops.kernels import suite
from txl_jax import attention
from txl_jax.ops.kernels import base, cpu, xla
from txl_jax.program import target_device


class TestXla(suite.Suite):
  MODULE = xla


def by_hand(*arrays, dropout_rate=0.0, dropout_key=None, module=xla):
  """`attention.relative_attention` with the gradient that is tested here."""
  *given, mask, b = arrays
  return module.masked(dropout_rate, (*given, b), mask, dropout_key)


in_both = pytest.mark.parametrize('module', [xla, cpu])


def gradients(attend, arrays, cotangent, mask, **dropped):
  """Of all seven arrays, b the last one or None."""

  def loss(arrays):
    *given, b = arrays
    out = attend(*given, mask, b, **dropped)
    return jnp.sum(out.astype(cotangent.dtype) * cotangent)

  return jax.jit(jax.grad(loss))(arrays)


def random_arrays(T, M, dtype, b=True, scale=1.0, seed=0):
  """q, k, v, r, u, v_bias, b or None; and a cotangent."""
  rng, S = np.random.default_rng(seed), M + T
  shapes = (B, T, H, K), (B, S, H, K), (B, S, H, K), (S, H, K), (H, K), (H, K)
  draw = lambda shape, by=1.0: jnp.array(by * rng.normal(size=shape), dtype)
  q, *others = [draw(shape) for shape in shapes]
  last = draw((S, H)) if b else None
  return (scale * q, *others, last), draw((B, T, H, K))


def assert_alike(found, expected, rtol):
  """Leaf by leaf, the error beside 1 or the largest number of a leaf."""
  for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert x.dtype == y.dtype
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    np.testing.assert_allclose(
      x, y, rtol=0, atol=rtol * max(1, np.abs(y).max())
    )


@pytest.mark.thorough
@in_both
@settings(6)
@hypothesis.given(
  cases(),
  st.sampled_from(['float32', 'float64']),
  st.sampled_from([0.0, 0.3]),
  st.booleans(),
  st.sampled_from([1.0, 300.0]),
)
@hypothesis.example(
  dict(T=1, M=0, filled=(0, 0), span=None), 'float64', 0.0, True, 1.0
)
@hypothesis.example(
  dict(T=1, M=4, filled=(0, 3), span=5), 'float64', 0.3, False, 1.0
)
@hypothesis.example(
  dict(T=5, M=3, filled=(0, 2), span=None), 'float64', 0.3, True, 300.0
)
def test_gradient_is_that_of_the_parts(module, case, dtype, rate, b, scale):
  """Extreme scores, too: a scale of 300 makes the softmax a choice."""
  with jax.enable_x64(dtype == 'float64'):
    T, M = case['T'], case['M']
    arrays, g = random_arrays(T, M, dtype, b, scale)
    mask = attention.visibility(T, M, jnp.array(case['filled']), case['span'])
    dropped = dict(dropout_rate=rate, dropout_key=jax.random.key(1))
    given = arrays, g, mask
    found = gradients(by_hand, *given, module=module, **dropped)
    expected = gradients(attention.relative_attention, *given, **dropped)
    rtol = 1e-11 if dtype == 'float64' else 1e-4
    assert_alike(found, expected, rtol if scale == 1 else 100 * rtol)


@pytest.mark.thorough
def test_gradient_in_bfloat16():
  """As near to that of float32 as that of the parts, which is 4 % off."""
  arrays, g = random_arrays(5, 3, jnp.bfloat16)
  mask = attention.visibility(5, 3, jnp.array([0, 2]))
  dropped = dict(dropout_rate=0.3, dropout_key=jax.random.key(1))
  found = gradients(by_hand, arrays, g, mask, **dropped)
  wide, wide_g = jax.tree.map(lambda x: x.astype(jnp.float32), (arrays, g))
  expected = gradients(
    attention.relative_attention, wide, wide_g, mask, **dropped
  )
  for x, y in zip(found, expected, strict=True):
    assert x.dtype == jnp.bfloat16
    error = np.asarray(x, np.float32) - y
    assert np.sqrt(np.mean(error**2)) < 0.03 * np.sqrt(np.mean(y**2))


@pytest.mark.parametrize(
  'module, dtype', [(xla, 'float32'), (xla, 'bfloat16'), (cpu, 'float32')]
)
def test_one_array_of_scores_is_kept_in_the_dtype_of_values(module, dtype):
  T, M = 5, 3
  (*arrays, b), _ = random_arrays(T, M, dtype)
  mask = attention.visibility(T, M, jnp.array([0, 2]))
  attend = lambda *x: by_hand(*x, mask, b, module=module)
  kept = jax.eval_shape(lambda *x: jax.vjp(attend, *x)[1], *arrays)
  large = [x for x in jax.tree.leaves(kept) if x.size == B * H * T * (M + T)]
  assert [x.dtype for x in large] == [dtype]


@pytest.mark.thorough
@in_both
def test_a_query_that_sees_no_key_has_no_gradient_of_its_scores(module):
  with jax.enable_x64(True):
    arrays, g = random_arrays(3, 2, 'float64')
    mask = attention.visibility(3, 2).at[:, 1].set(False)
    found = gradients(by_hand, arrays, g, mask, module=module)
    assert_alike(
      found, gradients(attention.relative_attention, arrays, g, mask), 1e-11
    )
    assert not found[0][:, 1].any() and found[0][:, 2].any()


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16'])
@pytest.mark.parametrize('shifts', [None, xla.Shifts(None, None)])
def test_the_layout_of_cpus(platform, dtype, shifts, monkeypatch):
  """Only there, in the dtypes that it is fast for, and without a kernel."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  for module, used in (cpu, True), (xla, False):
    monkeypatch.setattr(module, 'masked', lambda *_, used=used: used)
  with jax.enable_x64(True):
    arrays, _ = random_arrays(3, 2, dtype, b=False)
    given = dict(span=5, rate=0.0, key=None, shifts=shifts)
    used = xla.attend(base.Inputs(*arrays, filled=None), **given)
  assert used == (platform == 'cpu' and dtype != 'bfloat16' and not shifts)
