"""Eight simulated CPU devices, set before jax is first imported.

The programs that tests start have an environment of their own.
"""

import os
import shutil
import tempfile

from tests import quick

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
flags = os.environ.get('XLA_FLAGS', '')
if 'host_platform_device_count' not in flags:
  flags += f' --xla_force_host_platform_device_count=8 {quick.FLAGS}'
  os.environ['XLA_FLAGS'] = flags.strip()


def pytest_configure(config):
  """Makes a folder for compiled programs that all workers share."""
  if quick.CACHE not in os.environ:
    os.environ[quick.CACHE] = config.cache_of_programs = tempfile.mkdtemp()


def pytest_unconfigure(config):
  """Removes it, where it was made."""
  if folder := getattr(config, 'cache_of_programs', None):
    shutil.rmtree(folder, ignore_errors=True)


# They start programs, which takes long: the last to begin would be waited for.
FIRST = ('many_processes', 'stepping', 'resume', 'main', 'profiling')
FIRST += ('word_runs',)


def pytest_collection_modifyitems(items):
  """Sorts files, each of which stays together."""
  name = lambda item: item.path.name.removesuffix('_test.py')
  items.sort(key=lambda item: name(item) not in FIRST)
