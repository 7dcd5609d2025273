"""Attention against a direct formula for each pair of query and key."""

import contextlib
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct, promotions
from txl_jax import attention

B, H, K, D = 2, 2, 3, 6
settings = lambda n: hypothesis.settings(
  max_examples=n, deadline=None, derandomize=True, database=None
)


@pytest.fixture(autouse=True, scope='module', params=['', 'forbidden'])
def promotion(request):
  """Every test also runs where ranks and dtypes must not be promoted."""
  with contextlib.ExitStack() as stack:
    if request.param:
      stack.enter_context(promotions.forbidden())
    yield


@st.composite
def cases(draw):
  M = draw(st.integers(0, 7))
  return dict(
    T=draw(st.integers(1, 7)),
    M=M,
    filled=draw(st.tuples(*[st.integers(0, M)] * B)),
    clamp_len=draw(st.integers(0, 9)),
    span=draw(st.sampled_from([None, max(M, 1), M + 1])),
  )


def arrays(T, M, seed=0):
  """q, k, v, W_r, u, v_bias in float64."""
  rng = np.random.default_rng(seed)
  S = M + T
  heads = (B, T, H, K), (B, S, H, K), (B, S, H, K)
  return [rng.normal(size=s) for s in (*heads, (D, H, K), (H, K), (H, K))]


def ours(q, k, v, W_r, u, v_bias, *, T, M, filled, clamp_len, span):
  d = attention.distances(M + T, clamp_len, q.dtype)
  r = jnp.einsum('sd,dhk->shk', attention.sinusoid(d, D), W_r)
  mask = attention.visibility(T, M, jnp.array(filled), span)
  return attention.relative_attention(q, k, v, r, u, v_bias, mask)


def slow(q, k, v, W_r, u, v_bias, *, T, M, filled, clamp_len, span):
  """Row by row, with the keys that are real."""
  span = math.inf if span is None else span
  rows = [
    direct.attend(
      q[b], k[b, M - n :], v[b, M - n :], W_r, u, v_bias, span, clamp_len
    )
    for b, n in enumerate(filled)
  ]
  return np.stack(rows)


@pytest.mark.default_cases('forbidden')
@settings(20)
@hypothesis.given(cases())
@hypothesis.example(dict(T=7, M=2, filled=(0, 2), clamp_len=3, span=2))  # T > M
@hypothesis.example(dict(T=4, M=0, filled=(0, 0), clamp_len=0, span=1))
def test_relative_attention(case):
  args = arrays(case['T'], case['M'])
  with jax.enable_x64(True):
    out = jax.jit(lambda *args: ours(*args, **case))(*args)
    assert out.dtype == jnp.float64
  np.testing.assert_allclose(out, slow(*args, **case), rtol=0, atol=1e-10)


@pytest.mark.default_cases('forbidden-case2')
@pytest.mark.parametrize(
  'case',
  [
    dict(T=4, M=5, filled=(5, 2), clamp_len=0, span=None),
    dict(T=3, M=4, filled=(4, 1), clamp_len=2, span=4),
    dict(T=5, M=2, filled=(0, 2), clamp_len=0, span=3),
  ],
)
def test_gradients(case):
  """Against central differences of the direct formula."""
  args = arrays(case['T'], case['M'])
  rng = np.random.default_rng(1)
  weights = rng.normal(size=args[0].shape)
  with jax.enable_x64(True):
    loss = lambda *args: jnp.sum(weights * ours(*args, **case))
    grads = jax.jit(jax.grad(loss, argnums=range(6)))(*args)
  value = lambda arrays: np.sum(weights * slow(*arrays, **case))
  direct.assert_slopes(value, args, grads, step=1e-5, rtol=1e-7, atol=1e-8)


@pytest.mark.default_cases('forbidden')
@settings(20)
@hypothesis.given(
  st.lists(st.integers(1, 3), max_size=2), st.integers(1, 7), st.integers(0, 7)
)
def test_relative_shift(lead, T, M):
  S = M + T
  x = np.arange(math.prod(lead) * T * S, dtype=np.int32)
  x = x.reshape(*lead, T, S)
  out = np.asarray(jax.jit(attention.relative_shift)(jnp.array(x)))
  assert out.shape == x.shape and out.dtype == np.int32
  for i in range(T):
    for j in range(i + M + 1):  # beyond, entries wrap around
      column = S - 1 - (i + M - j)  # of the pair's distance
      np.testing.assert_array_equal(out[..., i, j], x[..., i, column])


