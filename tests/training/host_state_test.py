import dataclasses
import json
import math

import numpy as np
import pytest

from txl_jax.experiment import sections
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint
from txl_jax.runs.metrics_log import Mark
from txl_jax.training import averaging, host_state, optim, start


def after(figures, config):
  p = host_state.Progress()
  for n, figure in enumerate(figures, 1):
    p = p.after(10 * n, figure, config)
  return p


def test_best_and_last():
  p = host_state.Progress()
  assert p.best_step == -1 and [*vars(p).values()].count(0) == 5
  p = after([3.0, 2.0, 2.0, 2.5], optim.Optim())
  assert (p.evaluated, p.last) == (40, 2.5)
  assert (p.best_step, p.best, p.since_best) == (20, 2.0, 2)
  p = p.after(50, math.nan, optim.Optim())
  assert (p.evaluated, p.best_step, p.best) == (50, 20, 2.0)


def test_only_what_the_config_asks_for_is_kept():
  figures = [3.0, 2.0, 2.5, 2.6, 2.7]
  for average in 'off', 'ema':
    p = after(figures, optim.Optim(average=average, average_patience=1))
    assert p.plateau == optim.Plateau() and p.trigger == averaging.NTTrigger()
  p = after(figures, optim.Optim(schedule='plateau'))
  assert p.plateau.scale == 0.125 and p.trigger == averaging.NTTrigger()
  p = after(figures, optim.Optim(average='nt', average_patience=1))
  assert p.plateau == optim.Plateau() and p.trigger.start == 40


def test_what_is_saved_is_a_value():
  kinds = host_state.HostState, host_state.Progress, Mark, optim.Plateau
  kinds += averaging.NTTrigger, averaging.Averager, settings.Key
  for kind in *kinds, start.Run, start.Position:
    with pytest.raises(dataclasses.FrozenInstanceError):
      object.__new__(kind).step = 1


def test_an_evaluation_that_is_not_regular_decides_nothing():
  for changes in {'schedule': 'plateau'}, {'average': 'nt'}:
    config = optim.Optim(average_patience=0, **changes)
    p = after([3.0], config)
    q = p.after(15, 4.0, config, regular=False)
    assert (q.plateau, q.trigger) == (p.plateau, p.trigger)
    assert (q.evaluated, q.last, q.best_step) == (15, 4.0, 10)
    assert q.since_best == 0 and p.passed_over == 0
    p = dataclasses.replace(p, passed_over=7)
    better = p.after(15, 2.0, config, regular=False)
    assert (better.best, better.best_step) == (2.0, 15)
    assert better.evaluated_batch == 22  # of the steps, and those passed over


@pytest.mark.parametrize(
  'change, damaged',
  [
    ({'progress': 3}, True),
    ({'versions': 3}, True),
    ({'versions': None}, True),
    ({'history': [{'key': 'of older versions'}]}, False),
  ],
)
def test_the_part_of_the_host(tmp_path, change, damaged):
  config = sections.defaults()
  then = host_state.HostState.of(host_state.Progress(), Mark(), config, 'a')
  saved = checkpoint.Checkpoints(tmp_path)
  found = dataclasses.asdict(then) | change
  saved.save(1, found, params={'x': np.zeros(1)})
  if damaged:
    with pytest.raises(UserError, match='is damaged'):
      host_state.HostState.read(saved, 1)
  else:
    assert host_state.HostState.read(saved, 1) == then


@pytest.mark.parametrize('name', ['platform', 'jax', ''])
def test_attention_of_an_earlier_start(name):
  """Is kept where all else that decides about the bits is the same."""
  new = host_state.Progress(), Mark(), sections.defaults(), 'a'
  kept = 'tpu for bfloat16, T 512'
  host = host_state.HostState.of(*new, kernel=kept)
  assert host.kernel == kept
  assert not host.other_versions('tpu') + host.other_versions('tpu for T 8')
  (line,) = host.other_versions('xla')
  assert line.startswith('warning: attention was tpu, is now xla: ')
  if name:
    host.versions[name] = 'another'
    assert host.kernel == '' and len(host.other_versions('xla')) == 2
  host.versions['attention'] = ['tpu']  # of a file that somebody changed
  assert host.kernel == '' and host.other_versions('tpu')
  old = host_state.HostState.of(*new)
  assert old.kernel == '' and not old.other_versions('xla')


def test_json_gives_it_back():
  config = optim.Optim(schedule='plateau', average='nt', average_patience=2)
  for figures in [], [3.0], [3.0, 2.0, 0.1 + 0.2, 4.0, 5.0, 6.0]:
    p = after(figures, config)
    text = json.dumps(dataclasses.asdict(p))
    assert host_state.Progress.from_json(json.loads(text)) == p
    # What is in a checkpoint is compared with what would be written.
    assert json.loads(text) == dataclasses.asdict(p)
