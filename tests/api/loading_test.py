"""What `load` is given: paths, and runs that train meanwhile."""

import pytest

import txl_jax
from tests import programs
from tests.modes import runs
from txl_jax.modes import restore
from txl_jax.program.errors import UserError


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'run').mkdir()
  runs.write(tmp_path / 'run')
  return tmp_path / 'run'


def refused(*arguments, **more):
  with pytest.raises(UserError) as e:
    txl_jax.load(*arguments, **more)
  assert '\n' not in f'{e.value}'
  return f'{e.value}'


def test_a_folder_without_a_run(tmp_path, monkeypatch):
  (tmp_path / 'runs/x').mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  assert refused('runs').startswith('runs has no weights; allowed: a folder ')


def test_the_prefix_of_a_checkpoint_of_tensorflow():
  golden = programs.ROOT / 'tests/convert/golden/tf_plain.ckpt-0'
  with pytest.warns(UserWarning, match='.'):
    run = txl_jax.load(golden)
  assert run.config.model.n_layer == 2
  line = refused(golden.with_suffix('.ckpt-1'))
  assert 'does not exist; allowed: a run, ' in line
  assert 'allowed: a path, gs://' in refused('https://huggingface.co/a/b')
  assert "'best', for " in refused(golden, checkpoint=3)


def test_damage_is_told_as_before(folder, monkeypatch):
  def damaged(*arguments):
    raise UserError('it is damaged')

  monkeypatch.setattr(restore, 'weights', damaged)
  assert refused(folder) == 'it is damaged'
