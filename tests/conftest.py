"""Eight simulated CPU devices, set before jax is first imported.

The programs that tests start have an environment of their own.
"""

import gc
import os
import shutil
import tempfile

import pytest

from tests import emulator, fake_bucket, quick
from txl_jax.data import options
from txl_jax.program import buckets, target_device

gc.set_threshold(100_000)  # as programs do, see `terminal.begin`
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
flags = os.environ.get('XLA_FLAGS', '')
if 'host_platform_device_count' not in flags:
  flags += f' --xla_force_host_platform_device_count=8 {quick.FLAGS}'
  os.environ['XLA_FLAGS'] = flags.strip()


def pytest_configure(config):
  """Makes folders for all workers: of compiled programs, and of data."""
  if hasattr(config, 'workerinput'):
    return  # a worker, which has its environment from the first process
  config.folders = []
  for name in quick.CACHE, options.VARIABLE:
    if name == options.VARIABLE or name not in os.environ:
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
FIRST += ('word_runs', 'loop', 'step_xl', 'other_programs')


def pytest_collection_modifyitems(config, items):
  """Sorts files, each of which stays together, if they run in parallel."""
  if hasattr(config, 'workerinput'):
    name = lambda item: item.path.name.removesuffix('_test.py')
    items.sort(key=lambda item: name(item) not in FIRST)


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
