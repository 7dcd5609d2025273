"""Traces of real runs, shares of the time, and peaks."""

import gzip
import json
import time

import jax
import pytest

from tests import programs
from tests.training.fragile import Console
from txl_jax.parallel import processes
from txl_jax.program import buckets
from txl_jax.training import profiling

STEPS = 'train.steps=30', 'train.save_every=30', 'train.log_every=3'
STEPS += ('train.batch_size=8',)


def traced(folder):
  """The steps in the one trace for Perfetto."""
  (path,) = (folder / 'run/profile').glob('plugins/profile/*/*.trace.json.gz')
  events = json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
  steps = [e for e in events if e.get('name') == 'train']
  return [int(e['args']['step_num']) for e in steps]


@pytest.mark.slow
def test_a_trace_changes_nothing(tmp_path):
  plain = tmp_path / 'plain'
  plain.mkdir()
  for folder in tmp_path, plain:
    programs.write_corpus(folder)
  assert not programs.here(programs.command(plain, *STEPS)).returncode
  profile = 'profile.start=10', 'profile.stop=14'
  arguments = programs.command(tmp_path, *STEPS, *profile)
  done = programs.here(arguments)
  assert done.returncode == 0, done.stderr
  assert traced(tmp_path) == [10, 11, 12, 13]
  assert list((tmp_path / 'run/profile').glob('plugins/profile/*/*.xplane.pb'))
  assert f'traced: {tmp_path}/run/profile\n' in done.stderr
  assert programs.record(tmp_path) == programs.record(plain)
  assert not (plain / 'run/profile').exists()
  # A run that goes on after those steps traces none of them again.
  again = programs.here(arguments)
  assert again.returncode == 0 and 'traced' not in again.stderr
  assert traced(tmp_path) == [10, 11, 12, 13]


def test_clock(monkeypatch):
  now = [50.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])

  def wait(seconds):
    now[0] += seconds

  clock = profiling.Clock()
  for _ in range(2):
    with clock('dispatch'):
      wait(0.5)
  with clock('device_wait'):
    wait(1)
  with clock.stopped():
    wait(7)
  wait(4)
  shares = {'data_wait': 0.0, 'dispatch': 0.16667, 'device_wait': 0.16667}
  assert clock.read() == (6.0, shares)
  with clock('data_wait'):
    wait(1)
  wait(3)
  shares = {'data_wait': 0.25, 'dispatch': 0.0, 'device_wait': 0.0}
  assert clock.read() == (4.0, shares)


@pytest.fixture
def run_steps(monkeypatch):
  """Runs steps, of which 3 and 4 are traced; gives what is done and said."""

  def run(folder, steps, stop=lambda: done.append('end')):
    done.clear()
    monkeypatch.setattr(jax.profiler, 'stop_trace', stop)
    config, console = profiling.Profile(start=3, stop=5), Console()
    trace = profiling.Trace(config, folder, console)
    for step in steps:
      trace.step(step)
      done.append(step)
      if trace.ends(step + 1):
        trace.close()
    trace.close()
    return [*done], console.said

  done = []
  monkeypatch.setattr(jax.profiler, 'start_trace', done.append)
  return run


def test_steps_that_are_traced(run_steps, tmp_path, monkeypatch):
  path = f'{tmp_path}/profile'
  said, done = [f'traced: {path}'], [0, 1, 2, path, 3, 4, 'end', 5, 6]
  assert run_steps(tmp_path, range(7)) == (done, said)
  assert run_steps(tmp_path, [4]) == ([path, 4, 'end'], said)
  assert run_steps(tmp_path, [5, 6]) == ([5, 6], [])
  monkeypatch.setattr(processes, 'count', lambda: 2)
  monkeypatch.setattr(processes, 'index', lambda: 1)
  path += '/process_1'
  assert run_steps(tmp_path, [3]) == ([path, 3, 'end'], [f'traced: {path}'])


@pytest.mark.parametrize('error', [RuntimeError, OSError])
def test_no_trace_is_only_a_warning(run_steps, tmp_path, error):
  def fail():
    raise error('it is\nfull')

  said = [f'warning: no trace in {tmp_path}/profile: it is']
  assert run_steps(tmp_path, range(7), fail)[1] == said


def test_a_trace_for_a_bucket_is_copied_there(run_steps, monkeypatch):
  put = []
  monkeypatch.setattr(buckets, 'put', lambda *paths: put.extend(paths))
  folder = buckets.Path('gs://b/run')
  done, said = run_steps(folder, range(7))
  assert said == ['traced: gs://b/run/profile']
  local, there = put
  assert there == folder / 'profile' and done[3] == str(local)
  assert local.is_absolute() and not local.exists()
