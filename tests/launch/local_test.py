"""local.py starts real processes."""

import signal
import subprocess
import sys
import time

import pytest

from tests.launch import launchers

# Says what it was given, then waits for a signal.
CHILD = """
import os, signal, sys, time
def stop(number, _):
  print('saved', flush=True)
  sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGHUP, stop)
print(os.environ['XLA_FLAGS'], *sys.argv[1:], flush=True)
print('ready', file=sys.stderr, flush=True)
time.sleep(60)
"""


def local(*arguments):
  return subprocess.Popen(
    [*launchers.PROGRAMS['local'], *arguments],
    cwd=launchers.ROOT,
    env=launchers.environment(),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.fixture
def hangup():
  """SIGHUP is not ignored, though the tests may run under nohup."""
  before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
  yield
  signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures('hangup')
@pytest.mark.parametrize(
  'number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
)
def test_local_forwards_signals(number):
  command = [sys.executable, '-c', CHILD, 'a b']
  with local('--devices=4', '--port=99', '--', *command) as group:
    ready = {group.stderr.readline() for _ in range(2)}
    assert ready == {'[0] ready\n', '[1] ready\n'}
    group.send_signal(number)
    out, err = group.communicate(timeout=120)
    assert group.returncode == 128 + number
  assert sorted(out.splitlines()) == [
    line
    for i in range(2)
    for line in (
      f'[{i}] --xla_force_host_platform_device_count=2 a b '
      f'--coordinator=127.0.0.1:99 --num_processes=2 --process_id={i}',
      f'[{i}] saved',
    )
  ]
  assert err.endswith(f'ended with status {128 + number}\n')


# Its second Ctrl-C ends it.
TWICE = """
import signal, time
heard = []
def ask(number, _):
  if heard:
    raise SystemExit(130)
  heard.append(number)
  print('asked', flush=True)
signal.signal(signal.SIGINT, ask)
print('ready', flush=True)
time.sleep(60)
"""


def test_local_forwards_a_second_ctrl_c():
  with local('--', sys.executable, '-c', TWICE) as group:
    for said in 'ready', 'asked':
      lines = {group.stdout.readline() for _ in range(2)}
      assert lines == {f'[0] {said}\n', f'[1] {said}\n'}
      group.send_signal(signal.SIGINT)
    out, err = group.communicate(timeout=30)
  assert (group.returncode, out) == (130, '')
  assert err.startswith('process ') and err.endswith('ended with status 130\n')


def test_local_succeeds():
  with local('--processes=3', '--', 'echo', 'done') as group:
    out, err = group.communicate(timeout=30)
  assert group.returncode == 0
  assert not err
  assert len(out.splitlines()) == 3


FAILS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[-1] == '--process_id=1':
  {end}
time.sleep({others})
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
  ('end', 'others', 'status', 'ended'),
  [
    ('sys.exit(7)', 1, 7, False),
    ('os.kill(os.getpid(), signal.SIGKILL)', 1, 137, False),
    ('sys.exit(7)', 60, 7, True),
  ],
)
def test_local_tells_of_a_failure(end, others, status, ended):
  """The others have a while to end by themselves, and are ended then."""
  program = FAILS.format(end=end, others=others)
  grace = '--grace=0.5' if ended else '--grace=60'
  options = [grace, '--kill_after=0.5']
  start = time.monotonic()
  with local(*options, '--', sys.executable, '-c', program) as group:
    _, err = group.communicate(timeout=50)
  assert group.returncode == status
  assert f'process 1 ended with status {status}\n' in err
  assert ('ending the others' in err) == ended
  assert time.monotonic() - start < 30


def test_local_without_a_program():
  done = launchers.call('local', '--', './no such program')
  assert done.returncode == 127
  assert done.stderr == 'error: ./no such program: No such file or directory\n'


@pytest.mark.thorough
def test_local_trains_together():
  """Two processes of JAX find each other by what they are given."""
  program = (
    'import jax, sys;'
    'a = dict(x[2:].split("=", 1) for x in sys.argv[1:]);'
    'jax.distributed.initialize(a["coordinator"], int(a["num_processes"]),'
    ' int(a["process_id"]));'
    'print(jax.process_index(), jax.local_device_count(), jax.device_count());'
    'jax.distributed.shutdown()'
  )
  with local('--devices=4', '--', sys.executable, '-c', program) as group:
    out, err = group.communicate(timeout=60)
  assert group.returncode == 0, err
  assert sorted(out.splitlines()) == ['[0] 0 2 4', '[1] 1 2 4']


@pytest.mark.parametrize(
  'closed', ['>&-', '2>&-', '<&- >&- 2>&-', '>/dev/full']
)
def test_local_without_its_output(closed, tmp_path):
  command = [*launchers.PROGRAMS['local'], '--', 'sh', '-c']
  command.append(f'echo x; echo x >&2; touch {tmp_path}/${{2##*=}}; exit 3')
  done = subprocess.run(
    ['bash', '-c', f'exec "$@" {closed}', 'bash', *command],
    cwd=launchers.ROOT,
    env=launchers.environment(),
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  )
  assert done.returncode == 3
  assert 'Traceback' not in done.stderr and 'Exception' not in done.stderr
  assert len(list(tmp_path.iterdir())) == 2


def test_local_outlives_its_output():
  """A reader that goes, as head does, does not stop the processes."""
  lines = f'for i in $(seq 20000); do echo {"x" * 50}; done; exit 3'
  with local('--', 'bash', '-c', lines) as group:
    group.stdout.readline()
    group.stdout.close()
    assert group.wait(30) == 3
    group.stderr.read()
