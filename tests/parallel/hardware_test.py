"""What is told of a machine."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import programs
from txl_jax.parallel import hardware


def test_the_processor_is_named(tmp_path):
  file = tmp_path / 'cpuinfo'
  file.write_text('processor : 0\nmodel name\t: A CPU @ 2 GHz \nflags: x\n')
  assert hardware._cpu(str(file)) == 'A CPU @ 2 GHz'
  # Others have no such line, or no such file.
  for text in 'model name:\nflags : x\n', 'processor : 0\n', '':
    file.write_text(text)
    assert hardware._cpu(str(file))
    assert 'flags' not in hardware._cpu(str(file))
  assert hardware._cpu(str(tmp_path / 'none'))


def test_the_devices_of_these_tests():
  found = hardware.describe()
  assert (found['platform'], found['devices']) == ('cpu', 8)
  assert found['device'] == found['cpu'] and found['processes'] == 1
  assert json.loads(json.dumps(found)) == found


@pytest.mark.thorough
@pytest.mark.parametrize('platform', ['cuda', 'nonsense'])
def test_a_platform_that_does_not_exist(platform):
  """Whether jax knows its name or not."""
  if importlib.util.find_spec(f'jax_{platform}13_plugin'):
    pytest.skip('there may be such a device')
  flags = '--config=pystdlib_tiny', '--mode=summary'
  done = subprocess.run(
    [sys.executable, '-m', 'txl_jax.main', *flags],
    cwd=programs.ROOT,
    env=os.environ | {'JAX_PLATFORMS': platform},
    capture_output=True,
    text=True,
    check=False,
  )
  programs.assert_refused(done, f"JAX_PLATFORMS is '{platform}'; ", 'cpu')
  assert len(done.stderr.splitlines()) == 1
