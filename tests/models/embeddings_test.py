"""Embedding and softmax against the formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from txl_jax.models import embeddings

B, T, D, V = 2, 3, 4, 7
RNG = np.random.default_rng(0)
PARAMS = {
  'table': RNG.normal(size=[V, D]),
  'output': RNG.normal(size=[V, D]),
  'bias': RNG.normal(size=[V]),
}
H = RNG.normal(size=[B, T, D])
TOKENS = np.array([[0, 6, 3], [3, 3, 1]], np.int32)
TARGETS = np.array([[2, -1, 6], [-1, 0, 5]], np.int32)


def vocabulary(tied, dtype='float64'):
  """The module bound to PARAMS."""
  params = {k: PARAMS[k] for k in PARAMS if not (tied and k == 'output')}
  if dtype != 'float64':
    params = jax.tree.map(np.float32, params)
  module = embeddings.Vocabulary(V, D, tied, 0.02, jnp.dtype(dtype))
  return module.bind({'params': params})


def logits(tied):
  weights = PARAMS['table' if tied else 'output']
  return np.einsum('btd,vd->btv', H, weights) + PARAMS['bias']


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


@pytest.mark.parametrize('tied', [True, False])
def test_embed(x64, tied):
  out = vocabulary(tied).embed(TOKENS)
  expected = np.zeros([B, T, D])
  for b in range(B):
    for t in range(T):
      expected[b, t] = PARAMS['table'][TOKENS[b, t]] * 2  # sqrt(D)
  np.testing.assert_allclose(out, expected, rtol=1e-12)


@pytest.mark.parametrize('tied', [True, False])
def test_logits(x64, tied):
  out = vocabulary(tied).logits(H)
  np.testing.assert_allclose(out, logits(tied), rtol=1e-12)


@pytest.mark.parametrize('tied', [True, False])
def test_nll(x64, tied):
  out = vocabulary(tied).nll(H, TARGETS)
  for b in range(B):
    expected = direct.nll(logits(tied)[b], TARGETS[b])
    expected = np.where(TARGETS[b] < 0, 0, expected)
    np.testing.assert_allclose(out[b], expected, rtol=1e-12)


def test_gradient_of_nll(x64):
  """d nll / d h = W^T (softmax - one hot), nothing where not scored."""
  loss = lambda h: vocabulary(False).nll(h, TARGETS).sum()
  grad = jax.grad(loss)(jnp.array(H))
  probs = direct.softmax(logits(False).transpose(2, 0, 1)).transpose(1, 2, 0)
  error = (probs - np.eye(V)[TARGETS]) * (TARGETS >= 0)[..., None]
  np.testing.assert_allclose(grad, error @ PARAMS['output'], rtol=1e-10)


def test_nll_of_large_logits():
  module = embeddings.Vocabulary(2, 1, False, 0.02, jnp.float32)
  weights = np.array([[1e4], [-1e4]], np.float32)
  params = {
    'table': weights,
    'output': weights,
    'bias': np.zeros(2, np.float32),
  }
  nll = module.bind({'params': params}).nll(
    jnp.ones([1, 2, 1]), jnp.array([[0, 1]])
  )
  np.testing.assert_array_equal(nll, [[0, 2e4]])


def test_bfloat16():
  """Products of bfloat16 numbers, float32 logits and nll."""
  module = vocabulary(True, 'bfloat16')
  assert module.embed(TOKENS).dtype == jnp.bfloat16
  h = jnp.array(H, jnp.bfloat16)
  out = module.logits(h)
  assert out.dtype == jnp.float32
  # Rounded inputs, exact sums: nothing is lost after the rounding.
  table = jnp.array(PARAMS['table'], jnp.bfloat16)
  expected = np.einsum(
    'btd,vd->btv', np.asarray(h, np.float64), np.asarray(table, np.float64)
  )
  np.testing.assert_allclose(out, expected + PARAMS['bias'], atol=1e-5)
  assert module.nll(h, TARGETS).dtype == jnp.float32


@pytest.mark.parametrize('tied', [True, False])
def test_parameters(tied):
  module = embeddings.Vocabulary(1000, 16, tied, 0.1, jnp.bfloat16)
  params = module.init(
    jax.random.key(0), jnp.zeros([1, 1, 16]), method='logits'
  )['params']
  assert params.pop('bias').tolist() == [0] * 1000
  assert params.keys() == ({'table'} if tied else {'table', 'output'})
  for x in params.values():
    assert x.shape == (1000, 16) and x.dtype == jnp.float32
    assert abs(x.std() - 0.1) < 0.003 and abs(x.mean()) < 0.004
  if not tied:
    assert (params['table'] != params['output']).all()
