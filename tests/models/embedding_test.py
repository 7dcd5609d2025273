"""Embedding and softmax against the formulas in float64."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from txl_jax.models import embedding
from txl_jax.models.config import Config
from txl_jax.models.embedding import Dropout, Embedding, WordDropout

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


SCALE = 2.0


def make(vocab_size, **keys):
  words = WordDropout(vocab_size, 0.0, 0.0)
  config = Config(**keys)
  return Embedding(vocab_size, config, SCALE, 1.0, Dropout(), words)


def vocabulary(tied, dtype='float64', temperature=1.0):
  """The module bound to PARAMS."""
  params = {k: PARAMS[k] for k in PARAMS if not (tied and k == 'output')}
  if dtype != 'float64':
    params = jax.tree.map(np.float32, params)
  module = make(V, d_model=D, tie_weights=tied, dtype=dtype)
  module = module.clone(temperature=temperature)
  return module.bind({'params': params})


def logits(tied):
  weights = PARAMS['table' if tied else 'output']
  return np.einsum('btd,vd->btv', H, weights) + PARAMS['bias']


@pytest.mark.parametrize('tied', [True, False])
def test_embeddings_logits_and_nll(x64, tied):
  bound, expected = vocabulary(tied), logits(tied)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-12)
  close(bound.embed(TOKENS, train=False), PARAMS['table'][TOKENS] * SCALE)
  close(bound.logits(H), expected)
  for t in 0.5, 1.0, 2.0:
    bound = vocabulary(tied, temperature=t)
    nll = np.stack([direct.nll(*row) for row in zip(expected / t, TARGETS)])
    close(bound.nll(H, TARGETS), np.where(TARGETS < 0, 0, nll))


def test_gradient_of_nll(x64):
  """d nll / d h = W^T (softmax - one hot), nothing where not scored."""
  loss = lambda h: vocabulary(False).nll(h, TARGETS).sum()
  grad = jax.grad(loss)(jnp.array(H))
  probs = direct.softmax(logits(False).transpose(2, 0, 1)).transpose(1, 2, 0)
  error = (probs - np.eye(V)[TARGETS]) * (TARGETS >= 0)[..., None]
  np.testing.assert_allclose(grad, error @ PARAMS['output'], rtol=1e-10)


def test_nll_of_large_logits():
  module = make(2, d_model=1, tie_weights=False)
  weights = np.array([[1e4], [-1e4]], np.float32)
  params = dict(table=weights, output=weights, bias=np.zeros(2, np.float32))
  bound, targets = module.bind({'params': params}), jnp.array([[0, 1]])
  h = jnp.ones([1, 2, 1])
  np.testing.assert_array_equal(bound.nll(h, targets), [[0, 2e4]])
  grad = jax.grad(lambda h: bound.nll(h, targets).sum())(h)
  np.testing.assert_array_equal(grad, [[[0], [2e4]]])


def test_bfloat16(matrix_units):
  """Products of bfloat16 numbers, float32 logits and nll."""
  module = vocabulary(True, 'bfloat16')
  assert module.embed(TOKENS, train=False).dtype == jnp.float32  # on a CPU
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
  fields = dict(d_model=16, init_std=0.1, dtype='bfloat16')
  params = fresh(make(1000, tie_weights=tied, **fields))
  assert params.pop('bias').tolist() == [0] * 1000
  assert params.keys() == ({'table'} if tied else {'table', 'output'})
  for x in params.values():
    assert x.shape == (1000, 16) and x.dtype == jnp.float32
    assert abs(x.std() - 0.1) < 0.003 and abs(x.mean()) < 0.004
  if not tied:
    assert (params['table'] != params['output']).all()


CUTS, SIZES = (3, 6), (3, 3, 5)


def adaptive(vocab_size=11, **changes):
  fields = dict(d_model=8, d_embed=8, cutoffs=CUTS, div_val=2)
  fields |= dict(tie_projs=(False, True, True), tail_order='descending')
  return make(vocab_size, **fields | changes)


def fresh(module):
  """Initial parameters: {name: array}."""
  h = jnp.zeros([1, 1, module.config.d_model])
  return module.init(jax.random.key(0), h, method='logits')['params']


def drawn(module):
  """Parameters that are large enough to matter, and compile nothing."""
  rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: fresh(module))
  draw = lambda x: rng.normal(size=x.shape).astype(np.float32)
  return jax.tree.map(draw, shapes)


NAMES = {'tail_weights', 'tail_biases'}
NAMES |= {f'{x}_{i}' for x in ('table', 'bias') for i in range(3)}
OUTPUTS = {f'output_{i}' for i in range(3)}


@pytest.mark.parametrize(
  'changes, names',
  [
    (dict(div_val=1), NAMES),
    (dict(div_val=1, tie_weights=False), NAMES | OUTPUTS),
    # Even the head's, of equal widths, and one of its own where untied.
    ({}, NAMES | {'proj_0', 'proj_1', 'proj_2', 'out_proj_0'}),
    (
      dict(tie_weights=False, tie_projs=(True, False, True)),
      NAMES | OUTPUTS | {'proj_0', 'proj_1', 'proj_2', 'out_proj_1'},
    ),
    (dict(div_val=1, d_embed=4), NAMES | {'proj_0', 'out_proj_0'}),
    (
      dict(div_val=1, d_embed=4, tie_projs=(False,) * 3),
      NAMES | {'proj_0', 'out_proj_0', 'out_proj_1', 'out_proj_2'},
    ),
  ],
)
def test_adaptive_parameters(changes, names):
  module = adaptive(**changes)
  params = jax.eval_shape(lambda: fresh(module))
  assert params.keys() == names
  width = lambda i: module.config.d_embed // module.config.div_val**i
  for i, size in enumerate(SIZES):
    assert params[f'table_{i}'].shape == (size, width(i))
    assert params[f'bias_{i}'].shape == (size,)
    for name in {f'proj_{i}', f'out_proj_{i}'} & names:
      assert params[name].shape == (width(i), 8)
  assert params['tail_weights'].shape == (2, width(0))


def test_tails_beyond_the_vocabulary():
  """They have a logit and no words, whatever the number of words in others."""
  for cutoffs in ((3, 6, 11, 20), (3, 6, 20, 21)):
    module = adaptive(cutoffs=cutoffs, div_val=1, tie_projs=())
    params = jax.eval_shape(lambda module=module: fresh(module))
    assert params.keys() == NAMES
    for i, size in enumerate(SIZES):
      assert params[f'table_{i}'].shape == (size, 8)
    assert params['tail_weights'].shape == (4, 8)
    assert params['tail_biases'].shape == (4,)


@pytest.mark.thorough
def test_adaptive_initialisation():
  params = fresh(
    adaptive(vocab_size=5000, d_model=128, d_embed=128, tie_weights=False)
  )
  for name, x in params.items():
    if 'bias' in name:
      assert not x.any()
      continue
    std = 0.01 if 'proj' in name else 0.02
    error = std / np.sqrt(x.size)
    assert abs(x.std() - std) < 5 * error, name
    assert abs(x.mean()) < 5 * error, name


@pytest.mark.thorough
def test_adaptive_module_uses_all_it_has():
  """Every parameter matters; nll is that of the logits, either way round."""
  tokens, targets = np.array([[0, 4, 10]]), np.array([[5, 2, 9]])
  own = dict(tie_weights=False, tie_projs=(False,) * 3)
  module, other = adaptive(**own), adaptive(**own, tail_order='ascending')
  params = drawn(module)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def run(params):
    bound, reverse = (x.bind({'params': params}) for x in (module, other))
    x = bound.embed(tokens, train=False)
    nll = bound.nll(x, targets)
    there = reverse.nll(x, targets)
    return nll.sum(), (nll, bound.logits(x), x, there)

  grads, (nll, logits, x, there) = run(params)
  chosen = np.take_along_axis(np.asarray(logits), targets[..., None], -1)
  np.testing.assert_allclose(nll, -chosen[..., 0], rtol=1e-4)
  np.testing.assert_allclose(np.exp(logits).sum(-1), 1, rtol=1e-5)
  row = params['table_1'][4 - CUTS[0]] @ params['proj_1'] * SCALE
  np.testing.assert_allclose(x[0, 1], row, rtol=1e-4)
  assert all(np.any(g) for g in jax.tree.leaves(grads))
  assert np.abs(there - nll).max() > 1e-3


@pytest.mark.thorough
def test_one_bin_with_projected_embeddings():
  module = adaptive(cutoffs=(), div_val=1, d_embed=4, tie_projs=(True,))
  params = drawn(module)
  assert params.keys() == {'table', 'proj', 'bias'}
  h = jnp.array(RNG.normal(size=[1, 2, 8]), jnp.float32)
  bound = module.bind({'params': params})
  scores = h @ params['proj'].T @ params['table'].T + params['bias']
  np.testing.assert_allclose(bound.logits(h), scores, rtol=1e-5)
  expected = -jax.nn.log_softmax(scores)[..., 3]
  nll = bound.nll(h, jnp.full([1, 2], 3))
  np.testing.assert_allclose(nll, expected, rtol=1e-5)
  x = bound.embed(jnp.array([[6]]), train=False)
  row = params['table'][6] @ params['proj'] * SCALE
  np.testing.assert_allclose(x[0, 0], row, rtol=1e-5)


@pytest.mark.default_cases('bfloat16-1e-11')
@pytest.mark.parametrize('tiny', [0.0, 1e-11])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_word_dropout(dtype, tiny):
  V, rate = 1000, 0.2
  tokens = RNG.integers(0, V, [8, 50])
  x = jnp.array(RNG.normal(size=[8, 50, 3]), dtype)
  module = WordDropout(V, rate, tiny)
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


def penalty(states, dropped, scored, size, change):
  weights = dict(activation_reg=size, temporal_activation_reg=change)
  run = functools.partial(embedding.penalty, types.SimpleNamespace(**weights))
  counts = scored.sum(), (scored[:, 1:] & scored[:, :-1]).sum()
  sums = jax.jit(run)(states, dropped, scored)
  return sum(x / max(n, 1) for x, n in zip(sums, counts, strict=True))


def test_penalty():
  """A target that is not scored in the middle breaks two pairs."""
  states, scored = np.zeros([2, 5, 2]), np.zeros([2, 5], bool)
  states[0] = np.array([1, 2, 4, 8, 16])[:, None] * [1, 3]
  states[1] = 7
  scored[0] = True, True, False, True, True
  squares = (3**2) * np.mean([1, 4, 64, 256]) * (1 + 9) / 2  # of 3 states
  changes = np.mean([1, 64]) * (1 + 9) / 2
  found = penalty(states, 3 * states, scored, 2.0, 0.5)
  np.testing.assert_allclose(found, 2.0 * squares + 0.5 * changes, rtol=1e-6)
  none = np.zeros([2, 5], bool)
  assert penalty(states, states, none, 2.0, 0.5) == 0


def test_the_penalty_of_one_position_has_no_change():
  x = np.ones([B, 1, 4], np.float32)
  assert penalty(x, x, np.ones(x.shape[:2], bool), 0.0, 1.0) == 0


def test_the_penalty_in_bfloat16_is_summed_in_float32():
  x = jnp.full([B, 400, 4], 0.1, jnp.bfloat16)
  out = penalty(x, x, np.ones(x.shape[:2], bool), 1.0, 1.0)
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, float(x[0, 0, 0]) ** 2, rtol=1e-5)
