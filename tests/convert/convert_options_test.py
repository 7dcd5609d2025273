"""What files and flags say of a model: names, types, bounds."""

import pytest

from tests.refusing import refused
from txl_jax.convert import convert_options


def test_known_options_become_plain_values():
  found = {
    'n_head': 4,
    'clamp_len': -1,
    'same_length': 1,
    'dropout': 0.5,
    'dropatt': 0,
    'cutoffs': [3, 5],
    'tie_projs': (0, 1),
    'mem_len': None,
    'lr': 'what nobody asks for',
  }
  assert convert_options.known(found, '') == {
    'n_head': 4,
    'clamp_len': 0,
    'same_length': True,
    'dropout': 0.5,
    'dropatt': 0.0,
    'cutoffs': (3, 5),
    'tie_projs': (False, True),
  }


@pytest.mark.parametrize(
  'name, value',
  [
    ('n_layer', 0),
    ('n_layer', 1.0),
    ('n_layer', True),
    ('n_layer', 10**30),
    pytest.param('n_layer', 10**5000, id='thousands of digits'),
    ('same_length', 2),
    ('mem_len', -1),
    ('mem_len', '3'),
    ('same_length', 'yes'),
    ('same_length', []),
    ('dropout', float('nan')),
    ('dropatt', {}),
    ('dropatt', 1.5),
    ('layer_norm_epsilon', 1.5),
    ('layer_norm_epsilon', 'x'),
    ('cutoffs', 3),
    ('cutoffs', [1, 'x']),
    ('tie_projs', [2]),
    ('n_head', object()),
  ],
)
def test_values_of_another_kind(name, value):
  said = refused(convert_options.known, {name: value}, 'config.json: ')
  assert said.startswith(f'config.json: {name} is ')
  kinds = {'cutoffs': 'whole numbers', 'tie_projs': 'true and false'}
  assert said.endswith(kinds.get(name, ''))


def test_where_files_of_pytorch_keep_them():
  """As modules of the original code and checkpoints of NVIDIA's do."""
  module = {
    'n_layer': 2,
    'word_emb.cutoffs': [5, 9],
    'layers.0.dec_attn.pre_lnorm': True,
    'layers.0.dec_attn.layer_norm.eps': 1e-3,
    'layers.0.dec_attn.dropatt.p': 0.3,
    'drop.p': 0.2,
  }
  found = convert_options.known(convert_options.of_file(module), '')
  assert found == {
    'n_layer': 2,
    'cutoffs': (5, 9),
    'pre_lnorm': True,
    'layer_norm_epsilon': 1e-3,
    'dropatt': 0.3,
    'dropout': 0.2,
  }
  file = {
    'args': {'pre_lnorm': True, 'mem_len': 5, 'lr': 0.1},
    'model_config': {'n_head': 3, 'mem_len': 7},
    'n_head': 2,
  }
  found = convert_options.known(convert_options.of_file(file), '')
  assert found == {'n_head': 3, 'mem_len': 7, 'pre_lnorm': True}
  assert convert_options.of_file({'args': 3, 'n_head': 2})['n_head'] == 2
  fairseq = {'args': None, 'cfg': {'clamp_len': -1, 'same_length': False}}
  found = convert_options.known(convert_options.of_file(fairseq), '')
  assert found == {'clamp_len': 0, 'same_length': False}
