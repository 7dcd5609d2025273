"""What a save writes, keeps and deletes; also where the disk is full."""

import os
import pathlib
import resource
import shutil
import threading

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from tests.refusing import refused
from tests.runs.checkpoint.saves import (
  HOST,
  PARAMS,
  TRAINING,
  abstract,
  assert_whole,
  bits,
  contents,
  cut,
  files,
  mesh_of,
  names,
  save,
  whole,
)
from txl_jax.parallel import placement, processes
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, checkpoint_folder

# What is kept


@pytest.mark.thorough
def test_the_two_newest_and_those_to_keep_remain(tmp_path):
  c = checkpoint.Checkpoints(tmp_path)
  for step, keep, expected in [
    (1, (1,), [1]),
    (2, (1,), [2, 1]),
    (3, (1,), [3, 2, 1]),
    (4, (1,), [4, 3, 1]),
    (5, (5,), [5, 4]),
    (10, (-1, 4), [10, 5, 4]),
    (11, (), [11, 10]),
    (0, (), [11, 10, 0]),  # converted weights
    (12, (), [12, 11, 0]),
  ]:
    save(c, step, keep=keep)
    assert c.steps() == whole(c) == expected


def test_a_step_that_cannot_be_deleted_stays_for_a_while(
  c, monkeypatch, capsys
):
  def refuse(step):
    raise PermissionError(13, 'not now', str(step))

  with monkeypatch.context() as m:
    m.setattr(c, '_retire', refuse)
    save(c, 3)
  assert whole(c) == [3, 2, 1]
  found = capsys.readouterr().err
  assert found.startswith(f'warning: {c.folder}: older checkpoints are kept (')
  assert "not now: '1'" in found
  save(c, 4)
  assert whole(c) == c.steps() == [4, 3] and not capsys.readouterr().err


def test_a_step_is_replaced_where_its_predecessor_could_not_be_removed(c):
  shutil.copytree(c.folder / '2', c.folder / '2.old')
  save(c, 2, host={'best': 1})
  assert whole(c) == [2, 1] and c.host(2) == {'best': 1}
  assert names(c.folder) == ['1', '2']


def test_damaged_steps_take_no_place_and_are_not_deleted(c):
  cut(c.folder / '2' / 'seal.json')
  save(c, 3)
  assert c.steps() == [3, 2, 1]
  assert whole(c) == [3, 1]


def test_a_step_that_is_half_deleted_is_no_damaged_one(c, monkeypatch, capfd):
  def die(path, **kwargs):
    next(pathlib.Path(path).rglob('manifest.ocdbt')).unlink()
    raise KeyboardInterrupt

  with monkeypatch.context() as m:
    m.setattr(shutil, 'rmtree', die)
    with pytest.raises(KeyboardInterrupt):
      save(c, 3)
  c.recover()
  assert c.steps() == whole(c) == [3, 2]
  assert names(c.folder) == ['2', '3']
  assert not capfd.readouterr().err


def test_a_whole_step_is_not_written_again(c):
  save(c, 2, HOST | {'pair': (1, 2)})  # JSON makes a list of it
  before = {path: path.stat().st_mtime_ns for path in files(c.folder)}
  save(c, 2, HOST | {'pair': (1, 2)})
  assert {p: p.stat().st_mtime_ns for p in files(c.folder)} == before


def test_a_damaged_step_is_replaced(c):
  cut(c.folder / '2' / 'params' / '_METADATA')
  save(c, 2)
  assert_whole(c, 2)
  assert whole(c) == [2, 1] and names(c.folder) == ['1', '2']


# Saves that go on while training does


@pytest.fixture
def held(monkeypatch):
  """An event that every seal waits for."""
  event, write = threading.Event(), checkpoint_folder.seal
  monkeypatch.setattr(
    checkpoint_folder, 'seal', lambda *args: (event.wait(60), write(*args))
  )
  yield event
  event.set()


def test_what_is_written_is_the_state_of_the_call(tmp_path):
  shard = placement.replicated(mesh_of(2))
  rng = np.random.default_rng(0)
  before = rng.normal(size=[4, 1000, 500]).astype(np.float32)
  # Not device_put: what numpy has made is not donated.
  make = jax.jit(
    lambda x: {'x': x + 0, 'n': x[0, 0, 0] + 1}, out_shardings=shard
  )
  state = make(before)
  step = jax.jit(
    lambda s: jax.tree.map(lambda x: 0 * x, s),
    donate_argnums=0,
    out_shardings=shard,
  )
  c = checkpoint.Checkpoints(tmp_path, asynchronous=True)
  c.save(1, HOST, params=state, training=TRAINING)
  assert not whole(c), 'it was written before the call returned'
  for _ in range(5):
    old, state = state, step(state)
  jax.block_until_ready(state)
  assert old['x'].is_deleted(), 'nothing was donated'
  c.wait()
  assert whole(c) == [1]
  (got,) = c.restore(1, params=abstract(state)).values()
  assert bits(got) == bits({'x': before, 'n': before[0, 0, 0] + 1})


