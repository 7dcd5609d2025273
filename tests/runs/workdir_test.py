import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import types

import pytest

from tests import programs
from tests.refusing import refused
from txl_jax.configs import common
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.experiment import sections
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir
from txl_jax.training import host_state, start

HOLD = """
import pathlib, sys, time
from txl_jax.runs import workdir
from txl_jax.training import host_state
with workdir.locked(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(60)
"""


def corpus(digest='a' * 64, name='text-book'):
  vocabulary = Bytes((97, 98), (3, 2), (10,))
  return types.SimpleNamespace(name=name, digest=digest, vocabulary=vocabulary)


def describe(folder, config, corpus, begins=True):
  then = None if begins else checkpoint_of(config, corpus)
  workdir.describe(folder, sections.read(config), corpus, then)


def compare(folder, config, corpus, then):
  start.compare(folder, sections.read(config), corpus, then)


def checkpoint_of(config, corpus):
  config = sections.read(config)
  return host_state.HostState.of(None, None, config, corpus.digest)


def lock(folder):
  with workdir.locked(folder):
    pass


@pytest.mark.thorough
def test_lock_of_a_killed_process(tmp_path):
  folder = tmp_path / 'a/b'
  holder = subprocess.Popen(
    [sys.executable, '-c', HOLD, folder],
    env=programs.environment(),
    stdout=subprocess.PIPE,
  )
  with holder:
    try:
      assert holder.stdout.readline() == b'held\n'
      message = refused(lock, folder)
      assert f'{folder} is in use by another run' in message
    finally:
      holder.send_signal(signal.SIGKILL)
  assert holder.returncode == -signal.SIGKILL
  with workdir.locked(folder):
    assert 'in use by another run' in refused(lock, folder)
  assert not folder.exists()  # it was empty


def test_a_lock_below_a_file_or_that_is_a_pipe(tmp_path):
  (tmp_path / 'file').touch()
  os.mkfifo(tmp_path / 'lock')
  for folder in tmp_path / 'file/run', tmp_path:
    message = refused(lock, folder)
    assert message.startswith(f'--workdir={folder} cannot be written')
  assert (tmp_path / 'lock').is_fifo()


