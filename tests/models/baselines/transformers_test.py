"""Transformers with other positions, against the direct formula."""

import jax
import numpy as np
import pytest

from tests import direct
from tests.models.cases import CASES
from tests.models.small import T, assert_direct_formula, assert_gradient, make
from txl_jax import models
from txl_jax.configs import wt103_base
from txl_jax.models import base, config, transformer_xl
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
  assert_direct_formula(make(**VARIANTS[case]), LENGTHS if varied else None)


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
  assert_gradient(make(**VARIANTS[case]), padded=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'name, more, expected',
  [
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
  found = sum(x.size for x in jax.tree.leaves(base.param_shapes(model)))
  assert found == expected


@pytest.mark.parametrize(
  'name, even', [('transformer_xl', True), ('vaswani', True), ('shaw', False)]
)
def test_sinusoids_have_an_even_width(name, even):
  config = models.MODELS[name].Config(d_model=15)
  assert (('d_model', 'even numbers') in [*config.problems()]) == even
