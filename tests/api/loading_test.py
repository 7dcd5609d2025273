"""What `load` is given: paths, and runs that train meanwhile."""

import json
import pathlib
import re
import signal

import ml_collections
import numpy as np
import pytest

import txl_jax
from tests import programs, refusing
from tests.modes import runs
from txl_jax.api import training
from txl_jax.experiment import saved_model
from txl_jax.parallel import watchdog
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'run').mkdir()
  runs.write(tmp_path / 'run')
  return tmp_path / 'run'


def refused(*arguments, **more):
  return refusing.refused(txl_jax.load, *arguments, **more)


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
  with pytest.warns(UserWarning, match='.') as seen:
    run = txl_jax.load(golden)
  assert {x.filename for x in seen} == {__file__}
  assert run.config.model.n_layer == 2
  line = refused(golden.with_suffix('.ckpt-1'))
  assert 'does not exist; allowed: a run, ' in line
  assert 'allowed: a path, gs://' in refused('https://huggingface.co/a/b')
  assert "'best', because " in refused(golden, checkpoint=3)


@pytest.mark.thorough
def test_damage_is_told_as_before(folder, monkeypatch):
  def damaged(*arguments):
    raise UserError('it is damaged')

  monkeypatch.setattr(saved_model, 'weights', damaged)
  assert refused(folder) == 'it is damaged'


def test_train(tmp_path, monkeypatch, capfd):
  """Ctrl-C saves, the same call continues, and the trained run is returned."""
  c = runs.config()
  c.train.update(batch_size=8, segment_len=8, steps=4, sample_tokens=3)
  c.train.update(eval_tokens=100, log_every=2)
  c.data.dir, c.generate.prompt = f'{tmp_path}/data', 'the'
  path = programs.write_corpus(tmp_path)
  keys = dict(data=dict(corpus='text', path=path), optim=dict(warmup=9), seed=5)

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
  said = capfd.readouterr().err
  assert said.count('warning: training has 4 steps and optim.warmup 9') == 2
  assert re.search('^step 4/4 .* nats.* lr .* tokens/s .* ETA ', said, re.M)
  assert run.generate('the', max_new_tokens=2)
  records = metrics_log.read(tmp_path / 'run/metrics.jsonl')
  (sample,) = (r for r in records if r['split'] == 'sample')
  assert sample['step'] == 4 and re.match('the(?s:.){3}$', sample['text'])
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
    assert not job.watch._program
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
  with pytest.raises(UserError, match='enough'):
    txl_jax.train(short(tmp_path), tmp_path / 'a/b', data=['x'])
  assert [*tmp_path.glob('a/b/data-*/train.jsonl')]
  # Without a folder, by the name of the config.
  for c.experiment in 'mine', '':
    with pytest.raises(UserError, match='enough'):
      txl_jax.train(c, data=dict(dir=tmp_path))
  folders = [f'{folder}' for *_, folder in trained[3:]]
  assert folders == ['runs/mine', 'runs/config']


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


def short(tmp_path, **data):
  """A config of two steps, with keys of `data`."""
  c = runs.config()
  c.train.update(batch_size=8, segment_len=4, steps=2, eval_tokens=100)
  c.train.update(log_every=1, eval_every=1)
  c.optim.warmup = 1
  c.data.update(dir=f'{tmp_path}/corpora', corpus='text', path='', **data)
  return c


def figures(folder):
  """The losses in the log of a run, and the digest of its corpus."""
  nats = [r['nats'] for r in metrics_log.read(folder / 'metrics.jsonl')]
  return nats, json.loads((folder / 'corpus.json').read_text())['digest']


LINES = [f'line {i} of {i % 7}' for i in range(80)]


@pytest.mark.thorough
def test_data_in_memory_and_in_files(tmp_path):
  """The same tokens give the same numbers, wherever they come from."""
  files, c = tmp_path / 'files', short(tmp_path)
  files.mkdir()
  (files / 'train.txt').write_text('\n'.join(LINES[:60]))
  (files / 'valid.txt').write_text('\n'.join(LINES[60:]))
  records = [{'text': x, 'n': 3} for x in LINES]
  halves = lambda x: {'train': x[:60], 'validation': iter(x[60:])}
  found = []
  for i, data in enumerate(
    (
      dict(path=files, documents='line'),
      halves(LINES),
      halves(records),
      halves([{'body': x} for x in LINES]) | {'field': 'body'},
    )
  ):
    folder = tmp_path / f'run{i}'
    run = txl_jax.train(c, folder, data=data)
    found.append(figures(folder))
    assert run.generate('li', max_new_tokens=1) is not None
  assert found == found[:1] * 4
  # The same again is a run that has ended; so is it without the text.
  for more in ({}, dict(data=halves(LINES))):
    assert txl_jax.train(None, tmp_path / 'run1', **more).step == 2


