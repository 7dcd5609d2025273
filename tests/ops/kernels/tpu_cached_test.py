"""Several segments at test time on TPUs, interpreted, against one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_jax import attention
from txl_jax.ops.kernels import tpu_cached

B, H, K = 2, 2, 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
  """Tiles of 128."""
  monkeypatch.setattr(tpu_cached, 'UNIT', 128)


def arrays(N, C, dtype, seed=0):
  rng = np.random.default_rng(seed)
  new, old = (B, N, H, K), (B, H, C, K)
  shapes = new, new, new, old, old, (C, H, K), (H, K), (H, K)
  return [jnp.asarray(rng.standard_normal(x), dtype) for x in shapes]


def one_by_one(arrays, filled, T, M, span):
  """The mathematics, segment by segment, in float64."""
  q, k, v, old_k, old_v, r, u, v_bias = (np.float64(x) for x in arrays)
  k, v = (
    np.concatenate([np.swapaxes(old, 1, 2), new], axis=1)
    for old, new in ((old_k, k), (old_v, v))
  )
  S, C = M + T, len(r)
  out = []
  with jax.enable_x64(True):
    for i in range(0, q.shape[1], T):
      seen = slice(C + i - M, C + i + T)
      terms = q[:, i : i + T], k[:, seen], r[C - S :], u, v_bias
      scores = attention.relative_scores(*map(jnp.asarray, terms))
      mask = attention.visibility(T, M, np.minimum(filled + i, M), span)
      out.append(attention.attend(scores, jnp.asarray(v[:, seen]), mask))
  both = (np.swapaxes(x[:, -C:], 1, 2) for x in (k, v))
  return np.concatenate(out, axis=1), *both


@pytest.mark.parametrize(
  'T, n, M, C, span',
  [
    (32, 12, 200, 256, None),  # three tiles, each of four segments
    (50, 5, 206, 256, None),  # segments across tiles; a part of one is padding
    (200, 2, 180, 384, 180),  # longer than a tile
    (100, 2, 128, 256, None),  # a segment that begins before its tile
    (7, 1, 121, 128, 40),
    (1, 1, 127, 128, None),
  ],
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_values_and_cache(T, n, M, C, span, dtype):
  given = arrays(n * T, C, dtype)
  filled = jnp.array([M // 3, M + C])
  expected = one_by_one(given, filled, T, M, span)
  given[5] = tpu_cached.table(given[5])
  run = jax.jit(tpu_cached.attend, static_argnames=('T', 'M', 'span'))
  found = run(*given, filled, T=T, M=M, span=span)
  atol = 2e-6 if dtype == 'float32' else 0.03
  np.testing.assert_allclose(
    np.float64(found[0]), expected[0], rtol=0, atol=atol
  )
  for x, y in zip(found[1:], expected[1:], strict=True):
    np.testing.assert_array_equal(np.float64(x), y)


def test_nothing_is_read_out_of_bounds(monkeypatch):
  """Nor before it is written: a call with tiles that are partly padding."""
  real, T, C, M = pl.pallas_call, 50, 256, 206
  params = pltpu.InterpretParams(
    uninitialized_memory='nan', out_of_bounds_reads='raise'
  )
  monkeypatch.setattr(
    pl, 'pallas_call', lambda *a, **k: real(*a, **k | dict(interpret=params))
  )
  given = arrays(4 * T, C, 'float32')
  filled = jnp.array([M // 3, M])
  expected = one_by_one(given, filled, T, M, None)
  given[5] = tpu_cached.table(given[5])
  found = tpu_cached.attend(*given, filled, T=T, M=M, span=None)
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)


def test_the_scale_is_not_rounded():
  """To bfloat16 it would be 1.002 times as large: a lower temperature."""
  T, C, M, K = 64, 128, 64, 64
  rng = np.random.default_rng(0)
  new, old = (1, T, 1, K), (1, 1, C, K)
  shapes = new, new, new, old, old, (C, 1, K), (1, K), (1, K)
  given = [jnp.asarray(rng.standard_normal(x), 'bfloat16') for x in shapes]
  expected, *_ = one_by_one(given, jnp.array([M]), T, M, None)
  given[5] = tpu_cached.table(given[5])
  found, *_ = tpu_cached.attend(*given, jnp.array([M]), T=T, M=M, span=None)
  error = np.linalg.norm(np.float64(found) - expected)
  assert error < 4e-3 * np.linalg.norm(expected)