@pytest.mark.default_cases('forbidden')
@settings(20)
@hypothesis.given(cases())
def test_visibility(case):
  T, M, span = case['T'], case['M'], case['span']
  visibility = jax.jit(attention.visibility, static_argnums=(0, 1, 3))
  mask = np.asarray(visibility(T, M, np.array(case['filled']), span))
  assert mask.shape == (B, T, M + T) and mask.dtype == bool
  for b, filled in enumerate(case['filled']):
    for i in range(T):
      # Oldest key first: empty slots, past states, the segment up to i.
      now = M + i
      real = list(range(M - filled, now + 1))
      expected = set(real if span is None else real[-span:])
      assert set(np.flatnonzero(mask[b, i])) == expected
  full = visibility(T, M, np.array([M] * B), span)
  np.testing.assert_array_equal(visibility(T, M, None, span), full[:1])


@pytest.mark.parametrize('clamp_len', [0, 1, 3, 100])
def test_distances(clamp_len):
  expected = [min(d, clamp_len or 9) for d in (5, 4, 3, 2, 1, 0)]
  d = attention.distances(6, clamp_len) if clamp_len else attention.distances(6)
  assert d.tolist() == expected and d.dtype == jnp.float32
  assert attention.distances(6, clamp_len, jnp.bfloat16).dtype == jnp.bfloat16


def test_sinusoid():
  d = [0.0, 1.0, 2.5, 511.0, 3799.0]
  with jax.enable_x64(True):
    table = attention.sinusoid(jnp.array(d), 8)
  np.testing.assert_allclose(table, [direct.sinusoid(x, 8) for x in d])
  assert attention.sinusoid(jnp.zeros([2]), 4).dtype == jnp.float32
  whole = attention.sinusoid(jnp.array([1, 3799]), 8)
  np.testing.assert_allclose(
    whole, [direct.sinusoid(x, 8) for x in (1, 3799)], atol=3e-4
  )
  assert whole.dtype == jnp.float32
  assert attention.frequencies(4) == (1.0, 0.01)
  with pytest.raises(ValueError, match='even width, got 5'):
    attention.sinusoid(jnp.zeros([2]), 5)


def probabilities(scores, mask):
  """Those of given scores: with one key as the value of each position."""
  *_, S = scores.shape
  values = jnp.eye(S, dtype=scores.dtype)[None, :, None]  # [B, S, H, K]
  out = attention.attend(scores, values, mask)
  return out[0, :, 0]  # [T, S]


@pytest.mark.thorough
@pytest.mark.parametrize('dtype', ['float16', 'float8_e5m2'])
def test_values_whose_sum_is_beyond_their_dtype(dtype):
  """Their mean is not; nor do equal values have a gradient of the scores."""
  large = float(jnp.finfo(dtype).max) * 0.75
  v = jnp.full([1, 3, 1, 8], large, dtype)
  mask = jnp.ones([1, 1, 3], bool)

  def total(scores, v):
    out = attention.attend(scores, v, mask)
    return jnp.sum(out.astype(jnp.float32)), out

  grad = jax.grad(total, argnums=(0, 1), has_aux=True)
  (of_scores, of_v), out = grad(jnp.zeros([1, 1, 1, 3]), v)
  assert out.dtype == dtype
  np.testing.assert_array_equal(out.astype(np.float32), v[:, :1])
  np.testing.assert_array_equal(of_scores, 0)
  third = np.float32(jnp.asarray(1 / 3, dtype))
  np.testing.assert_array_equal(of_v.astype(np.float32), third)


def test_values_that_are_no_floats_are_refused():
  v = jnp.ones([1, 3, 1, 8], jnp.int8)
  with pytest.raises(ValueError, match='v is int8; allowed: floating'):
    attention.attend(jnp.zeros([1, 1, 1, 3]), v, jnp.ones([1, 1, 3], bool))


