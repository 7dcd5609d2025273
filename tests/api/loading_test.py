"""What `load` is given: paths, and runs that train meanwhile."""

import re

import pytest

import txl_jax
from tests.modes import runs
from txl_jax.errors import UserError
from txl_jax.modes import trained
from txl_jax.runs import seal


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


@pytest.mark.parametrize('path', [None, 5, b'runs/x', ['runs/x']])
def test_what_is_no_path(path):
  assert refused(path) == f'path is {path!r}; allowed: a str, or a path'


def test_a_folder_without_a_run(tmp_path, monkeypatch):
  (tmp_path / 'runs/x').mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  assert refused('runs') == f'{tmp_path}/runs holds no run; train one first'


def replace_newest(folder):
  """What training does: there is a newer step, and the one before goes."""
  (step,) = (folder / 'checkpoints').iterdir()
  newer = step.with_name(f'{int(step.name) + 1}')
  step.rename(newer)
  (newer / seal.NAME).unlink()
  seal.write(newer, newer.name)


@pytest.fixture
def trains(folder, monkeypatch):
  """Makes the next readings of weights come too late; the list of them."""

  def while_loading(times):
    weights, late = trained.weights, []

    def read(*arguments):
      if len(late) < times:
        late.append(arguments[1])
        replace_newest(folder)
      return weights(*arguments)

    monkeypatch.setattr(trained, 'weights', read)
    return late

  return while_loading


def test_a_step_that_goes_while_it_is_read(folder, trains):
  late = trains(2)
  assert txl_jax.load(folder).step == runs.STEP + 2
  assert late == [runs.STEP, runs.STEP + 1]


def test_steps_that_go_all_the_time(folder, trains):
  trains(9)
  message = refused(folder)
  assert re.match(f'{folder} deletes its checkpoints faster than', message)


def test_the_step_that_was_asked_for_goes(folder, trains):
  trains(1)
  message = refused(folder, checkpoint=runs.STEP)
  allowed = f'best, latest or one of [{runs.STEP + 1}]'
  assert message == f"checkpoint is '{runs.STEP}'; allowed: {allowed}"


def test_damage_is_told_as_before(folder, monkeypatch):
  def damaged(*arguments):
    raise UserError('it is damaged')

  monkeypatch.setattr(trained, 'weights', damaged)
  assert refused(folder) == 'it is damaged'
