"""The original TensorFlow code's models, against golden/make_tensorflow.py."""

import json
import pathlib

import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.convert.formats import tensorflow_file, torch_file
from txl_jax.convert.versions import tensorflow

GOLDEN = pathlib.Path(__file__).parent / 'golden'
CASES = sorted(p.stem for p in GOLDEN.glob('tf_*.npz'))


def load(name):
  """Variables and the arguments of their model."""
  with np.load(GOLDEN / f'{name}.npz') as file:
    c = json.loads(str(file['config']))
  return tensorflow_file.read(GOLDEN / f'{name}.ckpt-0'), c


@pytest.mark.parametrize('name', CASES)
def test_every_number_is_there_to_the_bit(name, tmp_path):
  variables, c = load(name)
  state = tensorflow.to_original(variables)
  assert tensorflow.cutoffs(variables) == tuple(c['cutoffs'])
  numbers = np.concatenate([x.ravel() for x in variables.values()])
  eye = np.eye(c['d_model'], dtype=np.float32)
  there = [x for x in state.values() if not np.array_equal(x, eye)]
  found = np.concatenate([x.ravel() for x in there])
  np.testing.assert_array_equal(np.sort(found), np.sort(numbers))
  # By the file that torch reads, too.
  torch_file.write(tmp_path / 'model.pt', state)
  again = torch_file.read(tmp_path / 'model.pt').tensors
  assert {*again} == {*state}
  for name, x in state.items():
    np.testing.assert_array_equal(again[name], x, name)


def test_matrices_are_turned():
  variables, c = load('tf_div4')
  state = tensorflow.to_original(variables)
  D, H, K, F = (c[k] for k in ('d_model', 'n_head', 'd_head', 'd_inner'))
  shapes = {
    'layers.1.dec_attn.qkv_net.weight': (3 * H * K, D),
    'layers.1.dec_attn.o_net.weight': (D, H * K),
    'layers.1.dec_attn.r_net.weight': (H * K, D),
    'layers.1.dec_attn.r_r_bias': (H, K),
    'layers.1.pos_ff.CoreNet.0.weight': (F, D),
    'word_emb.emb_layers.2.weight': (14, 1),
    'word_emb.emb_projs.2': (D, 1),
    'crit.out_projs.0': (D, D),
    'crit.cluster_weight': (2, D),
  }
  for name, shape in shapes.items():
    assert state[name].shape == shape
  assert 'crit.out_projs.1' not in state  # it is tied
  projections = state['crit.out_projs.0'], state['word_emb.emb_projs.0']
  assert not np.array_equal(*projections)


def test_no_projection_is_the_identity():
  variables, c = load('tf_same_width')
  assert 'transformer/adaptive_embed/cutoff_0/proj_W' not in variables
  state = tensorflow.to_original(variables)
  eye = np.eye(c['d_model'], dtype=np.float32)
  np.testing.assert_array_equal(state['word_emb.emb_projs.0'], eye)
  assert 'crit.out_projs.0' not in state


@pytest.mark.parametrize('width', [4, 5, 6])
def test_only_the_same_width_needs_no_projection(width):
  variables = {
    'transformer/adaptive_embed/cutoff_0/lookup_table': np.ones([3, width]),
    'transformer/layer_0/ff/layer_1/kernel': np.ones([5, 9]),
  }
  state = tensorflow.to_original(variables)
  assert ('word_emb.emb_projs.0' in state) == (width == 5)


def test_what_is_unknown_is_named():
  variables, _ = load('tf_plain')
  x = variables['transformer/r_w_bias']
  more = {'transformer/x': x, 'other': x, 'transformer/layer_00/ff/x': x}
  said = refused(tensorflow.to_original, {**variables, **more})
  assert all(name in said for name in more)
