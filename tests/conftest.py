"""Eight simulated CPU devices, set before jax is first imported.

The programs that tests start have an environment of their own.
"""

import collections
import gc
import os
import shutil
import tempfile

import pytest

from tests import changed, emulator, fake_bucket, quick
from txl_jax.data import data_config
from txl_jax.program import buckets, target_device

gc.set_threshold(100_000)  # as programs do, see `terminal.begin`
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
flags = os.environ.get('XLA_FLAGS', '')
if 'host_platform_device_count' not in flags:
  flags += f' --xla_force_host_platform_device_count=8 {quick.FLAGS}'
  os.environ['XLA_FLAGS'] = flags.strip()


def pytest_addoption(parser):
  parser.addoption(
    '--changed',
    nargs='?',
    const='main',
    metavar='COMMIT',
    help='run the tests, thorough ones too, of the modules that differ from a '
    'commit (main, if none is given) and of those that import them',
  )


def pytest_configure(config):
  """Makes folders for all workers: of compiled programs, and of data."""
  if hasattr(config, 'workerinput'):
    return  # a worker, which has its environment from the first process
  if commit := config.getoption('changed'):
    try:
      files = changed.tests(changed.differing(commit))
    except ValueError as e:
      raise pytest.UsageError(str(e)) from None
    if not files:
      raise pytest.UsageError(f'nothing that has tests differs from {commit}')
    config.args[:] = files
  if commit or any('::' in x for x in config.args):  # a test that is named
    every = config.option.markexpr.removesuffix(' and not thorough')
    config.option.markexpr = every
  config.folders = []
  for name in quick.CACHE, data_config.VARIABLE:
    if name == data_config.VARIABLE or name not in os.environ:
      os.environ[name] = tempfile.mkdtemp()
      config.folders.append(os.environ[name])
  # What takes long to compile is compiled once, also in the workers.
  os.environ['JAX_COMPILATION_CACHE_DIR'] = os.environ[quick.CACHE]
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
  os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'


def pytest_xdist_auto_num_workers():
  """One more than there are CPUs: some tests wait for programs."""
  return (os.cpu_count() or 1) + 1


def pytest_unconfigure(config):
  """Removes them, where they were made."""
  for folder in getattr(config, 'folders', ()):
    shutil.rmtree(folder, ignore_errors=True)


# They start programs, which takes long: the last to begin would be waited for.
FIRST = ('many_processes', 'stepping', 'resume', 'main', 'profiling')
FIRST += ('word_runs', 'loop', 'restart', 'step_xl', 'other_programs')


@pytest.hookimpl(tryfirst=True)  # before tests are left out for their marks
def pytest_collection_modifyitems(config, items):
  """Marks cases; sorts files, each kept together, if they run in parallel."""
  left, named = collections.Counter(), collections.Counter()
  for item in items:
    if mark := item.get_closest_marker('default_cases'):
      function = item.nodeid.partition('[')[0]
      if item.callspec.id in mark.args:
        named[function] += 1
      else:
        left[function] += 1
        item.add_marker('thorough')
  if wrong := [x for x, n in left.items() if n > 1 and not named[x]]:
    raise pytest.UsageError(f'default_cases names no case of {wrong[0]}')
  if hasattr(config, 'workerinput'):
    name = lambda item: item.path.name.removesuffix('_test.py')
    items.sort(key=lambda item: name(item) not in FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call):
  """Begins a failure with what is wrong; NumPy's begin with an empty line."""
  if call.excinfo and isinstance(call.excinfo.value, AssertionError):
    texts = (str(x).lstrip('\n') for x in call.excinfo.value.args)
    call.excinfo.value.args = (*texts,)


@pytest.fixture(scope='session')
def emulated():
  """A server that plays Cloud Storage; skips without it."""
  emulator.needed()
  with emulator.running() as door:
    yield door


@pytest.fixture
def memory(monkeypatch):
  """A bucket in memory, in the place of those that there are."""
  made = fake_bucket.Bucket()
  none = fake_bucket.Bucket(missing=True)
  of = lambda name: made if name == emulator.BUCKET else none
  monkeypatch.setattr(buckets, '_bucket', of)
  monkeypatch.setattr(buckets, '_retry', lambda: None)
  monkeypatch.setattr(buckets, '_prepare_packages', lambda called: None)
  return made


@pytest.fixture
def matrix_units(monkeypatch):
  """Compiles for a CPU with matrix units for bfloat16, whatever this one has.

  A program compiled in another test may be used again: compile fresh functions.
  """
  monkeypatch.setattr(target_device, 'cpu_units', lambda: 'amx_bf16')


_SLOW = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]


@pytest.fixture(params=['memory', pytest.param('emulated', marks=_SLOW)])
def bucket(request):
  """A bucket that may be `closed`, and tells `seen` of each write."""
  found = request.getfixturevalue(request.param)
  found.open()
  return found


@pytest.fixture
def in_bucket(bucket, request):
  """A folder in it that no other test has."""
  return emulator.folder_of(request)
