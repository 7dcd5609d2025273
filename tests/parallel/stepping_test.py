"""Real processes that step together; they are stopped, paused and killed."""

import re
import signal
import sys
import threading
import time

import pytest

from tests import programs

slow = pytest.mark.slow


def begin(processes, *flags):
  """Starts processes; they have made steps for some seconds."""
  command = [sys.executable, '-m', 'tests.parallel.stepping', *flags]
  started = programs.together(command, processes, 1)
  for process in started:
    steps(process, 80)
  time.sleep(2)  # a beat a second: by now all have heard of all
  return started


def steps(process, count):
  """Waits for some steps more."""
  while count:
    line = process.stdout.readline()
    assert line, process.communicate()
    count -= line.startswith('step ')


def ends(started):
  """(status, last line of standard error) of each process."""
  return [
    (status, (errors.splitlines() or [''])[-1])
    for status, _, errors in programs.ends(started, timeout=100)
  ]


def is_lost(line, lost, here, processes=2):
  return re.fullmatch(
    rf'error: process {lost} of {processes} on \S+ is lost, last seen at step '
    rf'\d+; process {here} of {processes} on \S+ ends at step \d+',
    line,
  )


def test_all_stop_at_the_same_step():
  started = begin(3)
  started[1].send_signal(signal.SIGTERM)
  first, *others = ends(started)
  assert others == [first, first]
  assert first[0] == 128 + signal.SIGTERM
  assert re.match(r'stopped by SIGTERM at step \d+, which', first[1])


@pytest.mark.parametrize('paused', [pytest.param(0, marks=slow), 1])
def test_a_pause_within_the_limit(paused):
  started = begin(2, '--lost_seconds=9')
  started[paused].send_signal(signal.SIGSTOP)
  time.sleep(5)
  started[paused].send_signal(signal.SIGCONT)
  steps(started[1 - paused], 50)
  started[1 - paused].send_signal(signal.SIGINT)
  done = programs.ends(started)
  assert [status for status, *_ in done] == [128 + signal.SIGINT] * 2
  lines = [errors.splitlines() for *_, errors in done]
  assert lines[paused] == lines[1 - paused][-1:]
  assert len(lines[1 - paused]) == 2
  assert re.fullmatch(
    rf'process {paused} of 2 on \S+ gave no sign for [4-8] s and is back',
    lines[1 - paused][0],
  )


@slow
def test_a_pause_of_all_beyond_the_limit():
  """As of a machine that sleeps."""
  started = begin(2, '--lost_seconds=5')
  for process in started:
    process.send_signal(signal.SIGSTOP)
  time.sleep(9)
  for process in started:
    process.send_signal(signal.SIGCONT)
  steps(started[1], 50)
  started[0].send_signal(signal.SIGTERM)
  first, second = ends(started)
  assert first == second
  assert first[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize('asked', [False, pytest.param(True, marks=slow)])
@pytest.mark.parametrize('paused', [pytest.param(0, marks=slow), 1])
def test_a_pause_beyond_the_limit(paused, asked):
  """Also while all are to stop."""
  started = begin(2, '--lost_seconds=5')
  started[paused].send_signal(signal.SIGSTOP)
  if asked:
    started[1 - paused].send_signal(signal.SIGTERM)
  start = time.monotonic()
  ((status, line),) = ends([started[1 - paused]])
  assert 4 < time.monotonic() - start < 30
  assert status == 1
  assert is_lost(line, paused, 1 - paused)
  # Who wakes after that has been the lost one.
  started[paused].send_signal(signal.SIGCONT)
  ((status, line),) = ends([started[paused]])
  assert status == 1
  assert re.fullmatch(
    rf'error: process {paused} of 2 on \S+, step \d+: it was paused for \d+ s, '
    'and the others have ended since',
    line,
  )


@pytest.mark.parametrize('killed', [0, pytest.param(2, marks=slow)])
def test_a_kill(killed):
  """The runtime aborts the others when it is process 0."""
  started = begin(3)
  started[killed].kill()
  start = time.monotonic()
  for process, (status, line) in enumerate(ends(started)):
    if process == killed:
      assert (status, line) == (-signal.SIGKILL, '')
    else:
      assert status == 1
      assert is_lost(line, killed, process, 3)
  assert time.monotonic() - start < 45


@pytest.mark.slow
def test_what_jax_does_while_one_is_paused():
  """No thread of a process runs as long as it waits for the other to stop.

  So no watch would. If this fails, jax may have what is our own.
  """
  asked, paused = started = begin(2, '--library')
  paused.send_signal(signal.SIGSTOP)
  asked.send_signal(signal.SIGTERM)
  timer = threading.Timer(8, paused.send_signal, (signal.SIGCONT,))
  timer.start()
  # Its thread prints ten lines a second.
  begun, pauses = time.monotonic(), []
  while asked.stdout.readline():
    pauses.append(time.monotonic() - begun)
    begun += pauses[-1]
  assert max(pauses) > 4
  assert [status for status, _ in ends(started)] == [0, 0]