@pytest.mark.thorough
@pytest.mark.parametrize('M', [0, 3])
def test_queries_that_see_keys_after_them(M):
  """Every pair by its own distance, which may be negative; any mask."""
  T, rng = 5, np.random.default_rng(0)
  S = M + T
  q, k, v, W_r, u, v_bias = arrays(T, M)
  mask = rng.random([B, T, S]) < 0.7
  mask[:, 2] = False  # a query that sees nothing
  with jax.enable_x64(True):
    d = attention.distances(S, 6, np.float64, after=T - 1)
    assert d.tolist() == [max(min(x, 6), -6) for x in range(S - 1, -T, -1)]
    r = jnp.einsum('sd,dhk->shk', attention.sinusoid(d, D), W_r)
    b = rng.normal(size=[S + T - 1, H])
    out = attention.relative_attention(q, k, v, r, u, v_bias, mask, b)
  expected = np.zeros_like(out)
  for n, i, h in np.ndindex(B, T, H):
    seen = np.flatnonzero(mask[n, i])
    scores = []
    for j in seen:
      d = i + M - j
      r_d = direct.sinusoid(max(min(d, 6), -6), D) @ W_r[:, h]
      score = (q[n, i, h] + u[h]) @ k[n, j, h] + (q[n, i, h] + v_bias[h]) @ r_d
      scores.append((score + b[S - 1 - d, h]) / math.sqrt(K))
    if len(seen):
      expected[n, i, h] = direct.softmax(np.array(scores)) @ v[n, seen, h]
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_softmax_is_never_nan(dtype):
  with jax.enable_x64(dtype == 'float64'):
    largest = float(jnp.finfo(dtype).max)
    scores = jnp.array(
      [[0.0, 1, 2], [-largest / 2, -largest / 2, 3], [largest, 0, 0]], dtype
    )[None, None]
    mask = jnp.array([[[0, 0, 0], [1, 1, 0], [1, 1, 1]]], bool)
    np.testing.assert_allclose(
      probabilities(scores, mask),
      [[0, 0, 0], [0.5, 0.5, 0], [1, 0, 0]],
      rtol=1e-6,
    )

    _, (sums,) = attention.exponentials(scores, mask)
    np.testing.assert_allclose(sums.ravel(), [1, 2, 1], rtol=1e-6)

    def total(scores):
      return probabilities(scores, mask)[..., 0].sum()

    assert np.isfinite(jax.grad(total)(scores)).all()


def test_bfloat16_scores_are_rounded_once():
  """Products of bfloat16 numbers are summed, shifted and added in float32."""
  T, M = 3, 4
  S = T + M
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.array(3 * rng.normal(size=shape), jnp.bfloat16)

  q, k, r = draw(B, T, H, K), draw(B, S, H, K), draw(S, H, K)
  zero = jnp.zeros([H, K], jnp.bfloat16)
  scores = attention.relative_scores(q, k, r, zero, zero)
  assert scores.dtype == jnp.float32
  wide = [np.asarray(x, np.float64) for x in (q, k, r)]
  scaled = np.asarray(q * K**-0.5, np.float64)  # the only rounding
  for i in range(T):
    for j in range(i + M + 1):
      d = i + M - j
      keys = wide[1][:, j] + wide[2][S - 1 - d]
      expected = np.sum(scaled[:, i] * keys, axis=-1)
      np.testing.assert_allclose(scores[:, :, i, j], expected, rtol=1e-5)
  assert np.abs(scores).max() > 10
  mask = attention.visibility(T, M)
  out = attention.relative_attention(q, k, k, r, zero, zero, mask)
  assert out.dtype == jnp.bfloat16 and out.shape == q.shape
  assert attention.summable(k) is k  # nor are values widened


@pytest.mark.thorough
def test_dropout_keeps_dtype_and_has_the_gradient_of_its_mask():
  drop = lambda x: attention.dropout(x, 0.25, jax.random.key(0))
  out = drop(jnp.ones([100, 100], jnp.bfloat16))
  assert out.dtype == jnp.bfloat16
  grad = jax.grad(lambda x: drop(x).sum())(jnp.ones([100, 100]))
  np.testing.assert_array_equal(grad == 0, out == 0)


@pytest.mark.parametrize('rate', [0.02, 0.1, 0.5])
def test_masks_are_like_independent_draws(rate):
  """Along every axis, between keys near each other, and between columns."""
  shape = 32, 128, 256
  x = jnp.ones(shape)
  run = jax.jit(lambda key: attention.dropout(x, rate, key) == 0)
  keys = [jax.random.key(n) for n in range(3)]
  keys += [jax.random.fold_in(keys[0], n) for n in range(3)]
  masks = [np.asarray(run(key)) for key in keys]
  p, n = rate**2, math.prod(shape)
  deviation = math.sqrt(p * (1 - p) / n)

  def independent(a, b):
    return abs((a & b).mean() - p) < 5 * deviation

  for i, a in enumerate(masks):
    for b in masks[:i]:
      assert independent(a, b)
    for lag in (1, 2, 3, 8, 255, 256, 257, 512, 128 * 256):
      assert independent(a.ravel()[lag:], a.ravel()[:-lag])
  for axis in range(3):
    counts = masks[0].sum(axis=axis)
    m = shape[axis]
    # Of a binomial count, the mean square over its variance is 1.
    ratio = np.mean((counts - m * rate) ** 2) / (m * rate * (1 - rate))
    kurtosis = 2 + 1 / (m * rate * (1 - rate))
    assert abs(ratio - 1) < 5 * math.sqrt(kurtosis / counts.size)


def test_the_mask_is_not_kept_for_the_backward_pass():
  x = jnp.ones([64, 64])
  kept = jax.eval_shape(
    lambda x, key: jax.vjp(lambda y: attention.dropout(y, 0.3, key), x)[1],
    x,
    jax.random.key(0),
  )
  assert all(leaf.size < x.size for leaf in jax.tree.leaves(kept))


