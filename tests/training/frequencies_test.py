import math
import re

import numpy as np
import pytest

from tests import programs
from txl_jax.training import frequencies

STUCK = (
  'train.batch_size=8',
  'train.steps=400',
  'train.eval_every=100',
  'train.save_every=400',
)


def test_nats_by_hand():
  train, scored = np.array([0, 0, 0, 1], np.uint8), np.array([0, 1, 2])
  # (3 + 1, 1 + 1, 0 + 1) of 7
  expected = -(math.log(4 / 7) + math.log(2 / 7) + math.log(1 / 7)) / 3
  assert frequencies.nats(train, scored, 3) == pytest.approx(expected)


def test_when_it_may_be_told():
  assert not frequencies.may_be_told(299, 0)
  assert frequencies.may_be_told(300, 150)
  assert not frequencies.may_be_told(300, 151)


@pytest.mark.parametrize('pre_norm', [False, True, None])
def test_what_is_told(pre_norm):
  model = {} if pre_norm is None else {'pre_norm': pre_norm}
  config = {'optim': {'lr': 3e-3}, 'model': model}
  assert not frequencies.told(3.9, 4.0, 'bpc', config)
  line = frequencies.told(3.93, 4.0, 'ppl', config)
  assert line.startswith(
    'warning: 50.9070 ppl is hardly better than what the frequencies of tokens '
    'give (54.5982): '
  )
  assert 'optim.lr (it is 0.003)' in line
  assert ('pre_norm' in line) == (pre_norm is False)


@pytest.mark.parametrize('rate, stuck', [('1e-12', True), ('1e-2', False)])
def test_a_run(tmp_path, rate, stuck):
  """Once, and not before 300 steps; a model that learns hears nothing."""
  programs.write_corpus(tmp_path)
  own = *STUCK, f'optim.lr={rate}'
  done = programs.here(programs.command(tmp_path, *own))
  assert done.returncode == 0, done.stderr
  lines = done.stderr.splitlines()
  (at,) = (i for i, x in enumerate(lines) if x.startswith('step 300: valid'))
  told = [i for i, x in enumerate(lines) if 'frequencies of tokens' in x]
  assert told == [at + 1] * stuck
  if stuck:
    assert re.search(r' give \(3\.\d+\): ', lines[at + 1])
