"""What the program refuses before it begins: a line, and status 1."""

import functools
import runpy
import signal
import sys
from unittest import mock

import pytest

from tests import programs
from tests.programs import assert_refused
from txl_jax import __version__ as version
from txl_jax import main
from txl_jax.__main__ import entry
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import watchdog
from txl_jax.program import signals
from txl_jax.program.errors import UserError


@pytest.fixture
def corpus(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


def here(folder, *overrides, **options):
  """Trains in this process."""
  overrides = ('train.batch_size=8', *overrides)
  return programs.here(programs.command(folder, *overrides, **options))


@pytest.mark.parametrize(
  ('override', 'words'),
  [
    ('train.stepz=3', ['stepz']),
    ('eval.model.n_layer=3', ['n_layer']),
    ('train.steps=many', ['steps', 'many']),
    ('eval.model.mem_len=many', ['eval.model.mem_len', 'many']),
    ('train.steps=0', ['train.steps is 0', 'at least 1']),
    ('mesh.fsdp=-2', ['mesh.fsdp is -2', 'at least -1']),
    ('data.path=/no/such', ['/no/such']),
    ('train.segment_len=90000', ['720001', 'train.segment_len (90000)']),
    ('train.resume=must', ['no checkpoint', 'train.resume is must']),
    ('data.corpus=enwik8', ['data.path']),
  ],
)
def test_refused_values(corpus, override, words):
  assert_refused(here(corpus, override), *words)


@pytest.mark.thorough
def test_the_program_refuses(corpus):
  done = programs.run(programs.command(corpus, 'train.steps=0'))
  assert_refused(done, 'train.steps is 0', 'at least 1')


def test_programs_by_name(monkeypatch):
  """txl-jax NAME runs a module, with the other arguments."""
  run = []
  monkeypatch.setattr(signals, 'catch', lambda: None)
  monkeypatch.setattr(
    runpy, 'run_module', lambda *x, **more: run.append((x, more))
  )
  for name in '--config=ptb', 'report', 'export':
    monkeypatch.setattr(sys, 'argv', ['txl-jax', name, '--x'])
    entry()
    assert sys.argv[1:] == [name, '--x'][name.isalpha() :]
  monkeypatch.setattr(sys, 'argv', ['txl-jax'])
  runpy.run_path(entry.__code__.co_filename, run_name='__main__')
  names = 'main', 'report', 'convert', 'main'
  as_python_does = {'run_name': '__main__', 'alter_sys': True}
  assert run == [((f'txl_jax.{x}',), as_python_does) for x in names]
  monkeypatch.setattr(sys, 'argv', ['txl-jax', 'prepair'])
  with pytest.raises(SystemExit, match=r"^error: no program 'prepair'; "):
    entry()


def test_programs_begin_with_the_signals(monkeypatch):
  monkeypatch.setattr(signals, 'begin', mock.Mock(side_effect=EOFError))
  for name in 'main', 'prepare', 'report', 'convert/__main__':
    text = (programs.ROOT / f'txl_jax/{name}.py').read_text()
    first = text.split('\nimport ')[0]
    exec(first, {'__name__': f'txl_jax.{name}'})
    with pytest.raises(EOFError):
      exec(first, {'__name__': '__main__'})


def test_a_corpus_that_is_to_be_prepared(tmp_path):
  done = programs.here(
    [
      *[sys.executable, '-m', 'txl_jax.main', '--config=configs/enwik8_12l.py'],
      f'--workdir={tmp_path}/run',
      f'--config.data.dir={tmp_path}/data',
      '--config.train.batch_size=8',
    ]
  )
  assert_refused(
    done,
    'python -m txl_jax.prepare --dataset=enwik8 '
    f'--data_dir={tmp_path}/data --newline=drop',
  )


def test_an_empty_corpus(tmp_path):
  (tmp_path / 'corpus.txt').touch()
  assert_refused(here(tmp_path), 'corpus.txt', 'empty')


MESHES = [
  ((), 8),
  (('mesh.data=2', 'mesh.fsdp=4', 'train.accumulate=2'), 16),
  (('mesh.data=16', 'mesh.fsdp=8'), 128),
  (('mesh.data=3', 'mesh.fsdp=7'), 21),
]


@pytest.mark.parametrize('mesh, parts', MESHES)
def test_rows_that_the_devices_cannot_share(corpus, monkeypatch, mesh, parts):
  words = 'train.batch_size is 4', f'multiples of {parts} '
  if parts > 16:  # more devices than there are here
    monkeypatch.setattr(mesh_lib, 'make_mesh', mesh_lib.abstract_mesh)
  here = functools.partial(programs.here, devices=8)
  assert_refused(here(programs.command(corpus, *mesh)), *words)
  if mesh:  # what is summed up is over the devices that it names
    command = programs.command(corpus, *mesh, flags=['--mode=summary'])
    assert_refused(here(command), *words)


def test_a_mesh_of_other_devices(corpus):
  done = programs.here(programs.command(corpus, 'mesh.data=3'), devices=8)
  assert_refused(done, 'mesh.data = 3', 'the number of devices, 8')


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ((), ['--config is missing; type --config=NAME, such as']),
    (('--config=nowhere.py',), ['nowhere.py']),
    (('--config=configs/common.py', '--mode=test'), ['--mode=test', 'eval|']),
    (('--config=configs/common.py', 'eval'), ["'eval' is not expected"]),
    (('--config=configs/common.py', '--worker=3'), ['worker']),
    (('--workdir=/none', '--prompt=x'), ['--prompt; type --config.generate.p']),
    (('--mode=generate', '--seed=3'), ['type --config.generate.seed=…']),
    (('--train.steps=3',), ['type --config.train.steps=…']),
    (('--config=configs/ptb.py', '--text=x'), ['--config.generate.prompt=…']),
    (('--config=configs/ptb.py', '--score_file=x'), ['reads --score_file\n']),
    (('--config=configs/ptb.py', '--text=x', '--mode=eval'), ['reads --text;']),
    (('--workdir=/none',), ['--workdir=/none holds no run; type --config=']),
    (
      ('--config.optim.lr=1', '--workdir', '/none'),
      ['no run with a config was found: --workdir=/none; type --config=NAME'],
    ),
    (('--config', 'configs/ptb.py', '--config.optim.lrr=1'), ['is optim.lr']),
    (('--config.optim.lr=1',), ['config.optim.lr']),
    (('--config=configs/ptb.py', '--config.optim.lrr=1'), ['is optim.lr']),
    (('--config=configs/ptb.py', '--config.optin.lr=1'), ['is optim.lr']),
    (
      ('--config=configs/ptb.py', '--config.optim=1'),
      ['--config.optim is a section; allowed', '--config.optim.name=…'],
    ),
    (('--config=configs/ptb.py', '--config.=1'), ['no such key']),
  ],
)
def test_refused_flags(arguments, words):
  command = [sys.executable, '-m', 'txl_jax.main', *arguments]
  assert_refused(programs.here(command), *words)


