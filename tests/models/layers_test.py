"""Building blocks against their formulas; whole layers in the model's test."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from txl_jax.models import layers, transformer_xl
from txl_jax.models.transformer_xl import Config
from txl_jax.ops import matmul

RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 3, 8]) * [[[3.0]], [[1e-2]]]  # eps matters in row 1


@pytest.mark.parametrize('eps', [1e-5, 1e-12, 1e-2])
def test_layer_norm(eps):
  params = {'norm': {'scale': RNG.normal(size=8), 'bias': RNG.normal(size=8)}}
  with jax.enable_x64(True):
    module = layers.LayerNorm(Config(ln_eps=eps, dtype='float64'))
    out = module.apply({'params': params}, jnp.array(X))
  expected = direct.layer_norm(X, params, eps)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_layer_norm_is_computed_in_float32(dtype):
  """A mean of 1,000 squares to 10^6 and would hide a variance of 1."""
  x = jnp.array(1000 + 8 * RNG.normal(size=[1, 1, 64]), dtype)
  module = layers.LayerNorm(Config(init_std=0.0, dtype=dtype))
  variables = module.init(jax.random.key(0), x)
  assert variables['params']['norm']['scale'].dtype == jnp.float32
  out = module.apply(variables, x)
  assert out.dtype == matmul.state_dtype(dtype)
  one = {'norm': {'scale': np.ones(64), 'bias': np.zeros(64)}}
  expected = direct.layer_norm(np.asarray(x, np.float64), one, 1e-5)
  rtol, atol = (2**-8, 1e-3) if dtype == 'bfloat16' else (1e-4, 1e-4)
  np.testing.assert_allclose(
    np.asarray(out, np.float64), expected, rtol=rtol, atol=atol
  )


def test_feed_forward():
  params = {
    'w1': {'kernel': RNG.normal(size=[8, 5]), 'bias': RNG.normal(size=5)},
    'w2': {'kernel': RNG.normal(size=[5, 8]), 'bias': RNG.normal(size=8)},
  }
  with jax.enable_x64(True):
    config = Config(d_ff=5, dropout=0.5, dtype='float64')
    module = layers.FeedForward(config)
    out = module.apply({'params': params}, jnp.array(X))
  expected = direct.feed_forward(X, params)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


def test_dropout():
  x = jnp.ones([50, 40])
  apply = lambda rate, key, train: layers.Dropout().apply(
    {},
    x,
    rate,
    train=train,
    rngs={'dropout': jax.random.key(key)} if train else {},
  )
  np.testing.assert_array_equal(apply(0.3, 0, False), x)
  np.testing.assert_array_equal(apply(0.0, 0, True), x)
  out = apply(0.3, 0, True)
  assert abs((out == 0).mean() - 0.3) < 0.06
  np.testing.assert_array_equal(out, apply(0.3, 0, True))
  assert (out != apply(0.3, 1, True)).any()


def test_locked_dropout_has_one_mask_for_all_positions():
  x = jnp.array(RNG.normal(size=[6, 5, 40]), jnp.float32)
  rngs = {'dropout': jax.random.key(0)}
  out = layers.Dropout().apply({}, x, 0.5, train=True, locked=True, rngs=rngs)
  dropped = np.asarray(out) == 0
  for t in range(5):
    np.testing.assert_array_equal(dropped[:, t], dropped[:, 0])
  assert len({row.tobytes() for row in dropped[:, 0]}) == 6
  assert abs(dropped[:, 0].mean() - 0.5) < 0.16
  np.testing.assert_allclose(out, 2 * x * ~dropped, rtol=1e-6)


@pytest.mark.parametrize('tiny', [0.0, 1e-11])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_word_dropout(dtype, tiny):
  V, rate = 1000, 0.2
  tokens = RNG.integers(0, V, [8, 50])
  x = jnp.array(RNG.normal(size=[8, 50, 3]), dtype)
  module = layers.WordDropout(V, rate, tiny)
  apply = lambda key: module.apply(
    {}, x, tokens, train=True, rngs={'dropout': jax.random.key(key)}
  )
  out = apply(0)
  assert out.dtype == x.dtype
  np.testing.assert_array_equal(out, apply(0))
  assert (out != apply(1)).any()
  off = module.apply({}, x, tokens, train=False)
  np.testing.assert_array_equal(off, x)
  if not tiny:  # the first position of a segment stays as it is
    np.testing.assert_array_equal(out[:, 0], x[:, 0])
    out, x, tokens = out[:, 1:], x[:, 1:], tokens[:, 1:]
  value = jnp.asarray(tiny, dtype)
  gone = {
    int(t)
    for t, v in zip(tokens.ravel(), out.reshape(-1, 3))
    if (v == value).all()
  }
  count = len(np.unique(tokens))
  assert abs(len(gone) - rate * count) < 5 * np.sqrt(rate * 0.8 * count)
  # A word is gone wherever it stands, and none of the others anywhere.
  kept = ~np.isin(tokens, list(gone))
  expected = np.asarray(x, np.float64) / (1 - rate)
  expected = np.where(kept[..., None], expected, tiny)
  rtol = 2**-8 if dtype == 'bfloat16' else 1e-6
  np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=rtol)


def test_biases():
  module = transformer_xl.Biases(
    Config(n_head=40, d_head=50, init_std=0.1, dtype='bfloat16')
  )
  (u, v), variables = module.init_with_output(jax.random.key(0))
  params = variables['params']
  assert params.keys() == {'u', 'v'}
  for x, param in zip((u, v), (params['u'], params['v'])):
    assert param.shape == (40, 50) and param.dtype == jnp.float32
    assert abs(param.std() - 0.1) < 0.01
    assert x.dtype == matmul.state_dtype('bfloat16')
    np.testing.assert_array_equal(x, param.astype(x.dtype))
  assert (params['u'] != params['v']).all()


@pytest.mark.parametrize('memory', [0, 2])
@pytest.mark.parametrize(
  'form, kernel, axis, outputs',
  [
    ('bsd,dhk->bshk', [6, 2, 3], -1, (2, 3)),
    ('bshk,hkd->bsd', [2, 3, 6], (-2, -1), 6),
    ('bsd,df->bsf', [6, 4], -1, 4),
  ],
)
def test_gradients_of_products(form, kernel, axis, outputs, memory):
  """Those of a product on a CPU are its own; einsum has JAX's."""
  with jax.enable_x64(True):
    kernel = jnp.array(RNG.normal(size=kernel))
    summed = kernel.shape[:2] if form.startswith('bshk') else kernel.shape[:1]
    x = jnp.array(RNG.normal(size=[2, 5, *summed]))
    shared = dict(use_bias=False, param_dtype=jnp.float64, memory=memory)
    module = layers.Product(outputs, axis, **shared)

    def ours(x, kernel):
      return jnp.sin(module.apply({'params': {'kernel': kernel}}, x)).sum()

    def plain(x, kernel):
      return jnp.sin(jnp.einsum(form, x, kernel)).sum()

    found, expected = (jax.grad(f, (0, 1))(x, kernel) for f in (ours, plain))
  for one, other in zip(found, expected):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_no_gradient_of_memory_is_computed():
  """It is a constant; two thirds of the rows of keys and values are of it."""
  B, M, T, D = 2, 16, 8, 32
  x, old, kernel = jnp.ones([B, T, D]), jnp.ones([B, M, D]), jnp.ones([D, 2, 8])

  def rows(memory):
    """Those of the result of the only product, in the compiled program."""
    module = layers.Product((2, 8), use_bias=False, memory=memory)

    def loss(x, old, kernel, g):
      x = jnp.concatenate([old, x], axis=1)
      return (module.apply({'params': {'kernel': kernel}}, x) * g).sum()

    arguments = x, old, kernel, jnp.ones([B, M + T, 2, 8])
    text = jax.jit(jax.grad(loss)).lower(*arguments).compile().as_text()
    (found,) = re.findall(r'f32\[(\d+),\d+\]\S* dot\(', text)
    return int(found)

  assert rows(0) == B * (M + T)
  assert rows(M) == B * T


