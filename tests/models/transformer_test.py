"""What Transformers share, against the direct formula."""

import functools
import math

import flax.traverse_util
import jax
import numpy as np
import pytest

from tests import direct
from tests.models.every import NAMES
from tests.models.every import make as of_every
from tests.models.small import B, N, T, make, text
from txl_jax import models
from txl_jax.configs import wt103_base
from txl_jax.models import base, transformer
from txl_jax.program import settings

CASES = {
  'default': dict(),
  'span': dict(same_length='M+1', pre_norm=True, memory_init='zeros'),
  'remat': dict(mem_len=2, untie_biases=True, remat='layer', dropatt=0.5),
  'no_memory': dict(mem_len=0),
  'tied': dict(tie_positions=True, memory_init='zeros'),
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


# The models that are not Transformer-XL.
VARIANTS = {
  'shaw': dict(name='shaw', table_len=9),
  # Distances beyond the table, and beyond clamp_len.
  'shaw_beyond': dict(name='shaw', table_len=4, unroll=2, pre_norm=True),
  'shaw_clamped': dict(
    name='shaw', table_len=6, clamp_len=3, mem_len=3, same_length='M'
  ),
  'shaw_clamped_before_the_table': dict(name='shaw', table_len=9, clamp_len=3),
  'shaw_all_clamped': dict(name='shaw', table_len=4, clamp_len=7),
  'shaw_ring': dict(name='shaw', table_len=5, longest=T),
  'shaw_zeros': dict(name='shaw', table_len=7, memory_init='zeros', longest=7),
  'shaw_unbiased': dict(name='shaw', table_len=9, biases=False),
  'shaw_unbiased_ring': dict(
    name='shaw', table_len=5, biases=False, longest=T, pre_norm=True
  ),
  'vaswani': dict(name='vaswani', unroll=2),
  'vaswani_pre_norm': dict(name='vaswani', pre_norm=True),
  'vaswani_plain_queries': dict(
    name='vaswani', pre_norm=True, norm_queries=False
  ),
  'vaswani_memory': dict(name='vaswani', mem_len=5),
  # At test time, too, it has no ring: its scores know no distances.
  'vaswani_memory_pre_norm': dict(
    name='vaswani', mem_len=3, pre_norm=True, longest=T
  ),
  'al_rfou': dict(name='al_rfou', table_len=7, unroll=2),
  'al_rfou_pre_norm': dict(name='al_rfou', table_len=4, pre_norm=True),
  'al_rfou_plain_queries': dict(
    name='al_rfou', table_len=4, pre_norm=True, norm_queries=False
  ),
}
LENGTHS = (2, 0, T)  # of row 1 in each segment, where they vary
# Row 0 has no padding in any case: the others without it are much the same.
UNPADDED = 'shaw', 'shaw_ring', 'vaswani', 'vaswani_memory', 'al_rfou'


def test_every_other_transformer_has_a_case():
  kind = transformer.Transformer
  there = {k for k, x in models.MODELS.items() if issubclass(x, kind)}
  assert {x['name'] for x in VARIANTS.values()} == there - {'transformer_xl'}


@pytest.mark.parametrize(
  'case, varied',
  [(case, True) for case in VARIANTS]
  + [
    pytest.param(case, False, marks=[pytest.mark.slow] * (case not in UNPADDED))
    for case in VARIANTS
  ],
)
def test_direct_formula(case, varied):
  """Three segments, each row by itself; padded rows without their padding."""
  model = make(**VARIANTS[case])
  params = direct.random_params(model)
  tokens, targets = text(3, T)
  lengths = [np.array([T, n], np.int32) for n in LENGTHS] if varied else None
  kept = np.arange(T) < np.stack(lengths or [[T] * B] * 3)[..., None]
  targets = np.where(kept, targets, -1)
  segments = [
    (tokens[s], targets[s], lengths and lengths[s], [False] * B)
    for s in range(3)
  ]
  expected, rows = direct.score_rows(model, params, segments)
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(model.apply, train=False))
    memory = model.init_memory(B)
    for s in range(3):
      more = dict(lengths=segments[s][2])
      out = run({'params': params}, *segments[s][:2], memory, **more)
      memory = out.memory
      np.testing.assert_allclose(out.nll, expected[s], rtol=0, atol=1e-10)
  if not model.remembers():
    assert memory == ()
  elif not model.rewinds():
    direct.assert_memory(memory, rows)