def test_nothing_is_deleted_while_the_new_step_is_written(c, held, monkeypatch):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 3)
  c.check()
  with monkeypatch.context() as m:
    m.setattr(checkpoint.processes, 'count', lambda: 2)
    c.abandon()  # which the other process may never complete
  assert c.steps() == whole(c) == [2, 1]
  held.set()
  c.wait()
  assert c.steps() == whole(c) == [3, 2]
  assert_whole(c, 3)


def test_a_save_waits_for_the_one_before(c, held):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 3)
  threading.Timer(0.3, held.set).start()
  save(c, 4)
  assert 3 in whole(c)
  c.wait()
  assert whole(c) == [4, 3]


def test_a_step_is_replaced_in_the_background(c, held):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 2, {'best': 0.5})
  assert whole(c) == [2, 1] and c.host(2) == HOST
  held.set()
  c.wait()
  assert c.host(2) == {'best': 0.5}
  assert whole(c) == [2, 1] and names(c.folder) == ['1', '2']


@pytest.mark.parametrize('asked', ['check', 'wait', 'save'])
def test_a_failure_in_the_background_is_told_once(c, monkeypatch, asked):
  def full(descriptor):
    raise OSError(28, 'No space left on device')

  before = contents(c.folder)
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  with monkeypatch.context() as m:
    m.setattr(os, 'fsync', full)
    save(c, 3)
    c.abandon()  # ends when the thread has
  ask = {'check': c.check, 'wait': c.wait, 'save': lambda: save(c, 4)}[asked]
  cause = r'written \(/.*: No space left on device\); earlier'
  with pytest.raises(UserError, match=cause) as e:
    ask()
  assert '\n' not in str(e.value)
  assert contents(c.folder) == before and names(c.folder) == ['1', '2']
  c.check()
  save(c, 4)
  c.wait()
  assert whole(c) == [4, 2]


# What was written but cannot be read


def lose_values(item):
  """The largest file has the values of a table, and no names or shapes."""
  largest = max(files(item), key=lambda path: path.stat().st_size)
  assert largest.stat().st_size > 30_000
  largest.write_bytes(b'')
  ocp.StandardCheckpointHandler().metadata(item)


LOSSES = {
  'index': lambda item: (item / 'manifest.ocdbt').unlink(),
  'values': lose_values,
  'names': lambda item: (item / '_METADATA').unlink(),
  'item': shutil.rmtree,
}


@pytest.fixture
def lossy(monkeypatch):
  """Makes Orbax report success for a save of which an item is then lost."""
  close = ocp.AsyncCheckpointer.close

  def lose(loss, item):
    def closed(writer):
      close(writer)
      LOSSES[loss](item)

    monkeypatch.setattr(ocp.AsyncCheckpointer, 'close', closed)

  return lose


@pytest.mark.parametrize('item', ['params', 'average'])
@pytest.mark.parametrize('loss', LOSSES)
def test_a_save_that_cannot_be_read_fails(c, lossy, loss, item):
  before = contents(c.folder)
  lossy(loss, c.folder / '3.new' / item)
  with pytest.raises(UserError, match=f'3.new/{item}.*; earlier') as e:
    save(c, 3, params=random_table(), average=random_table())
  assert '\n' not in str(e.value)
  assert contents(c.folder) == before and names(c.folder) == ['1', '2']


LOST = RuntimeError('process 1 is lost')


@pytest.mark.parametrize(
  'folder, error, cause, count, expected',
  [
    # Clients raise any type.
    ('gs://bucket/run', KeyError, None, 1, UserError),
    ('', KeyError, None, 1, KeyError),
    ('', OSError, LOST, 2, RuntimeError),
    ('', OSError, LOST, 1, UserError),  # no other process can be lost
    ('', ValueError, None, 2, UserError),  # what TensorStore cannot write
    ('', UserError, LOST, 2, UserError),  # what Orbax cannot read
  ],
)
def test_errors_of_a_save(
  tmp_path, memory, monkeypatch, folder, error, cause, count, expected
):
  c = checkpoint.Checkpoints(folder or tmp_path)
  monkeypatch.setattr(processes, 'count', lambda: count)
  with pytest.raises(expected) as e, c._write_errors(3):
    raise error from cause
  if error is ValueError:  # of this process, so it ends at once
    assert isinstance(e.value.__cause__, OSError)


