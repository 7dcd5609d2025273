"""Transformers with other positions, against the direct formula."""

import functools
import math

import flax.traverse_util
import jax
import numpy as np
import pytest

from tests import direct
from tests.models.cases import CASES
from tests.models.small import B, T, make, text
from txl_jax import models
from txl_jax.configs import wt103_base
from txl_jax.models import base, config, ring_model, transformer_xl
from txl_jax.program import settings

# The models that are not Transformer-XL.
VARIANTS = {
  variant: dict(changes, name=name)
  for name, case in CASES.items()
  for variant, changes in case.variants.items()
}
LENGTHS = (2, 0, T)  # of row 1 in each segment, where they vary
# Row 0 has no padding in any case: the others without it are much the same.
UNPADDED = [x for case in CASES.values() for x in case.unpadded]


def test_every_other_transformer_has_a_case():
  kind = transformer_xl.TransformerXL
  there = {k for k, x in models.MODELS.items() if issubclass(x, kind)}
  assert {x['name'] for x in VARIANTS.values()} == there - {'transformer_xl'}


@pytest.mark.default_cases('vaswani_memory-False')
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
  elif not ring_model.rewindable(model):
    direct.assert_memory(memory, rows)


@pytest.mark.parametrize(
  'case',
  [
    x
    for x in VARIANTS
    if x in CASES and issubclass(models.MODELS[x].Config, config.Relative)
  ],
)
def test_biases_of_distances_are_not_rounded(case):
  """Their dtype is float32 in a model that computes in bfloat16."""

  def biases(model):
    layer = model.layers[0]
    shared = model.positions(300, False)
    return layer.attention.position_terms(layer.positions(shared)).b

  found = []
  for dtype in 'bfloat16', 'float32':
    model = make(**VARIANTS[case], dtype=dtype)
    params = direct.random_params(model)
    with jax.enable_x64(False):
      found.append(model.apply({'params': params}, method=biases))
  np.testing.assert_array_equal(*found)


@pytest.mark.default_cases('vaswani_memory')
@pytest.mark.parametrize(
  'case', [x for case in CASES.values() for x in case.gradient]
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


@pytest.mark.thorough
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
