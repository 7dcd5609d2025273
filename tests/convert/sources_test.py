"""What files of each version leave to their code, and what contradicts them."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

from tests.convert import originals, program
from tests.convert.hugging_face_test import copy
from tests.convert.nvidia_test import named
from tests.refusing import refused
from txl_jax.convert import infer, lengths, read_weights, vocabularies, weights
from txl_jax.convert.formats import safe_file, torch_file
from txl_jax.convert.versions import names, nvidia
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import pickles

FLAGS = 'pre_lnorm', 'mem_len', 'clamp_len', 'same_length'


def state_of(case='default'):
  return originals.state(originals.arguments(case))


def saved(folder, state):
  torch_file.write(folder / 'model.pt', state)
  return folder / 'model.pt'


def stub(kind=pickles.Stub, args=(), state=None):
  made = kind(*args)
  made.__setstate__(state)
  return made


def test_options_of_a_module_that_was_wrapped():
  """As by DataParallel, which has attributes of its own."""
  tensor = pickles.Tensor()
  layer = {'pre_lnorm': True, '_parameters': {'w': tensor}, '_modules': {}}
  inner = stub(state=layer | {'mem_len': 5})
  outer = stub(state={'dim': 0, '_modules': {'module': inner}})
  outer = stub(state={'_modules': {'module': outer}})
  named, found = torch_file._model(outer)
  assert [*named] == ['module.module.w']
  assert found == {'pre_lnorm': True, 'mem_len': 5, 'dim': 0}


def test_options_of_transformers_and_fairseq():
  """The config of a module, and the model's part of a `cfg`."""
  config = stub(state={'mem_len': 5, 'cutoffs': [3]})
  modules = {'_parameters': {'w': pickles.Tensor()}, '_modules': {}}
  root = stub(state=modules | {'config': config})
  assert torch_file._model(root)[1] == {'mem_len': 5, 'cutoffs': [3]}
  root = {'args': None, 'cfg': {'model': {'n_head': 2}, 'task': {'x': 1}}}
  root['model'] = {'decoder.model.w': pickles.Tensor()}
  named, found = torch_file._model(root)
  assert [*named] == ['decoder.model.w'] and found['cfg'] == {'n_head': 2}


@pytest.mark.parametrize(
  'case, gone',
  [
    ('untied', 'crit.out_layers.0.weight'),
    ('untied', 'crit.out_projs.0'),
    ('adaptive_div4_untied', 'crit.out_projs.1'),
    ('default', 'crit.out_layers.0.weight'),
  ],
)
def test_the_original_has_copies_of_what_is_tied(case, gone, tmp_path):
  state = state_of(case)
  del state[gone]
  path = saved(tmp_path, state)
  assert f'missing: {gone}' in refused(read_weights.read, path)
  told = {'tie_weight': True, 'tie_projs': [True] * gone.count('projs.0')}
  if case == 'default':
    assert read_weights.read(path, flag_options=told).fields['tie_weights']


def test_projections_of_nvidia_are_tied_where_it_shares_them():
  state = state_of('adaptive_div4_untied')
  for i in range(3):
    table = state[f'word_emb.emb_projs.{i}']
    state[f'crit.shared_out_projs.{i}'] = table
  del state['crit.out_projs.1']
  found = nvidia.to_original(state)
  fields, _ = infer.model_of(found, {}, SOURCES['nvidia'])
  assert fields['tie_projs'] == (False, True, False)
  known = {'tie_projs': (False,) * 3}
  call = weights.of_state, found, known, 'nvidia', None
  assert 'missing: crit.out_projs.1' in refused(*call)


@pytest.mark.parametrize(
  'one, other',
  [
    ('r_w_bias', 'module.r_w_bias'),
    ('transformer.layers.0.x', 'layers.0.x'),
    ('crit.out_layers_weights.0', 'crit.out_layers.0.weight'),
  ],
)
def test_names_that_become_one(one, other, tmp_path):
  state = {'word_emb.emb_layers.0.weight': np.zeros([3, 2], np.float32)}
  if one.startswith('transformer'):
    (tmp_path / 'config.json').write_text('{}')
    state = {f'transformer.{k}': x for k, x in state.items()}
  if one.startswith('crit'):
    state['crit.out_layers_biases.0'] = np.zeros(3, np.float32)
  state |= dict.fromkeys((one, other), np.ones(2, np.float32))
  said = refused(read_weights.read, saved(tmp_path, state))
  assert f'{one}, {other} are both named ' in said


def test_names_of_tensors_have_a_length():
  assert names.is_name('x') and names.is_name('x' * 1000)
  assert not any(map(names.is_name, ('', 'x' * 1001, 'x\0', b'x', 3)))


def test_a_list_of_very_many_names_is_cut():
  assert names.listed('a' * 40) == ', '.join('a' * 40)
  assert names.listed('a' * 41) == f'{", ".join("a" * 40)} and 1 more'


def hugging_face(tmp_path, *gone):
  folder = copy('hf_div4', tmp_path)
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  path.write_text(json.dumps({k: config[k] for k in config.keys() - {*gone}}))
  return folder


