"""What Transformers share, against the direct formula."""

import functools

import jax
import numpy as np
import pytest

from tests import direct
from tests.models.every import NAMES
from tests.models.every import make as of_every
from tests.models.small import B, N, T, make, text

CASES = {
  'default': dict(),
  'cache': dict(cache_projections=True, clamp_len=3, unroll=2),
  'span': dict(same_length='M+1', pre_norm=True, memory_init='zeros'),
  'remat': dict(mem_len=2, untie_biases=True, remat='layer', dropatt=0.5),
  'no_memory': dict(mem_len=0),
}


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


@pytest.mark.parametrize('case', CASES)
def test_attention_maps(case):
  """Of two segments, the second after a memory that is partly filled."""
  check_maps(make(**CASES[case]), T)


def check_maps(model, T):
  params = direct.random_params(model)
  tokens, _ = text(2, T)
  rows = [direct.init_memory(model) for _ in range(B)]
  run = functools.partial(model.apply, {'params': params})
  with jax.enable_x64(True):
    maps = jax.jit(functools.partial(run, method='attention_maps'))
    memory = model.init_memory(B)
    for s in range(2):
      found, after = maps(tokens[s], memory)
      assert found.shape == (N, B, 2, T, model.config.mem_len + T)
      _, same = jax.jit(functools.partial(run, method='logits'))(
        tokens[s], memory
      )
      jax.tree.map(np.testing.assert_array_equal, after, same)
      for b in range(B):
        expected, rows[b] = maps_by_hand(model, params, tokens[s, b], rows[b])
        np.testing.assert_allclose(found[:, b], expected, rtol=0, atol=1e-10)
      memory = after


def test_maps_are_float32_and_cost_nothing_else():
  model = make(dtype='bfloat16')
  params = jax.tree.map(np.float32, direct.random_params(model))
  tokens, _ = text(1, T)
  variables, memory = {'params': params}, model.init_memory(B)

  def run(method):
    return functools.partial(model.apply, variables, method=method)

  maps, _ = jax.eval_shape(run('attention_maps'), tokens[0], memory)
  assert maps.dtype == np.float32
  shape = f'f32[{N},{B},2,{T},{T + 5}]'
  for method, shown in ('attention_maps', True), ('states', False):
    jaxpr = str(jax.make_jaxpr(run(method))(tokens[0], memory))
    assert (shape in jaxpr) == shown


@pytest.mark.parametrize('name', NAMES)
def test_models_say_whether_they_attend(name):
  with jax.enable_x64(True):
    model, _ = of_every(name)
  assert hasattr(model, 'attention_maps') == model.ATTENDS
