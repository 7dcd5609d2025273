"""Traces, shares of the time, and utilisation, of real runs."""

import gzip
import json
import sys
import time

import jax
import pytest

from tests import programs
from txl_jax.data import prepared
from txl_jax.experiment import saved_model
from txl_jax.runs import metrics_log
from txl_jax.training import cost, profiling

pytestmark = pytest.mark.thorough

# The program on a device whose peak is known: 1 and 2 TFLOP/s.
KNOWN = """
import sys
from txl_jax import main
from txl_jax.training import profiling
profiling._PEAKS['cpu'] = (1e12, 2e12)
sys.argv[0] = 'main'
main.entry()
"""
STEPS = 'train.steps=30', 'train.save_every=30', 'train.log_every=3'
STEPS += ('train.batch_size=8',)


def lines_of(folder):
  """What the log says of training."""
  records = metrics_log.read(folder / 'run/metrics.jsonl')
  return [r for r in records if r['split'] == 'train']


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
  folder = tmp_path_factory.mktemp('plain')
  programs.write_corpus(folder)
  done = programs.here(programs.command(folder, *STEPS))
  assert done.returncode == 0, done.stderr
  return folder, done


def traced(folder):
  """The steps in the one trace for Perfetto."""
  (path,) = (folder / 'run/profile').glob('plugins/profile/*/*.trace.json.gz')
  events = json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
  steps = [e for e in events if e.get('name') == 'train']
  return [int(e['args']['step_num']) for e in steps]


@pytest.mark.slow
def test_a_trace_changes_nothing(plain, tmp_path):
  programs.write_corpus(tmp_path)
  profile = 'profile.start=10', 'profile.stop=14'
  arguments = programs.command(tmp_path, *STEPS, *profile)
  done = programs.here(arguments)
  assert done.returncode == 0, done.stderr
  assert traced(tmp_path) == [10, 11, 12, 13]
  assert list((tmp_path / 'run/profile').glob('plugins/profile/*/*.xplane.pb'))
  assert f'traced: {tmp_path}/run/profile\n' in done.stderr
  assert programs.record(tmp_path) == programs.record(plain[0])
  assert not (plain[0] / 'run/profile').exists()
  # A run that goes on after those steps traces none of them again.
  again = programs.here(arguments)
  assert again.returncode == 0 and 'traced' not in again.stderr
  assert traced(tmp_path) == [10, 11, 12, 13]


@pytest.mark.slow
def test_a_trace_ends_with_the_run(tmp_path):
  programs.write_corpus(tmp_path)
  profile = 'profile.start=27', 'profile.stop=99'
  done = programs.run(programs.command(tmp_path, *STEPS, *profile))
  assert done.returncode == 0, done.stderr
  assert traced(tmp_path) == [27, 28, 29]


@pytest.mark.slow
def test_a_trace_that_cannot_be_written(plain, tmp_path):
  programs.write_corpus(tmp_path)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run/profile').write_text('')
  profile = 'profile.start=10', 'profile.stop=14'
  done = programs.run(programs.command(tmp_path, *STEPS, *profile))
  assert done.returncode == 0, done.stderr
  assert f'warning: no trace in {tmp_path}/run/profile: ' in done.stderr
  assert done.stderr.count('no trace') == 1  # not again at the next step
  assert 'Traceback' not in done.stderr
  assert programs.record(tmp_path) == programs.record(plain[0])


def test_shares_of_the_time(plain):
  folder, done = plain
  shares = ('data_wait', 'dispatch', 'device_wait')
  lines = lines_of(folder)
  assert [r['step'] for r in lines] == list(range(3, 31, 3))
  for line in lines:
    assert all(line[name] > 0 for name in shares)
    assert sum(line[name] for name in shares) <= 1.0001
    # Nobody knows the peak of a CPU.
    assert 'mfu' not in line
  found = [s for s in done.stderr.splitlines() if s.startswith('step 15/30 ')]
  data, dispatch, device = (f'{lines[4][name]:.2%}' for name in shares)
  assert f'  data {data}  dispatch {dispatch}  device {device}  ' in found[0]
  assert 'mfu' not in done.stderr


def test_rates_leave_no_time_out(plain):
  lines = lines_of(plain[0])
  tokens = 3 * 8 * 8
  seconds = [tokens / line['tokens_per_second'] for line in lines[1:]]
  passed = lines[-1]['time'] - lines[0]['time']
  assert sum(seconds) == pytest.approx(passed, rel=0.1)


def test_clock():
  clock = profiling.Clock()
  for _ in range(2):
    with clock('dispatch'):
      time.sleep(0.05)
  with clock('device_wait'):
    time.sleep(0.1)
  time.sleep(0.2)
  seconds, shares = clock.read()
  assert 0.4 <= seconds < 4
  assert shares['data_wait'] == 0
  for name in ('dispatch', 'device_wait'):
    assert 0.1 <= shares[name] * seconds + 1e-4 < seconds - 0.25
  with clock('data_wait'):
    time.sleep(0.01)
  seconds, shares = clock.read()
  assert 0.01 <= seconds < 0.4 and shares['device_wait'] == 0


@pytest.mark.slow
@pytest.mark.parametrize('dtype, most', [('bfloat16', 1e12), ('float32', 2e12)])
def test_utilisation_where_the_peak_is_known(tmp_path, dtype, most):
  programs.write_corpus(tmp_path)
  arguments = programs.command(tmp_path, *STEPS, f'model.dtype={dtype}')
  done = programs.run([sys.executable, '-c', KNOWN, *arguments[3:]])
  assert done.returncode == 0, done.stderr
  lines = lines_of(tmp_path)
  (folder,) = (tmp_path / 'data').iterdir()
  config = saved_model.recorded(tmp_path / 'run')
  flops = cost.flops_per_token(config, len(prepared.load(folder).vocabulary))
  for line in lines:
    expected = line['tokens_per_second'] * flops / most
    assert line['mfu'] == pytest.approx(expected, abs=1e-4)
  assert f'  mfu {lines[-1]["mfu"]:.1%}  data ' in done.stderr


def test_peaks(monkeypatch):
  class Device:
    device_kind = 'TPU v3'

  monkeypatch.setattr(jax, 'devices', lambda: [Device])
  monkeypatch.setattr(jax, 'device_count', lambda: 32)
  # 16 chips of 123 TFLOP/s; float32 is made of bfloat16 passes.
  assert profiling.peak('bfloat16') == 16 * 123e12
  assert profiling.peak('float32') == 16 * 123e12
  Device.device_kind = 'NVIDIA A100-SXM4-40GB'
  assert profiling.peak('bfloat16') == 2 * profiling.peak('float32')
  Device.device_kind = 'Tesla T4'
  assert profiling.peak('bfloat16') is None
  Device.device_kind = 'cpu'
  assert profiling.peak('float32') is None