def contents(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_describe_writes_what_tells_the_run(tmp_path):
  config = common.get_config()
  describe(tmp_path, config, corpus())
  names = ['config.json', 'config.py', 'corpus.json']
  assert sorted(contents(tmp_path)) == [*names, 'vocabulary.json']
  read = lambda name: json.loads((tmp_path / name).read_text())
  flat = settings.flatten
  assert flat(read('config.json')) == flat(config)
  assert read('corpus.json') == {'name': 'text-book', 'digest': 'a' * 64}
  assert read('vocabulary.json') == corpus().vocabulary.to_json()
  path = tmp_path / 'config.py'
  spec = importlib.util.spec_from_file_location('written', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  assert module.get_config().to_dict() == config.to_dict()


def test_a_checkpoint_is_of_the_same_run(tmp_path):
  config = common.get_config()
  then = checkpoint_of(config, corpus())
  config.eval.split = 'test'
  config.train.update(nonfinite='rollback', nonfinite_limit=3)
  compare(tmp_path, config, corpus(name='moved'), then)
  message = refused(compare, tmp_path, config, corpus('b' * 64, 'other'), then)
  found = f'(sha256 {"a" * 12}), found other (sha256 {"b" * 12}); allowed'
  assert f'{tmp_path} holds a run on another corpus {found}' in message
  config.seed = 1
  message = refused(compare, tmp_path, config, corpus(), then)
  assert 'seed = 0' in message and 'has 1' in message
  assert not any(tmp_path.iterdir())


def test_keys_of_another_version(tmp_path):
  config = common.get_config()
  then = checkpoint_of(config, corpus())
  del then.config['optim.lr'], then.config['seed']
  compare(tmp_path, config, corpus(), then)  # they had their defaults
  config.seed = 1
  message = refused(compare, tmp_path, config, corpus(), then)
  assert 'seed = 0, this command has 1' in message
  then.config['train.nonfinite_share'] = 0.5
  config.seed = 0
  assert refused(compare, tmp_path, config, corpus(), then).startswith(
    f'{tmp_path} holds a run with train.nonfinite_share = 0.5, this command '
    'has None; '
  )


def test_the_config_has_whole_paths_of_data(tmp_path, monkeypatch):
  """For a command that is given in another folder."""
  monkeypatch.chdir(tmp_path.parent)
  names = 'path', 'validation_path', 'test_path', 'tokenizer', 'vocab_file'
  paths = {f'data.{name}': name for name in names}
  config = settings.replace(sections.defaults(), paths)
  workdir.describe(tmp_path, config, corpus(), None)
  python = (tmp_path / 'config.py').read_text()
  for name in names:
    assert f"c.data.{name} = '{tmp_path.parent}/{name}'" in python


def test_a_folder_without_a_checkpoint_is_taken_over(tmp_path, capsys):
  config = common.get_config()
  describe(tmp_path, config, corpus())
  (tmp_path / 'metrics.jsonl').write_text('what was recorded\n')
  (tmp_path / 'metrics.jsonl.kept-1').write_text('before\n')
  (tmp_path / 'tensorboard').mkdir()
  (tmp_path / 'tensorboard/events').write_text('1')
  config.optim.lr = 0.5
  describe(tmp_path, config, corpus())
  err = capsys.readouterr().err.splitlines()
  assert f'{tmp_path} has no checkpoint of a run and is taken over' in err[0]
  kept = 'vocabulary.json.kept-2, metrics.jsonl.kept-2, tensorboard.kept-2'
  assert err[0].endswith(kept) and not err[1:]
  # The same command again: what there is of a record is kept.
  (tmp_path / 'metrics.jsonl').write_text('a line\n')
  describe(tmp_path, config, corpus())
  assert capsys.readouterr().err.endswith('kept as metrics.jsonl.kept-3\n')
  kept = contents(tmp_path)
  assert kept['metrics.jsonl.kept-2'] == b'what was recorded\n'
  assert (tmp_path / 'tensorboard.kept-2/events').read_text() == '1'
  assert json.loads(kept['config.json'])['optim']['lr'] == 0.5


def test_describe_begins_again_after_a_kill_on_the_way(tmp_path):
  (tmp_path / 'vocabulary.json').write_text('{"ki')
  (tmp_path / 'corpus.json').write_text('{"name": "old", "digest": "c"}')
  (tmp_path / 'metrics.jsonl').touch()  # which is not worth keeping
  describe(tmp_path, common.get_config(), corpus())
  assert not (tmp_path / 'metrics.jsonl.kept-1').exists()
  text = (tmp_path / 'vocabulary.json').read_text()
  assert text == workdir.vocabulary_text(corpus().vocabulary)


@pytest.mark.parametrize(
  'name', ['config.json', 'corpus.json', 'vocabulary.json']
)
@pytest.mark.parametrize('damage', [None, '{"seed": ', '[' * 10**5, '[]', '{}'])
def test_a_run_that_goes_on_mends_its_files(tmp_path, capsys, name, damage):
  config = common.get_config()
  config.seed = 3
  describe(tmp_path, config, corpus())
  before = contents(tmp_path)
  path = tmp_path / name
  path.unlink() if damage is None else path.write_text(damage)
  describe(tmp_path, config, corpus(), begins=False)
  assert capsys.readouterr().err == ''
  assert contents(tmp_path) == before


@pytest.mark.parametrize(
  'text',
  ['{"kind"', '{}', '[]', '{"kind": "words"}', '{"kind": "bytes"}', '[' * 9999],
)
def test_damaged_vocabulary(tmp_path, text):
  (tmp_path / 'checkpoints/7').mkdir(parents=True)
  path = tmp_path / 'checkpoints/7/vocabulary.json'
  path.write_text(text)
  message = refused(workdir.vocabulary, tmp_path, 7)
  assert message.startswith(f'{path} ')


def test_what_is_not_ours_stays(tmp_path):
  for name in 'note', 'config.py', 'lock':
    (tmp_path / name).write_text('mine')
  with workdir.locked(tmp_path):
    describe(tmp_path, common.get_config(), corpus())
  for name in 'note', 'config.py.kept-1', 'lock':
    assert (tmp_path / name).read_text() == 'mine'


def test_a_folder_that_is_not_shared(tmp_path):
  with pytest.raises(
    UserError, match=r'--workdir=\S+ of process 0 is not visible'
  ):
    workdir.check_shared(tmp_path, seconds=0.2)
  late = threading.Timer(0.2, (tmp_path / 'lock').touch)
  late.start()
  workdir.check_shared(tmp_path, seconds=20)
  late.join()


def converted(folder, config, vocabulary):
  """A folder with weights that nobody has trained, and what it knows."""
  (folder / 'checkpoints/0').mkdir(parents=True)
  text = workdir.vocabulary_text(vocabulary)
  for path in folder, folder / 'checkpoints/0':
    (path / 'vocabulary.json').write_text(text)
  config = sections.read(config)
  (folder / 'config.json').write_text(settings.to_json(config))
  (folder / 'config.py').write_text('# with notes')
  return host_state.HostState.of(None, None, config, '')


def test_converted_weights_are_trained_with_any_options(tmp_path):
  config = common.get_config()
  then = converted(tmp_path, config, corpus().vocabulary)
  for key, value in {
    'optim.lr': 1.0,
    'train.steps': 3,
    'data.corpus': 'text8',
    'model.dropout': 0.5,
    'model.mem_len': 7,
  }.items():
    now = common.get_config()
    now.update_from_flattened_dict({key: value})
    compare(tmp_path, now, corpus(), then)
  now = common.get_config()
  now.model.d_ff = 7
  assert 'model.d_ff' in refused(compare, tmp_path, now, corpus(), then)
  other = corpus()
  for symbols in (97,), (97, 99, 100):
    other.vocabulary = Bytes(symbols)
    said = refused(compare, tmp_path, config, other, then)
    assert f'differ in vocabulary ({len(symbols)} and 2 symbols)' in said


@pytest.mark.parametrize('changed', [False, True])
def test_the_files_of_converted_weights_become_those_of_a_run(
  tmp_path, capsys, changed
):
  config = common.get_config()
  then = converted(tmp_path, config, corpus().vocabulary)
  now = common.get_config()
  now.seed += changed
  workdir.describe(tmp_path, sections.read(now), corpus(), then)
  assert capsys.readouterr().err == ''
  assert (tmp_path / 'corpus.json').exists()
  assert '# with notes' not in (tmp_path / 'config.py').read_text()
  kept = json.loads((tmp_path / 'config.json').read_text())
  assert kept['seed'] == now.seed


def test_the_config_in_a_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'config.py').touch()
  assert [*map(workdir.own_config, ('', '.'))] == ['', 'config.py']
