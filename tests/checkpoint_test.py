import functools
import math
import os
import pathlib
import resource
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from txl_jax import checkpoint, models, sharding, train_state
from txl_jax.errors import UserError

HOST = {'best': 1.5, 'names': ['a', 'é'], 'nested': {'n': 3}}
PARAMS = {
  'table': np.arange(24, dtype=np.float32).reshape(8, 3),
  'deep': {'half': np.arange(4).astype(jnp.bfloat16)},
}
TRAINING = {'step': np.int32(5), 'rows': np.ones([8, 2], np.int32)}


def mesh_of(devices):
  devices = jax.devices()[:devices]
  return sharding.make_mesh(devices=devices)


def save(c, step, host=HOST, params=PARAMS, **kwargs):
  items = dict(params=params, training=TRAINING)
  c.save(step, host, **jax.tree.map(jnp.asarray, items), **kwargs)


def abstract(tree):
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
  return jax.tree.map(shape, tree)


def bits(tree):
  return jax.tree.map(lambda x: (x.dtype, np.asarray(x).tobytes()), tree)


def assert_whole(c, step):
  """The step restores to what `save` has written."""
  got = c.restore(step, params=abstract(PARAMS), training=abstract(TRAINING))
  assert bits(got) == bits({'params': PARAMS, 'training': TRAINING})
  assert c.host(step) == HOST


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A folder with steps 1 and 2."""
  folder = tmp_path_factory.mktemp('saved') / 'checkpoints'
  for step in (1, 2):
    save(checkpoint.Checkpoints(folder), step)
  return folder


@pytest.fixture
def c(saved, tmp_path):
  folder = tmp_path / 'checkpoints'
  shutil.copytree(saved, folder)
  return checkpoint.Checkpoints(folder)


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def files(folder):
  return sorted(path for path in folder.rglob('*') if path.is_file())


def contents(folder):
  return {path: path.read_bytes() for path in files(folder)}


def flip(path, byte, bit=0):
  data = bytearray(path.read_bytes())
  data[byte] ^= 1 << bit
  path.write_bytes(data)


# What comes back


@functools.cache
def state_of_training():
  """A TrainState as training has it, with numbers that are hard to keep."""
  model = models.build(
    dict(
      name='transformer_xl',
      n_layer=2,
      d_model=8,
      n_head=2,
      d_head=3,
      d_ff=10,
      mem_len=4,
      dtype='bfloat16',
    ),
    11,
  )
  optimiser = optax.chain(
    optax.clip_by_global_norm(0.25), optax.scale_by_adam()
  )
  create = lambda: train_state.create(model, optimiser, 8, jax.random.key(0))
  rng = np.random.default_rng(0)

  def fill(x):
    if jnp.issubdtype(x.dtype, jnp.integer):
      return rng.integers(-9, 9, x.shape).astype(x.dtype)
    out = np.asarray(rng.normal(size=x.shape)).astype(x.dtype)
    strange = [math.nan, math.inf, -math.inf, -0.0, 1e-40]
    if out.size >= len(strange):
      out.flat[: len(strange)] = strange
    return out

  return jax.tree.map(fill, jax.eval_shape(create))


@pytest.mark.parametrize('before, after', [(1, 8), (8, 1), (8, 8)])
def test_training_comes_back_bit_for_bit(tmp_path, before, after):
  state = state_of_training()
  assert {str(x.dtype) for x in jax.tree.leaves(state)} == {
    'bfloat16',
    'float32',
    'int32',
  }
  placed = jax.device_put(state, train_state.shardings(state, mesh_of(before)))
  folder = tmp_path / 'checkpoints'
  checkpoint.Checkpoints(folder).save(
    7, HOST, params=placed.params, training=placed.replace(params=())
  )

  shardings = train_state.shardings(state, mesh_of(after))
  wanted = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    state,
    shardings,
  )
  c = checkpoint.Checkpoints(folder)
  assert c.good_steps() == [7]
  got = c.restore(7, params=wanted.params, training=wanted.replace(params=()))
  got = got['training'].replace(params=got['params'])
  assert jax.tree.structure(got) == jax.tree.structure(state)
  assert bits(got) == bits(state)
  assert jax.tree.map(lambda x: x.sharding, got) == shardings


def test_an_average_beside_the_parameters(c):
  assert not c.has_average(2)
  average = {'params': PARAMS, 'count': np.int32(3)}
  save(c, 3, average=jax.tree.map(jnp.asarray, average))
  assert c.has_average(3) and c.good_steps()[0] == 3
  got = c.restore(3, average=abstract(average))
  assert got.keys() == {'average'} and bits(got['average']) == bits(average)
  assert_whole(c, 3)
  cut(max(files(c.folder / '3' / 'average')))
  assert 3 not in c.good_steps()


def test_an_average_that_is_not_there(c):
  with pytest.raises(UserError, match='average/count is nothing in the check'):
    c.restore(2, average=abstract({'count': np.int32(3)}))


def test_parameters_alone(c):
  (item,) = c.restore(2, params=abstract(PARAMS)).items()
  assert item[0] == 'params' and bits(item[1]) == bits(PARAMS)


def test_host_part(tmp_path):
  c = checkpoint.Checkpoints(tmp_path)
  host = {'best': math.inf, 'worst': 0.1 + 0.2, 'none': None, 'step': 2**40}
  save(c, 0, host)
  assert c.host(0) == host
  assert c.good_steps() == [0]


def test_no_folder(tmp_path):
  c = checkpoint.Checkpoints(tmp_path / 'a' / 'b')
  assert c.steps() == c.good_steps() == []
  c.recover()
  c.clean(0)
  assert names(tmp_path) == []
  save(c, 3)  # makes it
  assert_whole(c, 3)


# Damage


def test_whole_checkpoints_are_good_without_a_word(c, capfd):
  assert c.steps() == c.good_steps() == [2, 1]
  assert_whole(c, 2)
  assert capfd.readouterr() == ('', '')


def cut(path):
  path.write_bytes(path.read_bytes()[:-1])


DAMAGE = {
  'first bit flipped': lambda path: flip(path, 0),
  'last bit flipped': lambda path: flip(path, -1, 7),
  'middle bit flipped': lambda path: flip(path, path.stat().st_size // 2, 3),
  'cut': cut,
  'grown': lambda path: path.write_bytes(path.read_bytes() + b'\0'),
  'emptied': lambda path: path.write_bytes(b''),
  'deleted': pathlib.Path.unlink,
  'a folder': lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize('kind', DAMAGE)
def test_damage_of_any_file_is_found(c, kind, capfd):
  folder = c.folder / '2'
  assert len(files(folder)) > 10
  for path in files(folder):
    data = path.read_bytes()
    DAMAGE[kind](path)
    assert checkpoint.Checkpoints(c.folder).good_steps() == [1], path
    out, err = capfd.readouterr()
    assert not out and err.count('\n') == 1
    assert err.startswith(f'warning: {c.folder}: checkpoint 2 ')
    said = path.relative_to(folder).as_posix()
    assert ('seal' if said == 'seal.json' else said) in err
    if path.is_dir():
      path.rmdir()
    path.write_bytes(data)
  assert_whole(c, 1)
  assert checkpoint.Checkpoints(c.folder).good_steps() == [2, 1]


def test_any_flipped_bit_of_the_seal_is_found(c):
  path = c.folder / '2' / 'seal.json'
  data = path.read_bytes()
  with path.open('r+b', buffering=0) as f:
    for at, byte in enumerate(data):
      for bit in range(8):
        os.pwrite(f.fileno(), bytes([byte ^ 1 << bit]), at)
        assert checkpoint.damage(path.parent), (at, bit)
      os.pwrite(f.fileno(), bytes([byte]), at)
  assert not checkpoint.damage(path.parent)


@pytest.mark.parametrize('seal', [b'null', b'[]', b'7', b'{"files": {}}'])
def test_other_json_is_no_seal(c, seal):
  (c.folder / '2' / 'seal.json').write_bytes(seal)
  assert c.good_steps() == [1]


def test_damage_of_an_older_step(c, capfd):
  cut(c.folder / '1' / '_CHECKPOINT_METADATA')
  assert c.good_steps() == [2]
  assert c.steps() == [2, 1]
  assert 'checkpoint 1 is damaged' in capfd.readouterr().err


def test_damage_is_told_once(c, capfd):
  cut(c.folder / '2' / '_CHECKPOINT_METADATA')
  assert c.good_steps() == c.good_steps() == [1]
  assert capfd.readouterr().err.count('checkpoint 2') == 1


def test_damage_of_all_steps(c):
  for step in '12':
    cut(c.folder / step / '_CHECKPOINT_METADATA')
  assert c.good_steps() == []


@pytest.mark.parametrize('rubbish', [False, True])
def test_a_folder_with_the_name_of_a_step(c, capfd, rubbish):
  (c.folder / '3').mkdir()
  if rubbish:
    (c.folder / '3' / 'notes.txt').write_text('not by us')
  assert c.good_steps() == [2, 1]
  assert 'checkpoint 3 ' in capfd.readouterr().err
  for step in '12':
    shutil.rmtree(c.folder / step)
  assert c.good_steps() == []


def test_other_names_are_no_steps(c, capfd):
  for name in ('damaged', '4.new', '5.orbax-checkpoint-tmp', '-6', '7.0'):
    (c.folder / name).mkdir()
  (c.folder / '8').write_text('a file')
  assert c.steps() == c.good_steps() == [2, 1]
  assert not capfd.readouterr().err


def test_an_unsealed_step_is_not_used_beside_a_sealed_one(c):
  (c.folder / '2' / 'seal.json').unlink()
  assert c.good_steps() == [1]
  c.clean(1)
  assert c.steps() == [1]


def test_an_unsealed_step_is_tried_where_nothing_else_is(c, capfd):
  (c.folder / '2' / 'seal.json').unlink()
  cut(c.folder / '1' / 'seal.json')
  assert c.good_steps() == [2]
  message = 'checkpoint 2 is not sealed, perhaps not yet, and is tried, for no'
  assert message in capfd.readouterr().err
  assert_whole(c, 2)


def test_of_unsealed_steps_the_newest_is_tried(c, capfd):
  for step in '12':
    (c.folder / step / 'seal.json').unlink()
  assert c.good_steps() == [2]
  first, second = capfd.readouterr().err.splitlines()
  assert 'checkpoint 2 is not' in first and 'and is tried' in first
  assert 'checkpoint 1 is not' in second and 'and is not used' in second


def test_an_unsealed_step_that_is_continued_from_is_sealed(c):
  (c.folder / '2' / 'seal.json').unlink()
  shutil.rmtree(c.folder / '1')
  assert c.good_steps() == [2]
  c.clean(2)
  assert checkpoint.damage(c.folder / '2') == ''
  assert not (c.folder.parent / 'damaged').exists()


def test_an_unsealed_step_that_orbax_did_not_finish_is_not_tried(c):
  for step in '12':
    (c.folder / step / 'seal.json').unlink()
    (c.folder / step / '_CHECKPOINT_METADATA').unlink()
  assert c.good_steps() == []


# What is kept


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
  ]:
    save(c, step, keep=keep)
    assert c.steps() == c.good_steps() == expected


def test_damaged_steps_take_no_place_and_are_not_deleted(c):
  cut(c.folder / '2' / 'seal.json')
  save(c, 3)
  assert c.steps() == [3, 2, 1]
  assert c.good_steps() == [3, 1]


def test_nothing_is_deleted_before_the_new_step_is_sealed(c, monkeypatch):
  monkeypatch.setattr(checkpoint, 'seal', lambda folder: None)
  save(c, 3)
  assert c.good_steps() == [2, 1]


def test_a_step_that_is_half_deleted_is_no_damaged_one(c, monkeypatch, capfd):
  def die(path, **kwargs):
    next(pathlib.Path(path).rglob('manifest.ocdbt')).unlink()
    raise KeyboardInterrupt

  with monkeypatch.context() as m:
    m.setattr(shutil, 'rmtree', die)
    with pytest.raises(KeyboardInterrupt):
      save(c, 3)
  c.recover()
  assert c.steps() == c.good_steps() == [3, 2]
  assert names(c.folder) == ['2', '3']
  assert not capfd.readouterr().err


def test_a_whole_step_is_not_written_again(c):
  save(c, 2, HOST | {'pair': (1, 2)})  # JSON makes a list of it
  before = {path: path.stat().st_mtime_ns for path in files(c.folder)}
  save(c, 2, HOST | {'pair': (1, 2)})
  assert {p: p.stat().st_mtime_ns for p in files(c.folder)} == before


def test_a_step_with_another_host_part_is_replaced(c):
  save(c, 2, {'best': 0.5})
  assert c.host(2) == {'best': 0.5}
  assert c.good_steps() == [2, 1] and names(c.folder) == ['1', '2']


def test_a_damaged_step_is_replaced(c):
  cut(c.folder / '2' / 'params' / '_METADATA')
  save(c, 2)
  assert_whole(c, 2)
  assert c.good_steps() == [2, 1] and names(c.folder) == ['1', '2']


# Saves that go on while training does


@pytest.fixture
def held(monkeypatch):
  """An event that every seal waits for."""
  event, seal = threading.Event(), checkpoint.seal
  monkeypatch.setattr(
    checkpoint, 'seal', lambda folder: (event.wait(60), seal(folder))
  )
  yield event
  event.set()


def test_what_is_written_is_the_state_of_the_call(tmp_path):
  shard = sharding.replicated(mesh_of(2))
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
  assert not c.good_steps(), 'it was written before the call returned'
  for _ in range(5):
    old, state = state, step(state)
  jax.block_until_ready(state)
  assert old['x'].is_deleted(), 'nothing was donated'
  c.wait()
  assert c.good_steps() == [1]
  (got,) = c.restore(1, params=abstract(state)).values()
  assert bits(got) == bits({'x': before, 'n': before[0, 0, 0] + 1})


def test_nothing_is_deleted_while_the_new_step_is_written(c, held):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 3)
  assert c.steps()[-2:] == c.good_steps() == [2, 1]
  held.set()
  c.wait()
  assert c.steps() == c.good_steps() == [3, 2]
  assert_whole(c, 3)


def test_a_save_waits_for_the_one_before(c, held):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 3)
  threading.Timer(0.3, held.set).start()
  save(c, 4)
  assert 3 in c.good_steps()
  c.wait()
  assert c.good_steps() == [4, 3]


def test_a_step_is_replaced_in_the_background(c, held):
  c = checkpoint.Checkpoints(c.folder, asynchronous=True)
  save(c, 2, {'best': 0.5})
  assert c.good_steps() == [2, 1] and c.host(2) == HOST
  held.set()
  c.wait()
  assert c.host(2) == {'best': 0.5}
  assert c.good_steps() == [2, 1] and names(c.folder) == ['1', '2']


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
  with pytest.raises(UserError, match='No space left') as e:
    ask()
  assert '\n' not in str(e.value)
  assert contents(c.folder) == before and names(c.folder) == ['1', '2']
  c.check()
  save(c, 4)
  c.wait()
  assert c.good_steps() == [4, 2]


# What interrupted saves leave behind


def test_recover_finishes_a_replacement(c):
  # The process died when the old step 2 had been moved out of the way.
  (c.folder / '2').rename(c.folder / '2.new')
  shutil.copytree(c.folder / '1', c.folder / '2.old')
  c.recover()
  assert names(c.folder) == ['1', '2']
  assert_whole(c, 2)


@pytest.mark.parametrize('name', ['2.new', '2.old'])
def test_recover_leaves_whole_steps_alone(c, name):
  before = contents(c.folder)
  shutil.copytree(c.folder / '1', c.folder / name)
  c.recover()
  assert contents(c.folder) == before
  assert names(c.folder) == ['1', '2']


def test_recover_takes_no_damaged_replacement(c):
  shutil.copytree(c.folder / '1', c.folder / '3.new')
  cut(c.folder / '3.new' / '_CHECKPOINT_METADATA')
  c.recover()
  assert names(c.folder) == ['1', '2']


def test_recover_removes_temporary_folders(c):
  for name in ('3.orbax-checkpoint-tmp', '2.new.orbax-checkpoint-tmp-17'):
    shutil.copytree(c.folder / '1', c.folder / name)
  c.recover()
  assert names(c.folder) == ['1', '2']
  assert c.good_steps() == [2, 1]


def test_clean_moves_damaged_and_later_steps_aside(c):
  for step in '345':
    shutil.copytree(c.folder / '1', c.folder / step)
  cut(c.folder / '2' / '_CHECKPOINT_METADATA')
  (c.folder / '5' / 'seal.json').unlink()
  before = contents(c.folder)
  c.clean(3)
  assert names(c.folder) == ['1', '3']
  aside = c.folder.with_name('damaged')
  assert names(aside) == ['2', '4', '5']
  # Nothing is lost.
  after = contents(c.folder.parent)
  assert sorted(after.values()) == sorted(before.values())


def test_clean_again_with_the_same_step(c):
  for step in ('2', '3'):
    cut(c.folder / '2' / '_CHECKPOINT_METADATA')
    c.clean(1)
    assert names(c.folder) == ['1']
    assert names(c.folder.with_name('damaged')) == ['2']
    shutil.copytree(c.folder / '1', c.folder / '2')
    assert c.good_steps() == [2, 1], step


# Another config than the one that wrote the checkpoint


def changed(path, value):
  tree = {**PARAMS, 'deep': dict(PARAMS['deep'])}
  *parents, last = path.split('/')
  at = tree
  for key in parents:
    at = at[key]
  if value is None:
    del at[last]
  else:
    at[last] = value
  return tree


MISMATCHES = {
  'shape': ('table', np.zeros([8, 4], np.float32), '[8, 3]', '[8, 4]'),
  'rank': ('table', np.zeros([24], np.float32), '[8, 3]', '[24]'),
  'dtype': ('table', np.zeros([8, 3], np.int32), 'float32', 'int32'),
  'width': (
    'deep/half',
    np.zeros([4], np.float32),
    'bfloat16[4]',
    'float32[4]',
  ),
  'missing': ('deep/more', np.zeros([4], np.int32), 'nothing', 'int32[4]'),
  'extra': ('deep/half', None, 'bfloat16[4]', 'nothing'),
}


@pytest.mark.parametrize('kind', MISMATCHES)
def test_other_arrays(c, kind):
  path, value, found, wanted = MISMATCHES[kind]
  with pytest.raises(UserError) as e:
    c.restore(2, params=abstract(changed(path, value)))
  message = str(e.value)
  assert '\n' not in message
  assert f'params/{path}' in message and str(c.folder / '2') in message
  assert message.index(found) < message.index(wanted)
  assert_whole(c, 2)


def test_other_arrays_of_training(c):
  wanted = abstract({**TRAINING, 'rows': np.zeros([4, 2], np.int32)})
  with pytest.raises(UserError, match=r'training/rows is int32\[8, 2\]'):
    c.restore(2, params=abstract(PARAMS), training=wanted)


@pytest.mark.parametrize('lost', ['', 'params'])
def test_parameters_that_are_not_there(c, lost):
  shutil.rmtree(c.folder / '2' / lost)
  with pytest.raises(UserError) as e:
    c.restore(2, params=abstract(PARAMS))
  assert '\n' not in str(e.value) and str(c.folder / '2') in str(e.value)


@pytest.mark.parametrize('lost', ['', 'host'])
def test_host_part_that_is_not_there(c, lost):
  shutil.rmtree(c.folder / '2' / lost)
  with pytest.raises(UserError) as e:
    c.host(2)
  assert '\n' not in str(e.value) and str(c.folder / '2') in str(e.value)


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
  return {'table': rng.normal(size=[100, 100]).astype(np.float32)}


def assert_fails_to_save(c, step, limit, size, *args):
  before = contents(c.folder)
  limit(size)
  with pytest.raises(UserError) as e:
    save(c, step, *args)
    c.wait()
  limit(1 << 40)
  message = str(e.value)
  assert '\n' not in message
  assert str(c.folder / str(step)) in message
  c.recover()
  assert contents(c.folder) == before
  assert c.good_steps() == [2, 1]
  return message


# Files are written one after the other, each larger than some limit. Threads
# of orbax end with an error that nobody collects.
@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning',
)
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


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning',
)
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
  assert c.good_steps() == [2, 1] and names(c.folder) == ['1', '2']
  assert_whole(c, 2)


def test_full_disk_at_the_seal(c, monkeypatch):
  def full(descriptor):
    raise OSError(28, 'No space left on device')

  before = contents(c.folder)
  with monkeypatch.context() as m:
    m.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='No space left on device'):
      save(c, 3)
  assert contents(c.folder) == before
  assert names(c.folder) == ['1', '2']


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  c = checkpoint.Checkpoints(tmp_path / 'file' / 'checkpoints')
  with pytest.raises(UserError) as e:
    save(c, 1)
  assert '\n' not in str(e.value) and str(c.folder) in str(e.value)
