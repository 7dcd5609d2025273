"""State dicts of NVIDIA's version: names, figures, round trips."""

import numpy as np
import pytest

from tests.convert import originals
from tests.convert.original_test import convert, nll, text
from tests.refusing import refused
from txl_jax.convert.versions import layout, nvidia, original, sources

CASES = (
  'default',
  'pre_norm',
  'untied',
  'adaptive_narrow',
  'adaptive_div4',
  'adaptive_div4_untied',
  'shaw_pre_norm',
  'vaswani_pre_norm',
)


def named(a, state):
  """The tensors as its modules have them."""
  found = dict(state)
  projected = a['div_val'] > 1 or a['d_embed'] != a['d_model']
  for i in range(len(a['cutoffs']) + 1):
    bias = found.pop(f'crit.out_layers.{i}.bias', None)
    if bias is not None:
      found[f'crit.out_layers_biases.{i}'] = bias
    weight = found.pop(f'crit.out_layers.{i}.weight', None)
    if weight is not None and not a['tie_weight']:
      found[f'crit.out_layers_weights.{i}'] = weight
    if projected and a['tie_projs'][i]:
      del found[f'crit.out_projs.{i}']
    if f'word_emb.emb_projs.{i}' in found:
      same = found[f'word_emb.emb_projs.{i}']
      found[f'crit.shared_out_projs.{i}'] = same
  return found


@pytest.mark.default_cases('pre_norm')
@pytest.mark.parametrize('case', CASES)
def test_figures_and_tensors(case):
  a = originals.arguments(case)
  state = originals.state(a)
  theirs = named(a, state)
  assert sources.of_state(theirs) == 'nvidia'
  back = nvidia.to_original(theirs)
  # As its model_config says.
  more = {'tie_projs': a['tie_projs'], 'tie_weight': a['tie_weight']}
  found = convert(a, back, 'nvidia', more)
  tokens = text(a['n_token'])
  expected = originals.score(a, state, tokens, longer=1)
  ours = nll(found, tokens, a['tgt_len'])
  np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
  whole = original.from_params(found.params, found.section, a['n_token'])
  assert {*whole} == {*state}
  for name in state.keys() - {layout.FREQUENCIES}:
    np.testing.assert_array_equal(whole[name], state[name])


def test_what_does_not_fit():
  a = originals.arguments('adaptive_div4')
  theirs = named(a, originals.state(a))
  name = 'crit.shared_out_projs.1'
  theirs[name] = theirs[name] + np.float32(1)
  assert name in refused(nvidia.to_original, theirs)
