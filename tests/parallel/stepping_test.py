"""Real processes that step together; they are stopped, paused and killed."""

import re
import signal
import sys
import time

import pytest

from tests import programs

pytestmark = pytest.mark.thorough

slow = pytest.mark.slow


def begin(processes, *flags):
  """Starts processes; they have made steps for some seconds."""
  command = [sys.executable, '-m', 'tests.parallel.stepping', *flags]
  started = programs.together(command, processes, 1)
  for process in started:
    steps(process, 80)
  return started


def steps(process, count):
  """Waits for some steps more."""
  while count:
    line = process.stdout.readline()
    assert line, process.communicate()
    count -= line.startswith('step ')


def ends(started):
  """(status, last line of standard error, all of it) of each process."""
  return [
    (status, (errors.splitlines() or [''])[-1], errors)
    for status, _, errors in programs.ends(started, timeout=100)
  ]


def assert_ended_by_jax(ended):
  status, _, errors = ended
  assert status == -signal.SIGABRT
  assert 'the JAX distributed service' in errors


def test_all_stop_at_the_same_step():
  started = begin(3)
  started[1].send_signal(signal.SIGTERM)
  first, *others = ends(started)
  assert others == [first, first]
  assert first[0] == 128 + signal.SIGTERM
  assert re.match(r'stopped by SIGTERM at step \d+, which', first[1])


def test_an_error_of_one():
  (status, line, _), (other, own, _) = ends(begin(2, '--raise=90'))
  assert status == other == 1
  assert re.fullmatch(
    r'error: process 1 of 2 on \S+, step 90: broken; '
    r'process 0 of 2 on \S+ ends at step 9[01]',
    line,
  )
  assert re.fullmatch(r'error: process 1 of 2 on \S+, step 90: broken', own)


@slow
@pytest.mark.parametrize('paused', [0, 1])
def test_a_pause_within_the_limit(paused):
  started = begin(2, '--lost_seconds=9')
  started[paused].send_signal(signal.SIGSTOP)
  time.sleep(8)
  started[paused].send_signal(signal.SIGCONT)
  steps(started[1 - paused], 50)
  started[1 - paused].send_signal(signal.SIGINT)
  assert [end[0] for end in ends(started)] == [128 + signal.SIGINT] * 2


@slow
@pytest.mark.parametrize('paused', [0, 1])
def test_a_pause_beyond_the_limit(paused):
  started = begin(2, '--lost_seconds=5')
  started[paused].send_signal(signal.SIGSTOP)
  begun = time.monotonic()
  (ended,) = ends([started[1 - paused]])
  assert 3 < time.monotonic() - begun < 30
  assert_ended_by_jax(ended)
  started[paused].send_signal(signal.SIGCONT)
  (ended,) = ends([started[paused]])
  assert_ended_by_jax(ended)


@pytest.mark.slow
@pytest.mark.parametrize('killed', [pytest.param(0, marks=slow), 2])
def test_a_kill(killed):
  started = begin(3, '--lost_seconds=5')
  started[killed].kill()
  begun = time.monotonic()
  ended = ends(started)
  assert time.monotonic() - begun < 45
  assert ended.pop(killed)[0] == -signal.SIGKILL
  for end in ended:
    assert_ended_by_jax(end)
    if killed:  # else nobody is left to say who: it is the leader
      assert re.search(r'stopped sending heartbeats\):\n2\n', end[2])
