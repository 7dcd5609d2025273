"""What people install: the wheel, the sdist, an editable clone; used anywhere.

The environments are new and have txl_jax from one of these alone; other
packages are those of the environment that the tests are run in.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from tests import programs, quick
from tests.programs import ROOT
from txl_jax.data import data_config

pytestmark = pytest.mark.thorough

NAMES = sorted(p.name for p in (ROOT / 'configs').glob('*.py'))
BUILD = 'import sys; from setuptools import build_meta as b; b.build_{}({!r})'
# A run of pystdlib_tiny that takes seconds.
SMALL = (
  'model.n_layer=1', 'model.d_model=16', 'model.n_head=2', 'model.d_head=8',
  'model.d_ff=16', 'train.eval_tokens=1000', 'train.steps=6',
  'train.save_every=2', 'train.log_every=1', 'optim.warmup=2',
)  # fmt: skip
MINE = """from txl_jax.configs import common


def get_config():
  c = common.get_config()
  c.data.corpus = 'text'
  c.data.path = 'book.txt'
  c.model.update(n_layer=1, d_model=16, n_head=2, d_head=8, d_ff=16, mem_len=8)
  c.train.update(steps=6, batch_size=2, segment_len=8, eval_tokens=500)
  c.train.update(save_every=2, log_every=1)
  c.eval.segment_len = c.generate.segment_len = 8
  return c
