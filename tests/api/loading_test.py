"""What `load` is given: paths, and runs that train meanwhile."""

import json
import signal

import ml_collections
import numpy as np
import pytest

import txl_jax
from tests import programs
from tests.modes import runs
from txl_jax.experiment import restore
from txl_jax.parallel import watchdog
from txl_jax.program.errors import UserError


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'run').mkdir()
  runs.write(tmp_path / 'run')
  return tmp_path / 'run'


def refused(*arguments, **more):
  with pytest.raises(UserError) as e:
    txl_jax.load(*arguments, **more)
  assert '\n' not in f'{e.value}'
  return f'{e.value}'


def test_a_folder_without_a_run(tmp_path, monkeypatch):
  (tmp_path / 'runs/x').mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  assert refused('runs').startswith('runs has no weights: none of ')
  assert refused('runs', mesh=3).startswith('mesh is 3; allowed: None, or a ')


def test_a_run_that_has_just_begun(tmp_path):
  """Its config is there before its first checkpoint."""
  for name in 'config.json', 'config.py', 'corpus.json', 'vocabulary.json':
    (tmp_path / name).touch()
  for checkpoint in 'best', 'latest', 3:
    line = refused(tmp_path, checkpoint=checkpoint)
    assert line.startswith(f'{tmp_path} has no checkpoint yet; allowed: ')


def test_the_prefix_of_a_checkpoint_of_tensorflow():
  golden = programs.ROOT / 'tests/convert/golden/tf_plain.ckpt-0'
  with pytest.warns(UserWarning, match='.'):
    run = txl_jax.load(golden)
  assert run.config.model.n_layer == 2
  line = refused(golden.with_suffix('.ckpt-1'))
  assert 'does not exist; allowed: a run, ' in line
  assert 'allowed: a path, gs://' in refused('https://huggingface.co/a/b')
  assert "'best', because " in refused(golden, checkpoint=3)


def test_damage_is_told_as_before(folder, monkeypatch):
  def damaged(*arguments):
    raise UserError('it is damaged')

  monkeypatch.setattr(restore, 'weights', damaged)
  assert refused(folder) == 'it is damaged'


def test_train(tmp_path, monkeypatch):
  """Ctrl-C saves, the same call continues, and the trained run is returned."""
  c = runs.config()
  c.train.update(batch_size=8, segment_len=8, steps=4, sample_tokens=3)
  c.train.update(eval_tokens=100, log_every=2)
  c.data.dir = f'{tmp_path}/data'
  path = programs.write_corpus(tmp_path)
  keys = dict(data=dict(corpus='text', path=path), optim=dict(warmup=1), seed=5)

  def stopping(watch):
    return signal.SIGINT if watch.step == 2 else 0

  handler = signal.getsignal(signal.SIGINT)
  with monkeypatch.context() as patch:
    patch.setattr(watchdog.Watch, 'stopping', stopping)
    with pytest.raises(KeyboardInterrupt, match='at step 2, which is saved'):
      txl_jax.train(c, tmp_path / 'run', **keys)
  assert signal.getsignal(signal.SIGINT) is handler
  run = txl_jax.train(c, tmp_path / 'run', **keys)
  assert (run.step, run.config.seed, c.seed) == (4, 5, 0)
  assert run.generate('the', max_new_tokens=2)
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  (sample,) = (r for r in map(json.loads, lines) if r['split'] == 'sample')
  assert sample['step'] == 4 and sample['text']
  for config, more, words in (
    (c, dict(train=dict(stepz=3)), 'the nearest is train.steps'),
    (c, dict(train=dict(steps='x')), "train.steps is 'x'; allowed: a whole"),
    (None, {}, 'config is missing, and workdir='),
    (run.config, {}, '^config is Config.*; allowed: the name or path '),
    (c, dict(optim=3), '^optim is a section; allowed: one of its keys, such'),
    ('none', {}, 'is unknown; allowed: al_rfou'),
  ):
    with pytest.raises(UserError, match=words):
      txl_jax.train(config, tmp_path / 'other', **more)
  with pytest.raises(UserError, match='workdir is missing; pass'):
    txl_jax.train(train=dict(init_from=tmp_path / 'run'))


def test_train_from_a_frozen_config(tmp_path, monkeypatch):
  """A ConfigDict of either kind may set keys and be changed by others."""
  trained = []

  def stop(job):
    trained.append((job.config.train.steps, job.config.seed, job.folder))
    raise UserError('enough')

  monkeypatch.setattr('txl_jax.modes.train.run', stop)
  monkeypatch.setenv('HOME', f'{tmp_path}')
  c = runs.config()
  c.data.update(corpus='text', path='book.txt')
  for config in (c, ml_collections.FrozenConfigDict(c)):
    with pytest.raises(UserError, match='enough'):
      txl_jax.train(config, '~/run', train=dict(steps=3), seed=2)
  assert trained == [(3, 2, tmp_path / 'run')] * 2


def without(key):
  return ml_collections.ConfigDict(
    {k: x for k, x in runs.config().to_dict().items() if k != key}
  )


@pytest.mark.parametrize(
  'config, words',
  [
    (ml_collections.ConfigDict(), '^model.name is None; allowed: '),
    (without('model'), '^model.name is None; allowed: '),
    (without('experiment'), '^experiment is missing'),
    (without('train'), '^train.steps is missing'),
    ('./a\0.py', '^config is .*; allowed: the name'),
  ],
)
def test_a_config_that_is_none(tmp_path, config, words):
  for keys in ({}, dict(train=dict(steps=3))):
    with pytest.raises(UserError, match=words):
      txl_jax.train(config, tmp_path / 'run', **keys)
  assert not [*tmp_path.iterdir()]


class BytesPath:
  """A path as `os.scandir(b'.')` yields it."""

  def __fspath__(self):
    return b'run'


@pytest.mark.parametrize(
  'path', [b'run', BytesPath(), 'a\0b', None, 3, ['run'], np.arange(9999)]
)
def test_a_path_that_is_none(path):
  with pytest.raises(UserError, match=r'^workdir is .*; allowed: a str') as e:
    txl_jax.train(runs.config(), path)
  assert '\n' not in f'{e.value}'
  assert refused(path).startswith('path is ')
  keys = dict(data=dict(corpus='text', path=path), optim=dict(warmup=1))
  with pytest.raises(UserError, match=r'^data\.path is ') as e:
    txl_jax.train(runs.config(), 'run', **keys)
  assert '\n' not in f'{e.value}'


def test_how_an_array_is_trained_on(tmp_path, monkeypatch):
  """What the message says works."""
  monkeypatch.chdir(tmp_path)
  array = np.random.default_rng(0).integers(0, 9, 3000).astype(np.int32)
  c = runs.config()
  c.train.update(batch_size=8, segment_len=8, steps=2, eval_tokens=100)
  c.data.update(dir='data', corpus='text')
  keys = dict(optim=dict(warmup=1))
  with pytest.raises(UserError) as e:
    txl_jax.train(c, 'run', data=dict(path=array), **keys)
  message = f'{e.value}'
  assert '\n' not in message
  for words in "np.save('ids.npy', array)", "'ids.npy'", "data.level='id'":
    assert words in message
  np.save('ids.npy', array)
  data = dict(path='ids.npy', level='id')
  assert len(txl_jax.train(c, 'run', data=data, **keys).vocabulary) == 9