@pytest.mark.default_cases('-shared0')
@pytest.mark.parametrize('shared', [(0,), (1,), (2,), (0, 2)])
def test_dropout_with_one_draw_along_an_axis(shared):
  """As if the array had no more than one entry there."""
  shape, rate, key = (30, 31, 32), 0.3, jax.random.key(0)
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  out = attention.dropout(x, rate, key, shared)
  own = [1 if axis in shared else n for axis, n in enumerate(shape)]
  factors = np.asarray(attention.dropout(jnp.ones(own), rate, key))
  np.testing.assert_allclose(out, x * factors, rtol=1e-6)


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_dropout_hashes_where_an_entry_stands(rate):
  """Against triple32 in 64 bits, with two words of the key."""
  shape, key = (30, 50, 70), jax.random.key(3)
  before, halfway = np.asarray(jax.random.bits(key, [2], jnp.uint32), np.uint64)
  low = np.uint64(2**32 - 1)
  x = np.arange(math.prod(shape), dtype=np.uint64) + before & low
  x = ((x ^ x >> 17) * 0xED5AD4BB & low) ^ halfway
  x = (x ^ x >> 11) * 0xAC4C1B51 & low
  x = (x ^ x >> 15) * 0x31848BAB & low
  x = x ^ x >> 14
  kept = x >= round(rate * 2**32)
  out = attention.dropout(jnp.full(shape, 3.0), rate, key)
  expected = np.where(kept, 3 / (1 - rate), 0)
  np.testing.assert_allclose(np.ravel(out), expected, rtol=1e-6)
  for n in 0, 1:  # at the limit itself, and below it
    limit, index = (int(x[0]) + n) / 2**32, jnp.zeros([], jnp.uint32)
    kept = attention.keep(index, attention.dropout_bits(key), limit)
    assert kept == (n == 0)


@pytest.mark.parametrize(
  'key, shown',
  [(0, '0'), (None, 'None'), ('rbg', 'uint32 [4]'), ('two', 'key<fry> [2]')],
)
def test_dropout_keys_that_are_refused(key, shown):
  if key == 'rbg':
    key = jax.random.PRNGKey(0, impl='rbg')
  if key == 'two':
    key = jax.random.split(jax.random.key(0))
  with pytest.raises(ValueError) as e:
    attention.dropout(jnp.ones([2]), 0.5, key)
  allowed = 'one jax.random.key, or uint32 [2]'
  assert str(e.value) == f'dropout_key is {shown}; allowed: {allowed}'


def test_dropout_of_rate_zero():
  x = jnp.ones([3])
  assert attention.dropout(x, 0.0, None) is x


def test_dropout_of_probabilities():
  """With one-hot values the output is the probabilities themselves."""
  T, M = 4, 3
  S = M + T
  rng = np.random.default_rng(0)
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  q, k, r = normal(B, T, H, S), normal(B, S, H, S), normal(S, H, S)
  u, v_bias = normal(H, S), normal(H, S)
  v = np.broadcast_to(np.eye(S, dtype=np.float32)[:, None], [B, S, H, S])
  mask, dropped = attention.visibility(T, M), (0.5, jax.random.key(0))
  attend = jax.jit(attention.relative_attention, static_argnames='dropout_rate')
  more = dict(zip(('dropout_rate', 'dropout_key'), dropped))
  out = attend(q, k, v, r, u, v_bias, mask, **more)
  scores = attention.relative_scores(q, k, r, u, v_bias)
  expected = attention.dropout(attention.probabilities(scores, mask), *dropped)
  np.testing.assert_allclose(out, np.swapaxes(expected, 1, 2), rtol=1e-5)


def test_content_scores_and_probabilities():
  rng = np.random.default_rng(5)
  q, k = rng.normal(size=[B, 3, H, K]), rng.normal(size=[B, 5, H, K])
  mask = np.asarray(attention.visibility(3, 2, np.array([0, 2])))
  with jax.enable_x64(True):
    scores = attention.content_scores(jnp.array(q), jnp.array(k))
    found = attention.probabilities(scores, mask)
  assert attention.content_scores(*map(jnp.bfloat16, (q, k))).dtype == 'float32'
  for b in range(B):
    for h in range(H):
      for i in range(3):
        expected, seen = np.zeros(5), np.flatnonzero(mask[b, i])
        products = [q[b, i, h] @ k[b, j, h] / math.sqrt(K) for j in seen]
        expected[seen] = direct.softmax(np.array(products))
        np.testing.assert_allclose(found[b, h, i], expected, atol=1e-12)
