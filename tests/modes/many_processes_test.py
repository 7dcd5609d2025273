"""Several processes are one run: the same record, and they end together.

Real processes on simulated devices, stopped and killed for real.
"""

import re
import shutil
import signal
import time

import numpy as np
import pytest

from tests import programs
from tests.programs import record
from tests.runs.checkpoint.saves import flip

OPTIONS = 'model.n_layer=1', 'model.dropout=0.2', 'model.cutoffs=(9,20)'
OPTIONS += 'train.batch_size=8', 'train.steps=50', 'train.log_every=1'
OPTIONS += 'train.eval_every=25', 'train.save_every=15', 'optim.lr=1e-2'
OPTIONS += 'train.eval_batch_size=8', 'train.tensorboard=False'
OPTIONS += 'profile.start=10', 'profile.stop=12', 'generate.samples=2'


def command(folder, *options, **kwargs):
  return programs.command(folder, *OPTIONS, *options, **kwargs)


def assert_close(folder, other):
  """Every step once, and losses that are equal to 1e-5."""
  a, b = record(folder), record(other)
  assert [(r['step'], r['split']) for r in a] == [
    (r['step'], r['split']) for r in b
  ]
  a, b = ([r['nats'] for r in x] for x in (a, b))
  np.testing.assert_allclose(a, b, rtol=1e-5)


def train(folder, processes, devices, *options):
  """Trains to the end; the standard errors."""
  arguments = command(folder, *options)
  ended = programs.ends(programs.together(arguments, processes, devices))
  assert [e[0] for e in ended] == [0] * processes, ended
  for _, out, errors in ended[1:]:
    assert not errors
    assert 'validation' not in out
  assert 'best validation' in ended[0][1]
  return [e[2] for e in ended]


def after_lines(folder, count, started):
  """Waits until the log has that many lines; they must not end before."""
  path = folder / 'run/metrics.jsonl'
  deadline = time.monotonic() + 200
  while not path.exists() or path.read_bytes().count(b'\n') < count:
    assert time.monotonic() < deadline
    assert all(p.poll() is None for p in started), programs.ends(started)
    time.sleep(0.005)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """An uninterrupted run of 2 processes with 4 devices each."""
  folder = tmp_path_factory.mktemp('whole')
  programs.write_corpus(folder)
  train(folder, 2, 4)
  return folder