@pytest.mark.parametrize(
  'case',
  ['shaw_beyond', 'shaw_unbiased', 'vaswani', 'vaswani_memory', 'al_rfou'],
)
def test_gradient(case):
  """Of a padded segment, against differences of the direct formula."""
  model = make(**VARIANTS[case])
  params = direct.random_params(model)
  tokens, targets = text(2, T)
  lengths = np.array([T, T - 1], np.int32)
  targets[1, 1, -1] = -1
  with jax.enable_x64(True):

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient(params, tokens, targets, memory, lengths):
      out = model.apply(
        {'params': params},
        tokens,
        targets,
        memory,
        train=False,
        lengths=lengths,
      )
      return out.nll.sum(), out.memory

    whole = np.full(B, T, np.int32)
    start = model.init_memory(B)
    _, memory = gradient(params, tokens[0], targets[0], start, whole)
    grads, _ = gradient(params, tokens[1], targets[1], memory, lengths)
    grads = jax.tree.map(np.asarray, grads)
  first = tokens[0], targets[0], None, [False] * B
  _, rows = direct.score_rows(model, params, [first])

  def slow(params):
    total = 0.0
    for b, n in enumerate(lengths):
      logits, _ = direct.segment(model, params, tokens[1, b, :n], rows[b])
      total += direct.nll(logits, targets[1, b, :n]).sum()
    return total

  rng, step = np.random.default_rng(0), 1e-6
  flat = flax.traverse_util.flatten_dict(params)
  for path, grad in flax.traverse_util.flatten_dict(grads).items():
    direction = rng.normal(size=grad.shape)
    moved = lambda s, path=path, direction=direction: slow(
      flax.traverse_util.unflatten_dict(
        {**flat, path: flat[path] + s * direction}
      )
    )
    expected = (moved(step) - moved(-step)) / (2 * step)
    np.testing.assert_allclose(
      np.sum(grad * direction), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
  'name, more, expected',
  [
    pytest.param('transformer_xl', {}, 151_107_538, marks=pytest.mark.slow),
    ('shaw', dict(table_len=300), 150_439_678),
    pytest.param('vaswani', {}, 148_417_118, marks=pytest.mark.slow),
    ('al_rfou', dict(table_len=150), 149_401_118),
  ],
)
def test_parameter_counts_of_the_ablations(name, more, expected):
  """Of wt103_base with other positions, counted on the published code."""
  fields = wt103_base.get_config().model.to_dict() | {'name': name} | more
  known = settings.keys(models.MODELS[name].Config)
  fields = {k: x for k, x in fields.items() if k in known}
  model = models.build(fields, 267_735)
  init = functools.partial(base.init_params, model)
  shapes = jax.eval_shape(init, jax.random.key(0))
  found = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
  assert found == expected


@pytest.mark.parametrize(
  'name, even', [('transformer_xl', True), ('vaswani', True), ('shaw', False)]
)
def test_sinusoids_have_an_even_width(name, even):
  config = models.MODELS[name].Config(d_model=15)
  assert (('d_model', 'even numbers') in [*config.problems()]) == even


MAPPED = CASES | {
  name: VARIANTS[name] for name in ('shaw', 'vaswani', 'al_rfou')
}


@pytest.mark.parametrize('case', MAPPED)
def test_attention_maps(case):
  """Of two segments, the second after a memory that is partly filled.

  They are the softmax of the sum of their terms.
  """
  model = make(**MAPPED[case])
  params = direct.random_params(model)
  tokens, _ = text(2, T)
  rows = [direct.init_memory(model) for _ in range(B)]
  methods = 'attention_maps', 'attention_terms', 'logits'

  @jax.jit  # all in one program, for most of each is compiled for all
  def run(tokens, memory):
    variables = {'params': params}
    return [model.apply(variables, tokens, memory, method=m) for m in methods]

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
  relative = model.config.name in ('transformer_xl', 'shaw')
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