def test_the_version():
  done = programs.here([sys.executable, '-m', 'txl_jax.main', '--version'])
  assert (done.returncode, done.stdout) == (0, f'txl_jax {version}\n')


def test_how_the_program_ends(monkeypatch, capsys):
  end = mock.Mock()
  monkeypatch.setattr(signals, 'end', end)
  stopped = watchdog.Stopped(signal.SIGTERM, 30)
  for error, status, said in (
    (SystemExit(0), 0, ''),
    (stopped, 143, f'{stopped}\n'),
    (UserError('x'), 1, 'error: x\n'),
  ):
    assert not end.called
    monkeypatch.setattr(main.app, 'run', mock.Mock(side_effect=error))
    with pytest.raises(SystemExit) as e:
      main.entry()
    assert (e.value.code, capsys.readouterr().err) == (status, said)
  end.assert_called_once_with(1)  # does not wait for threads


@pytest.mark.thorough
@pytest.mark.parametrize('key', ['model.mem_len', 'model.d_ff'])
def test_what_the_memory_cannot_hold(corpus, key):
  override = f'{key}=1000000000'
  done = here(corpus, override)
  assert_refused(done, 'a training step needs ', 'GiB; try a smaller ')
  # Nothing is written: with another value the same folder can be used.
  assert not (corpus / 'run').exists()
  done = here(corpus, override, flags=['--mode=summary'])
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
  'override, words',
  [
    ('model.n_layer=1000000000', 'model.n_layer is 1000000000; allowed: at'),
    ('train.eval_batch_size=1000000', '1000001 tokens, but there are only 400'),
  ],
)
def test_sizes_of_nothing(corpus, override, words):
  assert_refused(here(corpus, override), override.split('=')[0], words)
  assert not (corpus / 'run').exists()


@pytest.mark.thorough
def test_help_is_no_failure():
  flags = dict(main='mode', prepare='dataset', convert='cutoffs')
  for program, flag in flags.items():
    command = [sys.executable, '-m', f'txl_jax.{program}', '--help']
    done = programs.run(command)
    assert (done.returncode, done.stderr) == (0, '')
    assert f'\n  --{flag}: ' in done.stdout


def test_paths_below_the_home_folder(corpus, monkeypatch):
  monkeypatch.setenv('HOME', str(corpus))
  paths = 'data.path=~/corpus.txt', 'data.dir=~/data', 'train.steps=0'
  done = here(corpus, *paths, flags=['--workdir=~/other'])
  assert_refused(done, 'train.steps is 0')
  done = here(corpus, *paths[:2], 'train.resume=must')
  assert_refused(done, 'no checkpoint')
  assert sorted(p.name for p in corpus.iterdir()) == ['corpus.txt', 'data']


@pytest.mark.parametrize(
  'line, words',
  [
    ("c.optim.lr = '0.003'", ['/mine.py, line 6, ', "c.optim.lr = '0.003': "]),
    (
      "common.at_test_time(c, mem_len='3')",
      ['/mine.py, line 6, ', "mem_len='3'"],
    ),
    (
      "with c.ignore_type(): c.optim.lr = '0.003'",
      ["optim.lr is '0.003'; allowed: a num"],
    ),
    ('c.train.steps = None', ['train.steps is None', 'a whole number']),
    ('with c.unlocked(): del c.seed', ['seed is missing from the config']),
  ],
)
def test_a_config_file_with_a_mistake(tmp_path, line, words):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from txl_jax.configs import common\n\n\ndef get_config():\n'
    f'  c = common.get_config()\n  {line}\n  return c\n'
  )
  command = [sys.executable, '-m', 'txl_jax.main', f'--config={path}']
  done = programs.here([*command, '--config.train.batch_size=8'])
  assert_refused(done, *words)
  assert len(done.stderr.splitlines()) == 1
