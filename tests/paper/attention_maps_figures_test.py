"""Attention by distance, against a loop over the maps of the model."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.models import inspection
from txl_jax.paper import attention_maps
from txl_jax.program.errors import UserError

V, N, H, T, M = 11, 2, 2, 4, 6
FIELDS = dict(name='transformer_xl', n_layer=N, d_model=8, n_head=H, d_head=3)
FIELDS |= dict(d_ff=8, mem_len=M)


def by_hand(model, params, tokens, start, context):
  """Every token's attention by distance: [tokens, N, H, S], by loops."""
  model_memory = model.init_memory(1)
  S, found = model.config.mem_len + T, []
  run = jax.jit(
    functools.partial(inspection.read, model, {'params': params}, kind='maps')
  )
  for at in range(start - context, len(tokens), T):
    segment = np.zeros([1, T], np.int32)
    here = tokens[at : at + T]
    segment[0, : len(here)] = here
    maps, model_memory = run(segment, model_memory)
    for i in range(len(here) if at >= start else 0):
      one = np.zeros([N, H, S])
      for j in range(S):
        d = i + model.config.mem_len - j
        if d >= 0:
          one[:, :, d] = maps[:, 0, :, i, j]
      found.append(one)
  return np.array(found)


@pytest.mark.default_cases('changes2-0-8-0')
@pytest.mark.parametrize('changes, start, context, read', [
  ({}, 9, 100, 8),
  (dict(same_length='M'), 8, 7, 4),
  (dict(mem_len=0), 0, 8, 0),
])  # fmt: skip
def test_means_and_a_passage(changes, start, context, read):
  model = models.build(FIELDS, V, **changes)
  params = jax.tree.map(jnp.float32, direct.random_params(model))
  model = model.at_test_time()
  tokens = np.random.default_rng(0).integers(0, V, 23).astype(np.uint8)
  seen = []
  found = attention_maps.measure(
    model, params, tokens, start, segment_len=T, context=context, passage=6,
    progress=seen.append,
  )  # fmt: skip
  expected = by_hand(model, params, tokens, start, read)
  assert len(expected) == 23 - start == seen[-1]
  np.testing.assert_allclose(found.mean, expected.mean(0), rtol=1e-5, atol=1e-6)
  passage = expected[:6].transpose(1, 2, 0, 3)
  np.testing.assert_allclose(found.passage, passage, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found.mean.sum(-1), 1, rtol=1e-5)
  if 'same_length' in changes:  # nothing beyond
    assert not found.mean[..., M:].any() and found.mean[..., M - 1].all()


@pytest.mark.thorough
@pytest.mark.parametrize('start, read', [(9, 8), (0, 0)])
def test_terms_of_the_scores(start, read):
  """Centred over what each query sees; the mean where any sees that far."""
  model = models.build(FIELDS, V).at_test_time()
  params = jax.tree.map(jnp.float32, direct.random_params(model))
  tokens = np.random.default_rng(0).integers(0, V, 23).astype(np.uint8)
  found = attention_maps.measure(
    model, params, tokens, start, segment_len=T, context=read, passage=1
  )
  show = functools.partial(inspection.read, model, {'params': params})
  memory, each = model.init_memory(1), [[] for _ in range(M + T)]
  spreads = []
  for at in range(start - read, len(tokens), T):
    here = np.pad(tokens[at : at + T], (0, max(0, at + T - len(tokens))))[None]
    terms, memory = show(here, memory, 'terms')
    for i in range(min(T, len(tokens) - at) if at >= start else 0):
      own = np.asarray(terms[:, :, 0, :, i], np.float64)  # [N, 4, H, S]
      seen = np.isfinite(own[0, 0, 0])
      own -= own[..., seen].mean(-1, keepdims=True)
      spreads.append(own[..., seen].std(-1))
      for j in np.flatnonzero(seen):
        each[i + M - j].append(own[..., j])
  expected = np.stack([np.mean(x, axis=0) for x in each], -1)
  expected = np.moveaxis(expected, 1, 0)
  assert found.terms.shape == (4, N, H, M + T)
  np.testing.assert_allclose(found.terms, expected, rtol=1e-4, atol=1e-5)
  spread = np.moveaxis(np.mean(spreads, axis=0), 1, 0)
  np.testing.assert_allclose(found.spread, spread, rtol=1e-4)


def test_a_model_without_attention():
  model = CausalConvolution(V, CausalConvolution.Config())
  with pytest.raises(UserError, match='CausalConvolution has no attention'):
    attention_maps.measure(
      model, {}, np.zeros(9), 0, segment_len=4, context=0, passage=1
    )


@pytest.mark.parametrize(
  'S, most', [(1, 4), (4, 4), (5, 4), (64, 64), (65, 64)]
)
def test_ranges(S, most):
  maps = np.random.default_rng(0).random([2, S])
  beyond = np.pad(maps, ((0, 0), (0, 9)))  # distances that nothing looks at
  borders = attention_maps.edges(beyond, most)
  assert borders[0] == 0 and borders[-1] == S and len(borders) <= most + 1
  assert len({*np.diff(borders)[:-1]}) <= 1
  expected = [maps[:, a:b].sum(1) for a, b in itertools.pairwise(borders)]
  np.testing.assert_allclose(
    attention_maps.in_ranges(maps, borders), np.stack(expected, 1)
  )