def test_keys_that_are_not_in_a_config_have_its_codes_defaults(tmp_path):
  rates = 'dropout', 'dropatt'
  folder = hugging_face(tmp_path, *FLAGS, *rates, 'layer_norm_epsilon')
  found = read_weights.read(folder)
  expected = {'mem_len': 1600, 'clamp_len': 1000, 'same_length': 'M'}
  expected |= {'pre_norm': False, 'ln_eps': 1e-5, 'dropout': 0.1, 'dropatt': 0}
  assert expected.items() <= found.fields.items()
  assert found.warnings[-1] == 'not specified, guessed: tgt_len'


def test_weights_of_hugging_face_without_a_config(tmp_path):
  folder = hugging_face(tmp_path)
  (folder / 'config.json').unlink()
  found = read_weights.read(folder)
  guessed = 'pre_lnorm, tgt_len, mem_len, clamp_len, same_length'
  assert found.warnings[-1] == f'not specified, guessed: {guessed}'
  (folder / 'config.json').write_text('[')
  assert 'config.json is not valid JSON' in refused(read_weights.read, folder)


def test_names_that_a_terminal_would_obey(tmp_path):
  path = tmp_path / 'x.safetensors'
  names = ['a\x1b[2Jb', 'b\x1b']
  safetensors.numpy.save_file(dict.fromkeys(names, np.ones(2)), path)
  said = refused(safe_file.read, path)
  assert '\x1b' not in said and r'\x1b[2J' in said


def test_a_bad_vocabulary_in_a_checkpoint_of_nvidia(tmp_path, monkeypatch):
  a = originals.arguments('default')
  theirs = named(a, originals.state(a))
  path = saved(tmp_path, theirs)
  safe = tmp_path / 'model.safetensors'
  safetensors.numpy.save_file(theirs, safe)
  for one in path, safe:
    assert read_weights.read(one).warnings[0].startswith('no vocabulary: ')
  contents = Words(('a', 'b'))
  monkeypatch.setattr(vocabularies, 'within', lambda _: contents)
  assert '2 symbols, the model 31' in refused(read_weights.read, path)


@pytest.mark.parametrize(
  'case, gone, word',
  [
    ('default', 'r_w_bias', 'model: missing: r_w_bias'),
    ('default', 'r_[wr]_bias', 'tensor r_w_bias or r_r_bias or layers.0.dec_'),
    ('shaw', 'r_w_bias', 'model: missing: r_w_bias'),
    ('default', r'layers\..\.pos_ff.*0.weight', 'missing: layers.0.pos_ff'),
    ('default', 'layers.0.pos_ff.CoreNet.0.weight', 'missing: layers.0.pos_ff'),
    (
      'default',
      'layers.{}.dec_attn.r_net.weight',
      'tensor layers.0.dec_attn.q_net.weight is missing',
    ),
    ('shaw', 'r_bias', 'unexpected: r_w_bias'),
    ('vaswani', 'layers.{}.dec_attn.q_net.weight', 'layers.0.dec_attn.q_net.w'),
  ],
)
def test_tensors_that_tell_the_model_are_named_as_they_are(
  case, gone, word, tmp_path
):
  state = state_of(case)
  for name in [*state]:
    if re.fullmatch(gone.format('.'), name):
      del state[name]
  said = refused(read_weights.read, saved(tmp_path, state), {'n_head': 2})
  assert word in said and '\\' not in said and 'd+' not in said


def test_guesses_are_told_with_their_flags(tmp_path):
  path = saved(tmp_path, state_of())
  done = program.run(path, tmp_path / 'run', '--tgt_len=4', '--mem_len=5')
  assert done.returncode == 0
  line = 'text:      put your text at this path or set --config.data.path'
  assert line in done.stdout
  lines = done.stderr.splitlines()
  assert lines[0].startswith('warning: no vocabulary: tokens are ids; ')
  guessed = 'pre_lnorm, clamp_len, same_length'
  assert f'not specified, guessed: {guessed}' in lines[1]
  assert len(lines) == 2


@pytest.mark.parametrize(
  'name, told, T, M',
  [
    ('shaw', {}, 4, 5), ('shaw', {'mem_len': 5}, 4, 5),
    ('shaw', {'mem_len': 3}, 6, 3), ('shaw', {'mem_len': 20}, 1, 20),
    ('shaw', {'tgt_len': 7}, 7, 2), ('shaw', {'tgt_len': 20}, 20, 0),
    ('transformer_xl', {'tgt_len': 4}, 4, 4),
    ('al_rfou', {'clamp_len': 2}, 9, None), ('vaswani', {}, 512, None),
    ('vaswani', {'tgt_len': 4, 'clamp_len': 3}, 4, None),
  ],
)  # fmt: skip
def test_lengths_where_not_all_are_said(name, told, T, M):
  table = {'table_len': 9} if name in ('shaw', 'al_rfou') else {}
  found = lengths.of({'name': name, **table}, told, None, SOURCES['original'])
  assert found.pop('model.mem_len', None) == M
  modes = 'train', 'eval', 'generate'
  assert found == {f'{mode}.segment_len': T for mode in modes}


def test_distances_that_vaswani_cannot_clamp():
  told = {'tgt_len': 4, 'clamp_len': 2}
  said = refused(lengths.of, {'name': 'vaswani'}, told, None, None)
  assert said == 'clamp_len is 2; allowed: 0 for vaswani; set --clamp_len=0'
