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
  assert frequencies.by_frequencies(train, scored, 3) == pytest.approx(expected)


class Vocabulary:
  def __init__(self, unit):
    self.unit = unit

  def __len__(self):
    return 4


class Corpus:
  """Four tokens, equally frequent: ln 4 nats."""

  def __init__(self, unit='bpc'):
    self.vocabulary = Vocabulary(unit)

  def tokens(self, split):
    assert split == 'train'
    return np.array([0, 1, 2, 3], np.uint8)


SCORED = np.array([0, 3])


@pytest.mark.parametrize(
  'step, warmup, expected', [(299, 0, 0), (300, 150, 1), (300, 151, 0)]
)
def test_early_steps_are_not_judged(step, warmup, expected):
  config = {'optim': {'lr': 3e-3, 'warmup': warmup}, 'model': {}}
  told = frequencies.told(step, 2.0, Corpus(), SCORED, config)
  assert bool(told) == expected


@pytest.mark.parametrize('pre_norm', [False, True, None])
def test_what_is_told(pre_norm):
  model = {} if pre_norm is None else {'pre_norm': pre_norm}
  config = {'optim': {'lr': 3e-3, 'warmup': 0}, 'model': model}
  assert not frequencies.told(300, 1.35, Corpus(), SCORED, config)
  line = frequencies.told(300, 1.37, Corpus('ppl'), SCORED, config)
  assert line.startswith(
    'warning: 3.9354 ppl is hardly better than what the frequencies of tokens '
    'give (4.0000): '
  )
  assert 'optim.lr (it is 0.003)' in line
  assert ('pre_norm' in line) == (pre_norm is False)


@pytest.mark.parametrize(
  'rate, stuck',
  [('1e-12', True), pytest.param('1e-2', False, marks=pytest.mark.slow)],
)
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
