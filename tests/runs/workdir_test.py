import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import types

import pytest

from configs import common
from tests import programs
from txl_jax import settings
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.errors import UserError
from txl_jax.modes import sections
from txl_jax.runs import workdir

HOLD = """
import pathlib, sys, time
from txl_jax.runs import workdir
with workdir.locked(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(60)
"""


def corpus(digest='a' * 64, name='text-book'):
  vocabulary = Vocabulary((97, 98), (3, 2), (10,))
  return types.SimpleNamespace(name=name, digest=digest, vocabulary=vocabulary)


def one_line(call, *arguments):
  with pytest.raises(UserError) as e:
    call(*arguments)
  assert '\n' not in str(e.value)
  return str(e.value)


def describe(folder, config, corpus, command=''):
  workdir.describe(folder, config, sections.of(config), corpus, command)


def lock(folder):
  with workdir.locked(folder):
    pass


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
      message = one_line(lock, folder)
      assert str(folder) in message and f' {holder.pid};' in message
    finally:
      holder.send_signal(signal.SIGKILL)
  assert holder.returncode == -signal.SIGKILL
  with workdir.locked(folder):
    assert (folder / 'lock').read_text() == f'{os.getpid()}\n'
    assert f' {os.getpid()};' in one_line(lock, folder)
  lock(folder)


def test_lock_below_a_file(tmp_path):
  (tmp_path / 'file').touch()
  message = one_line(lock, tmp_path / 'file/run')
  assert message.startswith(f'--workdir={tmp_path}/file/run cannot be written')


def test_describe_writes_what_tells_the_run(tmp_path):
  config = common.get_config()
  describe(tmp_path, config, corpus(), 'go on')
  names = ['config.json', 'config.py', 'corpus.json', 'vocabulary.json']
  assert sorted(p.name for p in tmp_path.iterdir()) == names
  read = lambda name: json.loads((tmp_path / name).read_text())
  flat = settings.flatten
  assert flat(read('config.json')) == flat(config)
  assert read('corpus.json') == {'name': 'text-book', 'digest': 'a' * 64}
  assert workdir.vocabulary(tmp_path) == corpus().vocabulary
  path = tmp_path / 'config.py'
  spec = importlib.util.spec_from_file_location('written', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  assert module.get_config().to_dict() == config.to_dict()


def test_describe_checks_a_run_that_is_there(tmp_path):
  config = common.get_config()
  describe(tmp_path, config, corpus(), 'go on')
  before = {p: p.read_bytes() for p in tmp_path.iterdir()}
  config.eval.split = 'test'
  describe(tmp_path, config, corpus(name='moved'), 'go on otherwise')

  message = one_line(describe, tmp_path, config, corpus('b' * 64, 'other'))
  for word in ('text-book', 'a' * 12, 'other', 'b' * 12, str(tmp_path)):
    assert word in message
  config.seed = 1
  message = one_line(describe, tmp_path, config, corpus())
  assert 'seed = 0' in message and 'has 1' in message
  assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_keys_that_may_change_are_named_whole(tmp_path):
  config = common.get_config()
  describe(tmp_path, config, corpus())
  config.train.update(nonfinite='skip', nonfinite_limit=3)
  describe(tmp_path, config, corpus())
  path = tmp_path / 'config.json'
  then = json.loads(path.read_text())
  then['train']['nonfinite_share'] = 0.5
  path.write_text(json.dumps(then))
  assert one_line(describe, tmp_path, config, corpus()).startswith(
    f'{tmp_path} holds a run with train.nonfinite_share = 0.5, this command '
    'has None; '
  )


def test_describe_begins_again_after_a_kill_on_the_way(tmp_path):
  (tmp_path / 'vocabulary.json').write_text('{"ki')
  (tmp_path / 'corpus.json').write_text('{"name": "old", "digest": "c"}')
  describe(tmp_path, common.get_config(), corpus())
  assert workdir.vocabulary(tmp_path) == corpus().vocabulary


@pytest.mark.parametrize('name', ['config.json', 'corpus.json'])
def test_describe_names_a_damaged_file(tmp_path, name):
  arguments = tmp_path, common.get_config(), corpus()
  describe(*arguments)
  (tmp_path / name).write_text('{"seed": ')
  message = one_line(describe, *arguments)
  assert message.startswith(f'{tmp_path}/{name} cannot be read')


def test_no_run(tmp_path):
  message = one_line(workdir.vocabulary, tmp_path)
  assert message == f'--workdir={tmp_path} holds no run; train one first'


@pytest.mark.parametrize(
  'text',
  ['{"kind"', '{}', '[]', '{"kind": "words"}', '{"kind": "bytes"}'],
)
def test_damaged_vocabulary(tmp_path, text):
  (tmp_path / 'vocabulary.json').write_text(text)
  message = one_line(workdir.vocabulary, tmp_path)
  assert message.startswith(f'{tmp_path}/vocabulary.json ')


def test_checkpoints(tmp_path):
  assert workdir.checkpoints(str(tmp_path)) == tmp_path / 'checkpoints'


def test_a_folder_that_is_not_shared(tmp_path):
  with pytest.raises(
    UserError, match=r'--workdir=\S+ of process 0 is not seen'
  ):
    workdir.check_shared(tmp_path, seconds=0.2)
  late = threading.Timer(0.2, (tmp_path / 'config.json').touch)
  late.start()
  workdir.check_shared(tmp_path, seconds=20)
  late.join()


@pytest.mark.parametrize('name', ['corpus.json', 'vocabulary.json'])
def test_a_run_that_lacks_a_file(tmp_path, name):
  config = common.get_config()
  describe(tmp_path, config, corpus())
  (tmp_path / name).unlink()
  with pytest.raises(UserError, match=f'{name} cannot be read'):
    describe(tmp_path, config, corpus())
    workdir.vocabulary(tmp_path)


def test_a_file_is_no_run(tmp_path):
  (tmp_path / 'file').write_text('')
  for read in (workdir.config, workdir.vocabulary):
    with pytest.raises(UserError, match='file holds no run'):
      read(tmp_path / 'file')
