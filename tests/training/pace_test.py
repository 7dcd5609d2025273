import time

import pytest

from txl_jax.training import pace as pace_lib


@pytest.fixture
def now(monkeypatch):
  """The clock, a list of one number, which tests set."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  return now


def make(now, *calls, each=2.0, first=60.0, steps=100, every=40):
  """A pace after calls that took so long, the first of which compiled."""
  pace = pace_lib.Pace(steps, every)
  for step in calls:
    now[0] += first if step == calls[0] else each
    pace.made(step)
  return pace


def test_compilation_does_not_count(now):
  assert make(now).left() is None
  assert make(now, 1, 2).left() is None
  assert make(now, 1, 2, 3, 4, 5).left() == 2.0 * 95


def test_several_steps_in_a_call(now):
  assert make(now, 10, 20, 30, 40).left() == 0.2 * 60


def test_evaluations_count_themselves(now):
  pace = make(now, 1, 2, 3)
  with pace.apart():
    now[0] += 1000.0
  now[0] += 2.0
  pace.made(4)
  pace.evaluated(7.0)
  # At steps 40, 80 and 100.
  assert pace.left() == 2.0 * 96 + 3 * 7.0
  # The last one comes after the last step.
  now[0] += 2.0 * 96
  pace.made(100)
  assert pace.left() == 7.0


def test_the_last_evaluation_is_one_of_the_others(now):
  pace = make(now, 58, 59, 60, steps=80)
  pace.evaluated(7.0)
  assert pace.left() == 2.0 * 20 + 7.0


def test_a_restart(now):
  pace = make(now, 1, 2, 3)
  pace.restart()
  assert pace.left() is None
