"""Attention maps and the terms of their scores, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.baselines.transformers_test import VARIANTS
from tests.models.every import NAMES
from tests.models.every import make as of_every
from tests.models.small import B, N, T, make, text
from txl_jax.models import MODELS, base, inspection, transformer_xl

RNG = np.random.default_rng(0)
CASES = {
  'default': dict(),
  'span': dict(same_length='M+1', pre_norm=True, memory_init='zeros'),
  'remat': dict(mem_len=2, untie_biases=True, remat='layer', dropatt=0.5),
  'no_memory': dict(mem_len=0),
  'tied': dict(tie_positions=True, memory_init='zeros'),
}
CASES |= {name: VARIANTS[name] for name in VARIANTS if name in MODELS}


def maps_by_hand(model, params, tokens, memory):
  """[N, H, T, S] of one row, and its new memory; keys of the row are last."""
  c, seen = model.config, []

  def watch(place, x):
    if place == 'probabilities':
      seen.append(x)  # [visible keys, H], of the layers' queries in order
    return x

  _, new = direct.segment(model, params, tokens, memory, watch)
  n, M = len(tokens), c.mem_len
  maps = np.zeros([c.n_layer, c.n_head, n, M + n])
  for at, x in enumerate(seen):
    layer, i = divmod(at, n)
    maps[layer, :, i, M + i + 1 - len(x) : M + i + 1] = x.T
  return maps, new


@pytest.mark.default_cases('transformer_xl', 'qrnn', 'al_rfou')
@pytest.mark.parametrize('case', CASES)
def test_attention_maps(case):
  """Of two segments, the second after a memory that is partly filled.

  They are the softmax of the sum of their terms.
  """
  model = make(**CASES[case])
  params = direct.random_params(model)
  tokens, _ = text(2, T)
  rows = [direct.init_memory(model) for _ in range(B)]
  kinds = inspection.MAPS, inspection.TERMS

  @jax.jit  # all in one program, for most of each is compiled for all
  def run(tokens, memory):
    variables = {'params': params}
    logits = model.apply(variables, tokens, memory, method='logits')
    read = functools.partial(inspection.read, model, variables, tokens, memory)
    return *map(read, kinds), logits

  with jax.enable_x64(True):
    memory = model.init_memory(B)
    for s in range(2):
      (found, after), (terms, _), (_, same) = run(tokens[s], memory)
      assert found.shape == (N, B, 2, T, model.config.mem_len + T)
      jax.tree.map(np.testing.assert_array_equal, after, same)
      for b in range(B):
        expected, rows[b] = maps_by_hand(model, params, tokens[s, b], rows[b])
        np.testing.assert_allclose(found[:, b], expected, rtol=0, atol=1e-10)
      memory = after
      assert_softmax_of(terms, found)
  relative = not model.ABSOLUTE
  assert np.nan_to_num(terms[:, 1:]).any() == relative


def assert_softmax_of(terms, maps):
  """That these are the maps of the sum of the terms; NaN is not visible."""
  assert terms.shape == (N, 4, *maps.shape[1:])
  total = np.asarray(terms).sum(1)
  seen = ~np.isnan(total)
  weights = np.exp(np.where(seen, total, -np.inf))
  expected = weights / weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(maps, expected, rtol=1e-9)
  assert (np.asarray(maps) > 0).tolist() == seen.tolist()


def test_maps_are_float32_and_cost_nothing_else():
  model, N = make(dtype='bfloat16', n_layer=3), 3
  params = jax.tree.map(np.float32, direct.random_params(model))
  tokens, _ = text(1, T)
  variables, memory = {'params': params}, model.init_memory(B)

  maps = functools.partial(inspection.read, model, variables, kind='maps')
  states = functools.partial(model.apply, variables, method='states')
  assert jax.eval_shape(maps, tokens[0], memory)[0].dtype == np.float32
  every = functools.partial(inspection.read, model, variables, kind='states')
  layers, _ = jax.eval_shape(every, tokens[0], memory)
  assert [x.shape for x in layers] == [(B, T, 8)] * (N + 1)
  shape = f'f32[{N},{B},2,{T},{T + 5}]'
  for run, shown in (maps, True), (states, False):
    jaxpr = str(jax.make_jaxpr(run)(tokens[0], memory))
    assert (shape in jaxpr) == shown


@pytest.mark.default_cases('lstm', 'qrnn', 'al_rfou')
@pytest.mark.parametrize('name', NAMES)
def test_models_say_whether_they_attend(name):
  with jax.enable_x64(True):
    model, params = of_every(name)
    if isinstance(model, base.Wrapper):
      model = model.model
    memory, tokens = model.init_memory(1), np.zeros([1, 2], np.int32)
    collections = jax.eval_shape(
      lambda: model.apply(
        {'params': params}, tokens, memory, method='states', mutable=['maps']
      )
    )[1]
  assert bool(collections) == model.ATTENDS


@pytest.mark.thorough
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
    terms = transformer_xl.PositionTerms(*map(jnp.array, (r, u, v, b)))
    arrays = jnp.array(q), jnp.array(k)
    found = inspection.score_terms(*arrays, terms, jnp.array(mask))
    plain = inspection.score_terms(*arrays, None, jnp.array(mask))
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
  np.testing.assert_allclose(plain[0], expected[0], rtol=0, atol=1e-12)
  assert not np.nan_to_num(plain[1:]).any()