def test_an_array_that_was_not_written(tmp_path, monkeypatch):
  def without_one(tree):
    return save_args({k: x for k, x in tree.items() if k != 'deep'})

  save_args = ocp.args.StandardSave
  monkeypatch.setattr(ocp.args, 'StandardSave', without_one)
  c = checkpoint.Checkpoints(tmp_path / 'checkpoints')
  with pytest.raises(UserError, match='params/deep/half is nothing in the'):
    save(c, 1)
  assert c.steps() == [] and names(c.folder) == []


# Names of folders


@pytest.mark.parametrize(
  'name', ['exp[1]', '[a-z]', 'a*b', 'a?', '{a,b} %41#$HOME~', '-a\nb\'"ü']
)
def test_a_folder_of_any_name(tmp_path, name):
  c = checkpoint.Checkpoints(tmp_path / name / 'checkpoints')
  save(c, 1)
  assert_whole(c, 1)
  assert whole(c) == [1] and names(tmp_path) == [name]


def test_files_of_a_folder_with_a_similar_name_are_not_read(tmp_path):
  for name in ('a*b', 'a1b'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'process_0').touch()
  path = epath.Path(checkpoint._orbax_path(tmp_path / 'a*b'))
  assert [f'{x}' for x in path.glob('process_*')] == [
    f'{tmp_path}/a*b/process_0'
  ]


@pytest.mark.parametrize('scheme', ['gs', 's3', 'hf'])
def test_a_local_folder_with_the_name_of_a_scheme(scheme):
  path = pathlib.Path(f'/{scheme}/run/checkpoints')
  path = epath.Path(checkpoint._orbax_path(path)) / '1'
  assert f'{path}' == os.fspath(path) == f'/{scheme}/run/checkpoints/1'


@pytest.mark.parametrize('name', ['a\\b', 'a\udc80', 'gs:/b'])
def test_a_path_that_tensorstore_reads_as_another(c, tmp_path, name):
  os.renames(c.folder, tmp_path / name)
  c = checkpoint.Checkpoints(tmp_path / name)
  assert whole(c) == [2, 1] and c.host(2) == HOST
  before = contents(tmp_path)
  for use in (
    c.check_path,
    lambda: save(c, 3),
    lambda: c.restore(2, params=abstract(PARAMS)),
  ):
    with pytest.raises(UserError, match=r'cannot hold runs; allowed: .*\\'):
      use()
  assert contents(tmp_path) == before


# A disk that is full


@pytest.fixture
def limit():
  """Sets the largest size of a file that can be written."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  yield lambda size: resource.setrlimit(
    resource.RLIMIT_FSIZE, (size, before[1])
  )
  resource.setrlimit(resource.RLIMIT_FSIZE, before)


def random_table():
  rng = np.random.default_rng(0)
  table = rng.normal(size=[100, 100]).astype(np.float32)
  return {'bias': np.zeros(1, np.float32), 'table': table}


def assert_fails_to_save(c, step, limit, size, *args):
  before = contents(c.folder)
  limit(size)
  message = refused(lambda: (save(c, step, *args), c.wait()))
  limit(1 << 40)
  assert str(c.folder / str(step)) in message
  c.recover()
  assert contents(c.folder) == before
  assert whole(c) == [2, 1]
  return message


# Threads of Orbax end with an error that nobody collects.
unraisable = pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning'
)


# Files are written one after the other, each larger than some limit.
@unraisable
@pytest.mark.parametrize(
  'size, asynchronous',
  [(0, False), (60, False), (150, False), (1000, True), (20_000, True)],
)
def test_full_disk(c, limit, size, asynchronous):
  c = checkpoint.Checkpoints(c.folder, asynchronous)
  args = (3, limit, size, HOST, random_table())
  assert 'File too large' in assert_fails_to_save(c, *args)
  save(c, 3)  # there is room again
  c.wait()
  assert_whole(c, 3)


@unraisable
def test_full_disk_when_a_step_is_replaced(c, limit):
  assert_fails_to_save(c, 2, limit, 0, {'best': 0.5})
  assert_whole(c, 2)


def test_disk_that_fails_while_a_step_is_replaced(c, monkeypatch):
  rename = pathlib.Path.rename

  def fail(self, target):
    if self.name == '2.new':
      raise OSError(5, 'Input/output error')
    return rename(self, target)

  with monkeypatch.context() as m:
    m.setattr(pathlib.Path, 'rename', fail)
    with pytest.raises(UserError, match='Input/output error'):
      save(c, 2, {'best': 0.5})
  c.recover()
  assert whole(c) == [2, 1] and names(c.folder) == ['1', '2']
  assert_whole(c, 2)


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  c = checkpoint.Checkpoints(tmp_path / 'file' / 'checkpoints')
  assert str(c.folder) in refused(save, c, 1)
