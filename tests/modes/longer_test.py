"""A run that is given more steps, or fewer, when it goes on."""

import math
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests import programs
from tests.modes.folder_test import contents
from tests.programs import assert_refused, record
from txl_jax.experiment import collect

OPTIONS = 'train.batch_size=8', 'train.log_every=2', 'train.eval_every=8'
OPTIONS += 'train.save_every=8', 'model.dropout=0.1', 'optim.lr=1e-2'
SHORT, LONG = 16, 32


def train(folder, steps, *overrides):
  """In this process."""
  overrides = (*OPTIONS, f'train.steps={steps}', *overrides)
  done = programs.here(programs.command(folder, *overrides))
  assert done.returncode or 'warning' not in done.stderr
  return done


def arrays(folder, step, item='params'):
  """What a checkpoint holds, as numpy arrays."""
  path = folder / f'run/checkpoints/{step}/{item}'
  with ocp.StandardCheckpointer() as reader:
    return jax.tree.map(np.asarray, reader.restore(path))


def without_changes(folder):
  """The record of a run but for the keys that changed on the way."""
  return [r for r in record(folder) if r['split'] != 'changed']


def same(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corpus')
  programs.write_corpus(folder)
  return folder


@pytest.fixture
def make(corpus, tmp_path):
  """A folder with the text, of a name."""

  def make(name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(corpus / 'corpus.txt', folder)
    return folder

  return make


SCHEDULES = [
  ('optim.schedule=constant', 'optim.average=ema'),
  ('optim.schedule=inverse_sqrt', 'optim.warmup=4'),
  ('optim.schedule=drop', 'optim.drop_at=12'),
  ('optim.schedule=plateau', 'optim.average=swa', 'optim.average_start=14'),
]


@pytest.mark.slow
@pytest.mark.parametrize('schedule', SCHEDULES, ids=lambda x: x[0])
def test_it_is_the_run_that_was_longer_from_the_first(make, schedule):
  raised, whole = make('raised'), make('whole')
  assert train(raised, SHORT, *schedule).returncode == 0
  assert train(raised, LONG, *schedule).returncode == 0
  assert train(whole, LONG, *schedule).returncode == 0
  assert without_changes(raised) == record(whole)
  for item in 'params', 'training', 'memory':
    same(arrays(raised, LONG, item), arrays(whole, LONG, item))


@pytest.mark.parametrize(
  'more',
  [
    pytest.param(
      ('optim.schedule=plateau', 'optim.plateau_factor=0.1', 'optim.lr=0.3'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ('optim.average=nt', 'optim.average_patience=0', *SCHEDULES[0][:1]),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['plateau', 'nt'],
)
def test_an_end_between_two_evaluations(make, more):
  """What is evaluated there alone changes nothing that follows."""
  raised, whole = make('raised'), make('whole')
  for steps in 13, LONG:
    assert train(raised, steps, *more).returncode == 0
  assert train(whole, LONG, *more).returncode == 0
  same(arrays(raised, LONG), arrays(whole, LONG))
  ours, theirs = without_changes(raised), record(whole)
  assert [r for r in ours if r not in theirs and r['step'] > 14] == []
  at_the_end = [r['split'] for r in ours if r['step'] == 13]
  assert at_the_end == ['train', 'validation']


@pytest.mark.slow
def test_the_cosine_is_that_of_the_longer_run_from_there_on(make):
  folder = make('raised')
  options = 'optim.schedule=cosine', 'optim.lr_floor=0.1'
  assert train(folder, SHORT, *options).returncode == 0
  assert train(folder, LONG, *options).returncode == 0

  def rate(step, steps):
    cosine = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
    return 1e-2 * (0.1 + 0.9 * cosine)

  found = {r['step']: r['lr'] for r in record(folder) if 'lr' in r}
  for step, lr in found.items():
    steps = SHORT if step <= SHORT else LONG
    assert lr == pytest.approx(rate(step, steps), rel=1e-5)


@pytest.fixture(scope='module')
def finished(corpus, tmp_path_factory):
  """A run of 16 steps, with checkpoints at 8 and 16."""
  folder = tmp_path_factory.mktemp('finished')
  shutil.copy(corpus / 'corpus.txt', folder)
  assert train(folder, SHORT).returncode == 0
  return folder


@pytest.fixture
def copied(finished, tmp_path):
  shutil.copytree(finished, tmp_path / 'copy')
  return tmp_path / 'copy'


@pytest.mark.thorough
def test_not_below_what_it_has_made(copied):
  before = contents(copied)
  done = train(copied, 14)
  assert_refused(done, 'train.steps is 14; allowed: at least 16, which the run')
  assert contents(copied) == before


def test_a_stopped_run_may_end_earlier(copied):
  shutil.rmtree(copied / 'run/checkpoints/16')
  done = train(copied, 10)
  assert done.returncode == 0, done.stderr
  assert [r['step'] for r in record(copied)][-2:] == [10, 10]
  (found,) = collect.runs(copied)
  assert found.finished and found.config['train.steps'] == 10