def test_terms_of_the_score():
  """Each by loops over queries, keys and heads; distance i + M - j."""
  B, T, S, H, K = 2, 3, 5, 2, 4
  q, k = RNG.normal(size=[B, T, H, K]), RNG.normal(size=[B, S, H, K])
  r, b = RNG.normal(size=[S, H, K]), RNG.normal(size=[S, H])
  u, v = RNG.normal(size=[H, K]), RNG.normal(size=[H, K])
  mask = np.tril(np.ones([T, S], bool), S - T)[None]
  expected = np.full([4, B, H, T, S], np.nan)
  for n, h, i in np.ndindex(B, H, T):
    for j in range(i + S - T + 1):
      row = S - 1 - (i + S - T - j)  # farthest first
      own = (
        q[n, i, h] @ k[n, j, h],
        q[n, i, h] @ r[row, h],
        u[h] @ k[n, j, h],
        v[h] @ r[row, h] + b[row, h],
      )
      expected[:, n, h, i, j] = np.array(own) / K**0.5
  with jax.enable_x64(True):
    distances = layers.Distances(*map(jnp.array, (r, u, v, b)))
    arrays = jnp.array(q), jnp.array(k)
    found = layers.score_terms(*arrays, distances, jnp.array(mask))
    plain = layers.score_terms(*arrays, None, jnp.array(mask))
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
  np.testing.assert_allclose(plain[0], expected[0], rtol=0, atol=1e-12)
  assert not np.nan_to_num(plain[1:]).any()
