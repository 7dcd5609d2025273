"""Which parameters of a checkpoint are used."""

from unittest import mock

import jax
import numpy as np
import pytest

from tests.modes import runs
from tests.refusing import refused
from txl_jax.experiment import collect, saved_model, sections
from txl_jax.modes import evaluate, export, generate
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.training import host_state


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Of a run that is only read."""
  folder = tmp_path_factory.mktemp('run')
  runs.write(folder)
  return folder


def test_what_a_report_says_of_a_checkpoint(folder):
  run = collect.Run('a', {}, [{'step': 9}], {}, folder=folder)
  # Of the embedding; of attention, its norm and biases; of two layers.
  count = 3 * 9 + 5 * 8 * 6 + 2 * 6 + 16 + 2 * 8 * 10 + 8 + 10 + 16
  assert run.saved is run.saved == (run.step, count, '')


@pytest.mark.thorough
@pytest.mark.parametrize(
  'averaged, expected', [(None, 1), (0, 1), (1, 2), (30, 2)]
)
def test_load(tmp_path, averaged, expected):
  runs.write(tmp_path, averaged=averaged, ones=True)
  mesh = mesh_lib.make_mesh()
  found = saved_model.load(sections.read(runs.config()), tmp_path, mesh)
  assert (found.step, found.averaged) == (runs.STEP, averaged or 0)
  assert found.vocabulary == runs.VOCABULARY
  assert found.params['vocabulary']['table'].shape == (3, 8)
  for x in jax.tree.leaves(found.params):
    np.testing.assert_array_equal(x, expected)
  over = f', weights averaged over {averaged} steps' if averaged else ''
  assert saved_model.weights_line(found) == f'step {runs.STEP}{over}'


@pytest.mark.parametrize('mode', [evaluate, generate, export])
def test_another_model(folder, mode):
  job = runs.job(runs.config(pre_norm=True), folder)
  with pytest.raises(UserError, match=r'model\.pre_norm is True, not False;'):
    mode.run(job)


@pytest.mark.parametrize(
  'key, value', [('pre_norm', True), ('ln_eps', 1e-6), ('cutoffs', (2,))]
)
def test_keys_that_make_another_model(folder, key, value):
  config, mesh = runs.config(), mesh_lib.make_mesh()
  then = config.model[key]
  # These may differ, and so may all that is not of the model.
  config.model.update(dropout_embed=0.5, mem_len=7, dtype='bfloat16')
  config.update(seed=3)
  config.train.batch_size = 2
  saved_model.load(sections.read(config), folder, mesh)
  config.model[key] = value
  message = refused(saved_model.load, sections.read(config), folder, mesh)
  assert message.startswith(
    f'{folder} holds another model: model.{key} is {value!r}, not {then!r}; '
  )
  assert message.endswith(f'--config={folder}/config.py')


def test_a_key_that_came_later_than_the_run(tmp_path):
  """It had the default before."""
  runs.write(tmp_path, without='model.pre_norm')
  mesh = mesh_lib.make_mesh()
  config = sections.read(runs.config())
  assert saved_model.load(config, tmp_path, mesh).step == runs.STEP
  config = sections.changed(config, {'model.pre_norm': True})
  with pytest.raises(UserError, match=r'model\.pre_norm is True, not False;'):
    saved_model.load(config, tmp_path, mesh)


def test_the_step_that_is_chosen(monkeypatch, capsys):
  host = mock.Mock()
  monkeypatch.setattr(host_state.HostState, 'read', lambda *_: host)
  gone = 'warning: the best checkpoint, 0, is gone; using 9\n'
  for which, best, usable, step, said in (
    ('best', 0, (0, 9), 0, ''), ('best', 0, (9,), 9, gone),
    ('best', -1, (9,), 9, ''), ('latest', 5, (5, 9), 9, ''),
    ('5', 0, (0, 5, 9), 5, ''),
  ):  # fmt: skip
    host.progress.best_step = best
    checkpoints = mock.Mock(usable=usable.__contains__, newest=lambda *_: 9)
    assert saved_model.choose(checkpoints, which) == step
    assert capsys.readouterr().err == said


def test_a_config_of_another_version(folder, monkeypatch):
  config = sections.changed(sections.read(runs.config()), {'seed': 5})
  odd = settings.flatten(config) | {'optim.gone': 3, 'optim.clip': None}
  host = mock.Mock(config=odd)
  monkeypatch.setattr(host_state.HostState, 'read', lambda *_: host)
  assert saved_model.recorded(folder) == config
  saved = odd | {'model.name': 'lstm', 'model.d_model': 5}
  message = refused(saved_model.check_model, config, saved, 'it', 'a')
  assert message == "it: model.name is 'transformer_xl', not 'lstm'; allowed: a"