@pytest.mark.thorough
def test_data_of_a_run_is_never_replaced(tmp_path, capsys):
  """A refused call leaves the text that the run was trained on."""
  c, folder = short(tmp_path), tmp_path / 'run'
  txl_jax.train(c, folder, data=LINES)
  (before,) = folder.glob('data-*/train.jsonl')
  text = before.read_bytes()
  for data in LINES[:70], [3.5]:
    with pytest.raises(UserError, match=r'another corpus|document 0 of'):
      txl_jax.train(c, folder, data=data)
  assert before.read_bytes() == text and not [*folder.glob('tmp-*')]
  assert txl_jax.train(None, folder).config.data.path == f'{before.parent}'


def test_arrays_of_several_splits(tmp_path):
  arrays = {'train': np.arange(9), 'test': np.arange(5)}
  keys = training._written(arrays, f'{tmp_path}', {})
  found = pathlib.Path(keys['data.path']).iterdir()
  assert {x.stem: np.load(x).size for x in found} == {'train': 9, 'test': 5}


@pytest.mark.thorough
def test_arrays_of_ids(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  array = np.random.default_rng(0).integers(0, 9, 3000).astype(np.int32)
  np.save('ids.npy', array)
  c = short(tmp_path)
  file = dict(path='ids.npy', level='id')
  for name, data in ('a', file), ('b', array), ('c', {'train': array}):
    assert len(txl_jax.train(c, name, data=data).vocabulary) == 9
  one, two, three = (figures(tmp_path / x) for x in 'abc')
  assert one == two == three
  # Documents of ids.
  cut = np.split(array, [700, 1000, 2000])
  run = txl_jax.train(c, 'd', data=[*cut[:2], cut[2].tolist(), *cut[3:]])
  assert run.config.data.documents == 'record' and len(run.vocabulary) == 10


@pytest.mark.parametrize(
  'data, words',
  [
    ('book.txt', "^data of train is 'book.txt'; allowed: data=dict.path=FILE"),
    (3, '^data of train is 3; allowed: '),
    ([3.5], '^document 0 of the data of train is 3.5; allowed: a text'),
    ([3, 4], '^document 0 of the data of train is 3; allowed: a text'),
    ([{'body': 'x'}], "^document 0 of .* is {'body': 'x'}; .* the field text"),
    ({'train': ['x'], 'levle': 3}, 'the nearest is data.level'),
    ({'train': ['x'], 'path': 'a'}, "^data.path is 'a'; allowed: no path, s"),
    (np.array(3), '^data of train is array.3.; allowed: '),
    ({'train': {'a': 'x'}}, "^data of train is {'a': 'x'}; allowed: "),
  ],
)
def test_data_of_no_kind(tmp_path, data, words):
  with pytest.raises(UserError, match=words) as e:
    txl_jax.train(short(tmp_path), tmp_path / 'run', data=data)
  assert '\n' not in f'{e.value}'


@pytest.mark.thorough
def test_functions_that_see_and_end_a_run(tmp_path):
  c, seen = short(tmp_path), []
  c.train.steps = 9
  run = txl_jax.train(
    c, tmp_path / 'run', data=LINES, on_log=seen.append,
    on_eval=lambda record: record['step'] == 3,
  )  # fmt: skip
  assert run.step == 3
  assert [r['step'] for r in seen] == [1, 2, 3]
  assert {'nats', 'lr', 'tokens_per_second'} < seen[0].keys()
  run = txl_jax.train(
    None, tmp_path / 'run', on_log=lambda record: record['step'] == 5
  )
  assert (run.step, run.config.train.steps) == (5, 9)
  records = metrics_log.read(tmp_path / 'run/metrics.jsonl')
  steps = [r['step'] for r in records if r['split'] == 'train']
  assert steps == [*range(1, 6)]


@pytest.mark.thorough
def test_patience(tmp_path, capsys):
  """A rate of nearly 0 brings nothing new; more patience, more steps."""
  c = short(tmp_path)
  c.train.update(steps=9, patience=2)
  c.optim.update(schedule='constant', lr=1e-30)
  folder = tmp_path / 'run'
  for config, more, steps in (
    (c, dict(data=LINES), 3),
    (None, {}, 3),
    (None, dict(train=dict(patience=4)), 5),
  ):
    txl_jax.train(config, folder, **more)
    assert txl_jax.load(folder, checkpoint='latest').step == steps
    ended = f'training ends at step {steps} (train.patience)'
    assert ended in capsys.readouterr().err
