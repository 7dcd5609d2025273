"""State dicts of the original code: figures, round trips, what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.convert import originals
from tests.refusing import refused
from txl_jax import models
from txl_jax.convert import convert_options, infer, weights
from txl_jax.convert.versions import layout, original
from txl_jax.convert.versions.sources import SOURCES

# What a bare state dict does not say.
SAID = 'tgt_len', 'mem_len', 'clamp_len', 'same_length', 'pre_lnorm'


def told(a):
  found = {name: a[name] for name in SAID}
  if a['attn_type'] == 2:
    found['n_head'] = a['n_head']
  if a['div_val'] == 1 and a['cutoffs']:
    found['cutoffs'] = a['cutoffs']
  return convert_options.known(found, 'the test')


def convert(a, state, source='original', more=()):
  known = {**told(a), **dict(more)}
  return weights.of_state(state, known, source, None)


def nll(found, tokens, T):
  """Ours, float32 [n] of tokens [n + 1] in segments of T."""
  model = models.build(found.fields, len(found.vocabulary))
  memory = model.init_memory(1)
  run = jax.jit(
    lambda *args: model.apply({'params': found.params}, *args, train=False)
  )
  pieces = []
  for start in range(0, len(tokens) - 1, T):
    inputs = tokens[start : start + T][: len(tokens) - 1 - start]
    targets = tokens[start + 1 :][: len(inputs)]
    out = run(inputs[None], targets[None], memory)
    memory = out.memory
    pieces.append(out.nll[0])
  return np.concatenate(pieces)


def text(V, segments=4, T=4, seed=1):
  rng = np.random.default_rng(seed)
  return rng.integers(V, size=segments * T + 1).astype(np.int32)


@pytest.mark.default_cases('adaptive_div4')
@pytest.mark.parametrize('case', originals.CASES)
def test_figures_are_those_of_the_formulas(case):
  a = originals.arguments(case)
  state = originals.state(a)
  tokens = text(a['n_token'], T=a['tgt_len'])
  found = convert(a, state)
  expected = originals.score(a, state, tokens)
  ours = nll(found, tokens, a['tgt_len'])
  np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('case', originals.CASES)
def test_round_trip_is_exact(case):
  a = originals.arguments(case)
  state = originals.state(a)
  found = convert(a, state)
  back = original.from_params(found.params, found.section, a['n_token'])
  assert {*back} == {*state}
  for name, x in state.items():
    assert back[name].dtype == np.float32
    if name != layout.FREQUENCIES:
      np.testing.assert_array_equal(back[name], x, name)
  np.testing.assert_allclose(
    back.get(layout.FREQUENCIES, 0), state.get(layout.FREQUENCIES, 0), 1e-6
  )
  given = layout.arguments(found.section)
  for name in given.keys() & a.keys() - {'tie_projs'}:
    assert given[name] == (list(a[name]) if name == 'cutoffs' else a[name])
  if 'word_emb.emb_projs.0' in state:
    assert found.fields['tie_projs'] == a['tie_projs']
  again = original.to_params(back, found.section, a['n_token'])
  jax.tree.map(np.testing.assert_array_equal, again, found.params)


@pytest.mark.default_cases('shaw', 'vaswani_untied')
@pytest.mark.parametrize('case', originals.CASES)
def test_parameters_are_those_of_the_model(case):
  a = originals.arguments(case)
  found = convert(a, originals.state(a))
  model = models.build(found.fields, a['n_token'])
  tokens = np.zeros([1, 1], np.int32)
  fresh = jax.eval_shape(
    lambda: model.init(
      jax.random.key(0), tokens, tokens, model.init_memory(1), train=False
    )
  )['params']
  shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  assert shapes(found.params) == shapes(fresh)
  fields = found.fields
  for name in 'n_layer', 'n_head', 'd_head', 'd_model', 'div_val', 'cutoffs':
    assert fields[name] == a[name]
  assert fields['d_ff'] == a['d_inner']
  assert fields['tie_weights'] == a['tie_weight']
  assert fields['pre_norm'] == a['pre_lnorm']
  assert layout.ATTENTION[fields['name']] == a['attn_type']


@pytest.mark.thorough
def test_what_other_versions_do_makes_other_figures():
  a = originals.arguments('adaptive_div4') | {'same_length': True}
  state, figures = originals.state(a), {}
  tokens = text(a['n_token'])
  for source, version in SOURCES.items():
    switches = dict(
      descending=version.tail_order == 'descending',
      zeros=version.memory_init == 'zeros',
      eps=version.ln_eps,
      longer=int(version.span == 'M+1'),
    )
    figures[source] = originals.score(a, state, tokens, **switches)
    ours = nll(convert(a, state, source), tokens, a['tgt_len'])
    np.testing.assert_allclose(ours, figures[source], rtol=0, atol=1e-5)
  for one, other in itertools.combinations(figures.values(), 2):
    assert np.abs(one - other).max() > 0.01


def test_untied_biases_of_each_layer():
  a = originals.arguments('default')
  state = originals.state(a)
  for bias in 'r_w_bias', 'r_r_bias':
    shared = state.pop(bias)
    for n in range(a['n_layer']):
      state[f'layers.{n}.dec_attn.{bias}'] = shared + np.float32(n)
  found = convert(a, state)
  assert found.fields['untie_biases']
  tokens = text(a['n_token'])
  expected = originals.score(a, state, tokens)
  np.testing.assert_allclose(nll(found, tokens, 4), expected, atol=1e-5)
  back = original.from_params(found.params, found.section, a['n_token'])
  for name, x in state.items():
    if name != layout.FREQUENCIES:
      np.testing.assert_array_equal(back[name], x)


def test_tensors_that_do_not_fit_are_named_all_of_them():
  a = originals.arguments('default')
  state = originals.state(a)
  del state['layers.0.dec_attn.o_net.weight'], state['crit.out_layers.0.bias']
  state['layers.0.more'] = state['other'] = np.zeros(3, np.float32)
  state['r_r_bias'] = np.zeros([2, 4], np.float32)
  state['layers.1.pos_ff.layer_norm.bias'] = np.zeros([9], np.float32)
  said = refused(convert, a, state)
  for name in (
    'missing: ',
    'crit.out_layers.0.bias',
    'layers.0.dec_attn.o_net.weight',
    'unexpected: layers.0.more, other',
    'r_r_bias is [2, 4], expected [2, 3]',
    'layers.1.pos_ff.layer_norm.bias is [9], expected [8]',
  ):
    assert name in said


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value):
  a = originals.arguments('default')
  state = originals.state(a)
  name = 'layers.1.pos_ff.CoreNet.3.weight'
  state[name][3, 2] = value
  said = refused(convert, a, state)
  assert said == f'{name} has values that are not finite'
  for name, kind in ('r_w_bias', np.int32), ('r_r_bias', bool):
    state[name] = np.zeros([2, 3], kind)
  said = 'r_w_bias is int32, not floating point; r_r_bias is bool, not fl'
  assert refused(convert, a, state).startswith(said)
  state |= originals.state(a) | {'r_w_bias': jnp.ones([2, 3], jnp.bfloat16)}
  assert convert(a, {k: np.asarray(x) for k, x in state.items()})


def test_what_files_say_in_their_own_way():
  """The original appends V to the cutoffs; ours has no dropout of 1."""
  a, more = originals.arguments('adaptive'), {'cutoffs': (7, 15, 31)}
  found = convert(a, originals.state(a), more=more | {'dropout': 1.0})
  assert {'cutoffs': (7, 15), 'dropout': 0.999}.items() <= found.fields.items()


@pytest.mark.parametrize(
  'case, more, word',
  [
    ('vaswani', {'n_head': 4}, '--n_head is 4; allowed: divisors of 6'),
    ('vaswani', {'mem_len': 3}, '--mem_len=0'),
    ('al_rfou', {'mem_len': 3}, '--mem_len=0'),
    ('adaptive', {'cutoffs': (7,)}, 'crit.cluster_weight is [2, 8]'),
    ('adaptive', {'cutoffs': (7, 15, 40)}, 'numbers below 31'),
    ('adaptive', {'cutoffs': (7, 15, 31, 31)}, 'numbers below 31'),
    ('adaptive', {'cutoffs': (15, 7)}, 'model.cutoffs is (15, 7)'),
    ('default', {'n_layer': 3}, 'missing: layers.2.'),
    ('untied', {'tie_weight': True}, 'crit.out_layers.0.weight is not'),
  ],
)
def test_options_that_do_not_fit(case, more, word):
  a = originals.arguments(case)
  said = refused(convert, a, originals.state(a), 'original', more)
  assert word in said


def test_cutoffs_and_heads_are_asked_for_by_their_flags():
  for case, mem_len, flag in (
    ('adaptive', 5, 'cutoffs'),
    ('vaswani', 0, 'n_head'),
  ):
    state = originals.state(originals.arguments(case))
    known = convert_options.known({'mem_len': mem_len}, 'x')
    said = refused(weights.of_state, state, known, 'original', None)
    assert f'--{flag}' in said


def test_models_that_the_original_has_not():
  Config = models.MODELS['transformer_xl'].Config
  al_rfou = models.MODELS['al_rfou'].Config
  for c, said in (
    (Config(tie_positions=True), 'tie_positions is True; allowed: False'),
    *((Config(cutoffs=(3, 7, n)), f'cutoffs is (3, 7, {n})') for n in (9, 12)),
    (models.MODELS['lstm'].Config(), "name is 'lstm'; allowed: transformer_xl"),
    *((al_rfou(d_model=8, n_head=2, d_head=n), 'd_head is') for n in (3, 5)),
  ):
    assert refused(original.from_params, {}, c, 9).startswith(f'model.{said}')


@pytest.mark.parametrize(
  'case, lengths', [('shaw', (4, 5)), ('default', (512,) * 2)]
)
def test_a_state_dict_alone_has_lengths(case, lengths):
  state = originals.state(originals.arguments(case))
  found = weights.of_state(state, {}, 'original', None)
  assert (found.keys['train.segment_len'], found.fields['mem_len']) == lengths
  assert (found.fields['pre_norm'], found.fields['clamp_len']) == (False, 0)


def test_something_else():
  said = refused(convert, originals.DEFAULTS, {'fc.weight': np.zeros([2, 2])})
  assert 'word_emb.emb_layers.0.weight' in said and 'fc.weight' in said
  found = refused(convert, originals.DEFAULTS, dict.fromkeys('abcdef'))
  assert found.endswith(' is missing; found: a, b, c, d, e')
  assert refused(convert, originals.DEFAULTS, {}).endswith('found: nothing')
  names = {'word_emb.emb_layers.0.weight': np.zeros([3, 2], np.float32)}
  known = infer.model_of, names, {}, SOURCES['original']
  assert 'missing' in refused(*known)


def test_tables_and_biases_of_other_shapes():
  a = originals.arguments('two_bins')
  state = originals.state(a)
  table = 'word_emb.emb_layers.1.weight'
  assert infer.vocab_size(state) == 31
  assert infer.vocab_size({**state, table: np.zeros([])}) == 7
  for width, word in (0, 'is [24, 0], expected [24, 1],'), (9, 'unexpected: '):
    said = refused(convert, a, {**state, table: np.zeros([24, width])})
    assert said.startswith('tensors do not fit ') and word in said
  assert not any(original.same(np.ones(n), np.ones(4 - n)) for n in (1, 3))
  more = {'r_w_bias': np.zeros([2, 3, 1]), 'r_r_bias': np.zeros(3)}
  said = refused(convert, a, {**state, **more})
  assert said == 'tensor r_w_bias has 3 axes; allowed: 2'
