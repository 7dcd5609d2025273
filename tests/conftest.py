"""Eight simulated CPU devices, set before jax is first imported.

The programs that tests start have an environment of their own.
"""

import os
import shutil
import tempfile

from tests import quick
from txl_jax.data import options

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


def pytest_unconfigure(config):
  """Removes them, where they were made."""
  for folder in getattr(config, 'folders', ()):
    shutil.rmtree(folder, ignore_errors=True)


# They start programs, which takes long: the last to begin would be waited for.
FIRST = ('many_processes', 'stepping', 'resume', 'main', 'profiling')
FIRST += ('word_runs',)


def pytest_collection_modifyitems(items):
  """Sorts files, each of which stays together."""
  name = lambda item: item.path.name.removesuffix('_test.py')
  items.sort(key=lambda item: name(item) not in FIRST)