@pytest.fixture
def fresh(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


@pytest.mark.slow
def test_each_process_traces_its_own_steps(fresh):
  train(fresh, 2, 1, 'train.steps=12')
  for process in range(2):
    folder = fresh / f'run/profile/process_{process}/plugins/profile'
    assert list(folder.glob('*/*.xplane.pb'))


@pytest.mark.slow
@pytest.mark.parametrize('processes, devices', [(1, 8), (4, 2)])
def test_the_split_does_not_matter(whole, fresh, processes, devices):
  train(fresh, processes, devices)
  assert_close(fresh, whole)


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
  """A run that SIGTERM to one process has stopped, and its step."""
  folder = tmp_path_factory.mktemp('stopped')
  programs.write_corpus(folder)
  # Both stop at the same step, which is saved.
  started = programs.together(command(folder), 2, 4)
  after_lines(folder, 15, started)
  started[1].send_signal(signal.SIGTERM)
  (status, _, errors), (other, _, silent) = programs.ends(started)
  assert status == other == 128 + signal.SIGTERM, errors + silent
  last = errors.splitlines()[-1]
  step = int(re.fullmatch(r'stopped by SIGTERM at step (\d+), .*', last)[1])
  assert not silent
  assert (folder / f'run/checkpoints/{step}/seal.json').exists()
  return folder, step


@pytest.mark.slow
def test_continued_by_one_process_with_two_devices(whole, stopped, tmp_path):
  copy(stopped[0], tmp_path)
  first, *_ = train(tmp_path, 1, 2)
  assert f'continuing from step {stopped[1]}\n' in first
  assert_close(tmp_path, whole)
  assert record(tmp_path)[: stopped[1]] == record(whole)[: stopped[1]]


@pytest.mark.slow
def test_killed_and_continued(whole, stopped, tmp_path):
  fresh = tmp_path
  copy(stopped[0], fresh)
  # kill -9 to the other ends the first, after twice lost_seconds at most.
  lost = 15
  arguments = command(fresh, f'watch.lost_seconds={lost}')
  started = programs.together(arguments, 2, 4)
  after_lines(fresh, 35, started)
  started[1].kill()
  begin = time.monotonic()
  (status, *_), _ = programs.ends(started)
  assert time.monotonic() - begin < 2 * lost + 10
  assert status == -signal.SIGABRT
  first, _ = train(fresh, 2, 4)
  assert 'continuing from step' in first
  assert record(fresh) == record(whole)


@pytest.mark.slow
@pytest.mark.parametrize('paused', [0, 1])
def test_a_process_that_is_paused_is_waited_for(whole, fresh, paused):
  """As a machine that is moved, for little less than watch.lost_seconds."""
  started = programs.together(command(fresh), 2, 4)
  after_lines(fresh, 20, started)
  started[paused].send_signal(signal.SIGSTOP)
  time.sleep(40)
  started[paused].send_signal(signal.SIGCONT)
  assert [status for status, _, _ in programs.ends(started)] == [0, 0]
  assert record(fresh) == record(whole)


def copy(folder, target):
  """A copy of a run; the paths of its checkpoints, newest first."""
  for name in ('run', 'data'):
    shutil.copytree(folder / name, target / name)
  shutil.copy(folder / 'corpus.txt', target)
  found = (target / 'run/checkpoints').iterdir()
  return sorted(found, key=lambda path: -int(path.name))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_by_all(whole, tmp_path):
  newest, before, *_ = copy(whole, tmp_path)
  path = max(newest.rglob('ocdbt.process_1/d/*'))
  flip(path, path.stat().st_size // 2)
  first, _ = train(tmp_path, 2, 4)  # where the second says nothing
  assert first.count(f'checkpoint {newest.name} is damaged') == 1
  assert f'continuing from step {before.name}\n' in first
  assert record(tmp_path) == record(whole)


@pytest.mark.slow
@pytest.mark.parametrize('limited', [(1,), (0, 1)])
def test_a_full_disk(whole, tmp_path, limited):
  newest, *earlier = copy(whole, tmp_path)
  shutil.rmtree(newest)
  files = [f for e in earlier for f in e.rglob('*') if f.is_file()]
  before = {f: f.read_bytes() for f in files}
  blocks = dict.fromkeys(limited, 4 if limited == (1,) else 40)
  started = programs.together(command(tmp_path), 2, 4, blocks=blocks)
  ended = programs.ends(started, timeout=120)
  assert [e[0] for e in ended] == [1, 1], ended
  for process, (_, _, errors) in enumerate(ended):
    assert 'Traceback' not in errors
    last = errors.splitlines()[-1]
    # Where both fail at nearly the same time, each may name itself.
    named = re.match(r'error: process (\d) of 2 on \S+, step \d+: ', last)
    assert named and int(named[1]) in limited
    assert f'{newest}: the checkpoint cannot be written' in last
    assert 'File too large' in last
    assert 'earlier checkpoints are untouched' in last
    if process not in limited:
      assert f'process {process} of 2' in last
  assert {f: f.read_bytes() for f in files} == before
  train(tmp_path, 2, 4)
  assert record(tmp_path) == record(whole)


@pytest.mark.slow
def test_a_workdir_that_cannot_be_written(fresh):
  # Below a file; root may write where permissions forbid it.
  (fresh / 'run').write_text('')
  arguments = [
    a.replace(f'{fresh}/run', f'{fresh}/run/below') for a in command(fresh)
  ]
  for status, _, errors in programs.ends(programs.together(arguments, 2, 1)):
    assert status == 1
    assert 'Traceback' not in errors
    last = errors.splitlines()[-1]
    assert f'--workdir={fresh}/run/below cannot be written' in last


@pytest.mark.slow
def test_another_config_is_refused(fresh):
  started = programs.together(command(fresh), 2, 1, last=['--config.seed=1'])
  (status, _, errors), (other, _, silent) = programs.ends(started)
  assert status == other == 1
  for text in (errors, silent):
    last = text.splitlines()[-1]
    assert 'process 1 of 2' in last
    assert 'seed is 1 here, 0 on process 0; allowed: the same' in last
  assert not record(fresh)  # for no step is made without the other


@pytest.mark.slow
def test_what_is_made_with_a_model(whole, tmp_path):
  def both(mode, *options, flag=''):
    """What is printed by one process, and by the first of two."""
    printed = []
    for n in (1, 2):
      more = [o.format(n) for o in options]
      flags = [f'--mode={mode}', *([flag.format(n)] if flag else [])]
      started = programs.together(command(whole, *more, flags=flags), n, 1)
      ended = programs.ends(started)
      assert [e[0] for e in ended] == [0] * n, ended
      printed.append([re.sub(r'\[Gloo\].*\n', '', out) for _, out, _ in ended])
    (one,), (main, silent) = printed
    assert not silent
    return one, main

  nll = f'eval.nll_file={tmp_path}/{{}}.npy'
  one, main = both('eval', 'eval.batch_size=2', nll)
  assert one.split(' nats')[0] == main.split(' nats')[0]
  scored = [np.load(tmp_path / f'{n}.npy') for n in (1, 2)]
  np.testing.assert_allclose(*scored, rtol=1e-5)
  for mesh in ((), ('mesh.data=1', 'mesh.fsdp={}')):
    one, main = both('generate', *mesh)
    assert one == main
  both('export', flag=f'--export_file={tmp_path}/{{}}.npz')
  files = [np.load(tmp_path / f'{n}.npz') for n in (1, 2)]
  assert files[0].files == files[1].files
  for key in files[0].files:
    np.testing.assert_array_equal(files[0][key], files[1][key])
