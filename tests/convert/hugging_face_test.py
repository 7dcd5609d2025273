"""Folders of Hugging Face, both ways, against what its code computed.

golden/make_hugging_face.py and golden/make_back.py made the files.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

import jax
import numpy as np
import pytest
import safetensors.numpy

from tests.convert.golden import make_back
from tests.convert.original_test import nll
from tests.models import hf_golden_test
from tests.refusing import refused
from txl_jax import models
from txl_jax.convert import read_weights, write_weights
from txl_jax.convert.versions import hugging_face
from txl_jax.convert.weights import Weights
from txl_jax.program import settings

GOLDEN = pathlib.Path(__file__).parent / 'golden'
T = make_back.T


def close(found: Weights, ids, expected, T=T):
  for row, wanted in zip(ids, expected):
    ours = nll(found, row, T)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('name', ['hf_div4', 'hf_div1', 'hf_narrow_bin'])
def test_what_it_saves_gives_its_figures(name):
  found = read_weights.read(GOLDEN / name)
  expected = dict(np.load(GOLDEN / name / 'expected.npz'))
  close(found, expected['ids'], expected['nll'])
  config = json.loads((GOLDEN / name / 'config.json').read_text())
  fields = found.fields
  order = fields['memory_init'], fields['tail_order']
  assert order == ('zeros', 'ascending')
  assert fields['untie_biases'] == config['untie_r']
  assert fields['ln_eps'] == config['layer_norm_epsilon']
  assert found.origin.startswith('Hugging Face, ')
  assert len(found.origin.split('sha256 ')[1]) == 64


@pytest.mark.thorough
@pytest.mark.parametrize(
  'file', hf_golden_test.FILES, ids=lambda file: file.stem
)
def test_other_models_of_its_code(file, tmp_path):
  header, weights, golden = hf_golden_test.load(file)
  safetensors.numpy.save_file(weights, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps(header['config']))
  found = read_weights.read(tmp_path)
  ids = golden['ids'].astype(np.int32)  # [segments, B, T + 1]
  targets = ids[..., 1:, None]
  expected = -np.take_along_axis(golden['log_probs'], targets, -1)[..., 0]
  text = np.concatenate([*ids[..., :-1], ids[-1][:, -1:]], axis=1)
  close(found, text, np.concatenate([*expected], axis=1), ids.shape[2] - 1)


@pytest.mark.thorough
@pytest.mark.parametrize('case', make_back.CASES)
def test_models_of_ours_have_the_same_figures_there(case, tmp_path):
  golden = dict(np.load(GOLDEN / 'back.npz'))
  weights = make_back.weights(case)
  write_weights.to_hugging_face(tmp_path / case, weights)
  there = json.loads(str(golden['digests']))
  assert make_back.digest(tmp_path / case) == there[case]
  close(weights, golden['ids'], golden[case])


@pytest.mark.parametrize('case', make_back.CASES)
def test_there_and_back_is_exact(case, tmp_path):
  weights = make_back.weights(case)
  write_weights.to_hugging_face(tmp_path / case, weights)
  found = read_weights.read(tmp_path / case)
  same = jax.tree.map(np.array_equal, found.params, weights.params)
  tails = same['vocabulary'].pop('tail_weights', True)
  tails &= same['vocabulary'].pop('tail_biases', True)
  assert all(jax.tree.leaves(same))
  ascending = weights.fields['tail_order'] == 'ascending'
  assert tails == (ascending or case != 'div1')
  assert found.vocabulary == weights.vocabulary
  again = tmp_path / 'again'
  write_weights.to_hugging_face(again, found)
  for name in 'config.json', 'model.safetensors':
    data = (again / name).read_bytes()
    assert data == (tmp_path / case / name).read_bytes()


def copy(name, folder):
  shutil.copytree(GOLDEN / name, folder / name)
  return folder / name


def change(folder, **changes):
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
  'changes, word',
  [
    ({'model_type': 'bert'}, "model_type is 'bert'"),
    ({'model_type': 'xlnet'}, "model_type is 'xlnet'"),
    ({'n_layer': 3}, 'missing: layers.2.'),
    ({'n_layer': 1}, 'unexpected: layers.1.'),
    ({'n_layer': 10**9}, 'model.n_layer'),
    ({'n_layer': 'many'}, "n_layer is 'many'"),
    ({'cutoffs': {}}, 'cutoffs is {}'),
    ({'tie_word_embeddings': False}, 'missing: crit.out_layers.0.weight'),
    ({'dropout': 2}, 'dropout is 2'),
    ({'layer_norm_epsilon': 'x'}, "layer_norm_epsilon is 'x'"),
  ],
)
def test_a_config_that_does_not_fit(changes, word, tmp_path):
  folder = copy('hf_div4', tmp_path)
  change(folder, **changes)
  assert word in refused(read_weights.read, folder)


def test_a_file_that_is_damaged(tmp_path):
  path = copy('hf_div4', tmp_path) / 'model.safetensors'
  data = path.read_bytes()
  for size in 0, 5, 8, 100, len(data) - 1:
    path.write_bytes(data[:size])
    said = refused(read_weights.read, tmp_path / 'hf_div4')
    assert said.startswith(f'{path} is not a .safetensors file')
  path.write_bytes(b'\xff' * 8 + data[8:])
  assert 'not a .safetensors file' in refused(read_weights.read, path)
  path.unlink()
  os.mkfifo(path)
  assert 'pipe' in refused(read_weights.read, path)
  path.unlink()
  assert 'has no weights' in refused(read_weights.read, tmp_path / 'hf_div4')
  said = refused(read_weights.read, path)
  allowed = 'a run, a file of weights, or hf://ORG/NAME on the Hub'
  assert said.endswith(f'does not exist; allowed: {allowed}')


def with_table(weights, **changes):
  """The weights as of a model that has a table of positions."""
  known = settings.keys(models.MODELS['shaw'].Config)
  fields = {**weights.fields, 'name': 'shaw', **changes}
  fields = {key: x for key, x in fields.items() if key in known}
  return weights._replace(fields=fields)


@pytest.mark.parametrize('M, lengths', [(6, (3, 6)), (20, (1, 8)), (0, (9, 0))])
def test_a_table_holds_a_segment_and_its_memory(M, lengths):
  weights = with_table(make_back.weights('plain'), table_len=9, mem_len=M)
  found = write_weights.arguments(weights, 4)
  assert (found['tgt_len'], found['mem_len']) == lengths


def test_what_its_code_has_not(tmp_path):
  weights, call = make_back.weights('plain'), write_weights.to_hugging_face
  path = tmp_path / 'x'
  for name in 'shaw', 'vaswani':
    other = weights._replace(fields={'name': name})
    assert "name is '" + name in refused(call, path, other)
  assert not path.exists()
  section = weights.section
  assert hugging_face.config_of(section, 31, 3)['eos_token_id'] == 3
  c = dataclasses.replace(section, cutoffs=(3,))
  assert hugging_face.config_of(c, 31)['tie_projs'] == [False, False]
  for tied in (False, True, True), (False, False, True), (True, True, False):
    c = dataclasses.replace(section, cutoffs=(3, 7), tie_projs=tied)
    shared = hugging_face.config_of(c, 31)['proj_share_all_but_first']
    assert shared == (tied == (False, True, True))
  call(path, weights)
  assert 'new folder' in refused(call, path, weights)


@pytest.mark.slow
def test_its_code_now(tmp_path):
  """With HF_PYTHON, a Python that has torch and transformers 4.35.2."""
  if not (python := os.environ.get('HF_PYTHON')):
    pytest.skip('HF_PYTHON is not set')
  copied = tmp_path / 'make_back.py'
  shutil.copy(GOLDEN / 'make_back.py', copied)
  make_back.write(tmp_path / 'folders')
  command = [python, str(copied), str(tmp_path / 'folders')]
  subprocess.run(command, check=True, capture_output=True)
  golden = dict(np.load(tmp_path / 'back.npz'))
  for case in make_back.CASES:
    close(make_back.weights(case), golden['ids'], golden[case])