"""

LOADED = """import sys, txl_jax
loaded = txl_jax.load(sys.argv[1])
assert isinstance(loaded.generate('import', max_new_tokens=3), str)
print(f'{loaded.score("import os" + chr(10)).bits_per_byte:.5f}')
"""


def run(arguments, cwd, **more):
  """Runs a command to its end, with no user's settings; its output."""
  env = programs.environment() | {k: v for k, v in more.items() if v}
  for name in 'PYTHONPATH', 'PYTHONHOME', data_config.VARIABLE, 'XDG_DATA_HOME':
    if name not in more:
      env.pop(name, None)
  done = subprocess.run(
    [str(x) for x in arguments],
    cwd=cwd,
    env=env,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, f'{arguments}: {done.stdout}{done.stderr}'
  return done


def build(what, source):
  """The file that a build of a source tree makes; needs no network."""
  out = source / 'out' / what
  out.mkdir(parents=True)
  # setuptools may lie where PYTHONPATH says.
  path = ':'.join(sys.path)
  command = [sys.executable, '-c', BUILD.format(what, str(out))]
  run(command, source, PYTHONPATH=path)
  (made,) = out.iterdir()
  return made


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A copy of what is under version control, but for the tests."""
  folder = tmp_path_factory.mktemp('clone')
  ignored = shutil.ignore_patterns('__pycache__')
  folders = 'txl_jax', 'configs', 'launch', 'docs', 'examples', 'benchmarks'
  for name in *folders, '.ci':
    shutil.copytree(ROOT / name, folder / name, ignore=ignored)
  for path in ROOT.iterdir():
    if path.is_file() and path.name != '.git':  # which is one in a worktree
      shutil.copy(path, folder)
  return folder


@pytest.fixture(scope='module')
def wheel(clone):
  return build('wheel', clone)


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """Makes an environment with one wheel; returns its folder of programs."""

  def install(wheel):
    folder = tmp_path_factory.mktemp('environment')
    venv.create(folder, symlinks=True)
    (own,) = folder.glob('lib/python*/site-packages')
    for others in {sysconfig.get_path(x) for x in ('purelib', 'platlib')}:
      for path in pathlib.Path(others).iterdir():
        ours = path.name.startswith(('txl_jax', '__editable__'))
        if not ours and path.suffix != '.pth' and path.name != '__pycache__':
          (own / path.name).symlink_to(path)
    pip = [sys.executable, '-m', 'pip', '--python', folder / 'bin/python']
    quiet = '--quiet', '--disable-pip-version-check'
    more = '--no-deps', '--no-index', '--no-compile', wheel
    run([*pip, 'install', *quiet, *more], folder)
    return folder / 'bin'

  return install


@pytest.fixture(scope='module')
def fresh(installed, wheel):
  return installed(wheel)


@pytest.fixture
def empty(tmp_path):
  """A folder with nothing but decoys: configs and data, which mean nothing."""
  folder = tmp_path / 'empty'
  for name in 'configs', 'data', 'launch':
    (folder / name).mkdir(parents=True)
    for file in '__init__.py', 'common.py', 'pystdlib_tiny.py':
      (folder / name / file).write_text('raise SystemExit("a decoy")\n')
  return folder


def names(path):
  with zipfile.ZipFile(path) as archive:
    return sorted(archive.namelist())


def test_the_wheel_is_whole(clone, wheel):
  there = names(wheel)
  for name in NAMES:
    assert f'txl_jax/configs/{name}' in there
  data = 'paper/paper.txt', 'paper/ptb_logs.csv'
  for name in 'configs/__init__.py', 'py.typed', *data:
    assert f'txl_jax/{name}' in there
  assert {x.split('/')[0].split('-')[0] for x in there} == {'txl_jax'}
  assert not [x for x in there if x.endswith('.pyc')]
  modules = {str(p.relative_to(clone)) for p in clone.glob('txl_jax/**/*.py')}
  assert modules <= {*there}


def test_the_sdist_makes_the_same_wheel(clone, wheel, tmp_path):
  run(['tar', '-xzf', build('sdist', clone)], tmp_path)
  (source,) = tmp_path.iterdir()
  for name in 'configs', 'launch', 'docs', 'benchmarks', '.ci/run':
    assert (source / name).exists(), name
  assert names(build('wheel', source)) == names(wheel)


WHERE = """
import pathlib, txl_jax.configs
from txl_jax.configs import common, pystdlib_tiny
print(pathlib.Path(txl_jax.__file__).parents[1])
print(pathlib.Path(common.__file__).parent)
print(len(txl_jax.configs.paths()))
"""


def test_from_a_wheel(fresh, empty):
  done = run([fresh / 'python', '-c', WHERE], empty)
  root, configs, count = done.stdout.split()
  assert pathlib.Path(root).is_relative_to(fresh.parent)
  assert configs == f'{root}/txl_jax/configs' and int(count) == len(NAMES)


def test_from_an_editable_clone(clone, installed, empty):
  bin = installed(build('editable', clone))
  done = run([bin / 'python', '-c', WHERE], empty)
  assert done.stdout == f'{clone}\n{clone}/configs\n{len(NAMES)}\n'


def test_from_a_clone_that_is_not_installed(empty):
  done = run([sys.executable, '-c', WHERE], empty, PYTHONPATH=str(ROOT))
  assert done.stdout == f'{ROOT}\n{ROOT}/configs\n{len(NAMES)}\n'


@pytest.mark.slow
def test_the_programs(fresh, empty):
  """Each has its own flags; what is none of them is told in a line."""
  flags = {'prepare': 'manual_dir', 'report': 'output', 'convert': 'vocabulary'}
  for name, flag in flags.items():
    assert f'--{flag}' in run([fresh / 'txl-jax', name, '--help'], empty).stdout
  first, second = (
    run([fresh / command, *more, '--version'], empty).stdout
    for command, *more in (['txl-jax'], ['python', '-m', 'txl_jax'])
  )
  assert first == second
  wrong = [fresh / 'txl-jax', 'prepar']
  done = subprocess.run(wrong, capture_output=True, text=True, check=False)
  assert done.returncode == 1
  assert done.stderr == (
    "error: no program 'prepar'; allowed: prepare, report, convert, "
    'export; for a mode type --mode=…\n'
  )


def used(fresh, empty, config, *overrides, corpus):
  """Trains, resumes, evaluates, scores, samples, exports and loads.

  All of it begins in an empty folder.
  """
  home = {'HOME': str(empty.parent), 'XLA_FLAGS': quick.FLAGS}
  data = f'data: {empty.parent}/.local/share/txl_jax\n'

  def txl(*flags, cwd=empty):
    return run([fresh / 'txl-jax', *flags], cwd, **home)

  keys = [f'--config.{x}' for x in overrides]
  begin = f'--config={config}', *keys, '--workdir=runs/a'
  done = txl(*begin)
  assert data in done.stderr
  assert 'best validation: ' in done.stdout
  folder = empty / 'runs/a'
  # As one that was stopped at step 4.
  shutil.rmtree(folder / 'checkpoints/6')
  done = txl(*begin)
  assert 'step 4' in done.stderr, done.stderr
  assert (folder / 'checkpoints/6').exists()
  # What is recorded is a config anywhere else.
  other = empty.parent / 'other'
  other.mkdir()
  recorded = f'--config={folder}/config.py', f'--workdir={folder}'
  done = txl(*recorded, '--mode=eval', cwd=other)
  assert data in done.stderr
  assert re.search(r'\d\.\d+', done.stdout)
  of_words = '--config.generate.max_new_tokens=5'
  assert txl(*recorded, '--mode=generate', of_words, cwd=other).stdout
  txl(*recorded, '--mode=export', '--export_file=model.npz', cwd=other)
  assert [p.name for p in other.iterdir()] == ['model.npz']
  (other / 'some.txt').write_text('import os\n')
  done = txl(*recorded, '--mode=score', '--text=some.txt', cwd=other)
  assert '9 tokens scored, 9 bytes' in done.stdout
  for source in folder, 'model.npz':
    python = fresh / 'python', '-c', LOADED, source
    assert run(python, other, **home).stdout == done.stdout.split()[1] + '\n'
  assert sorted(p.name for p in empty.iterdir() if p.is_dir()) == [
    'configs', 'data', 'launch', 'runs',
  ]  # fmt: skip
  (prepared,) = (empty.parent / '.local/share/txl_jax').iterdir()
  assert prepared.name.startswith(corpus)


@pytest.mark.slow
def test_a_config_of_ones_own(fresh, empty):
  programs.write_corpus(empty).rename(empty / 'book.txt')
  (empty / 'mine.py').write_text(MINE)
  used(fresh, empty, 'mine.py', corpus='text-book')


@pytest.mark.slow
def test_pystdlib_tiny(fresh, empty):
  used(fresh, empty, 'pystdlib_tiny', *SMALL, corpus='pystdlib')
