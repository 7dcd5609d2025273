"""Programs start anew with huge pages, once, and where that is harmless."""

import os
import subprocess
import sys

import pytest

from tests import programs
from txl_jax.program import huge_pages


@pytest.fixture
def started(monkeypatch, tmp_path):
  """How a command is started anew, with its GLIBC_TUNABLES; None if not."""

  def run(command, tunables=None, pages='always [madvise] never', python=None):
    starts = []
    monkeypatch.setattr(os, 'execve', lambda *each: starts.append(each))
    if python is not None:
      monkeypatch.setattr(sys, 'executable', python)
    monkeypatch.setattr(sys, 'orig_argv', command.split(' '))
    given = command.partition('txl_jax.main')[2].split()
    monkeypatch.setattr(sys, 'argv', ['/path/main.py', *given])
    monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
    if tunables is not None:
      monkeypatch.setenv('GLIBC_TUNABLES', tunables)
    file = tmp_path / 'enabled'
    file.unlink(missing_ok=True)
    if pages:
      file.write_text(pages + '\n')
    monkeypatch.setattr(huge_pages, '_PAGES', str(file))
    huge_pages.restart('txl_jax.main', 'txl-jax')
    assert os.environ.get('GLIBC_TUNABLES') == tunables
    if not starts:
      return None
    [(executable, new, environment)] = starts
    assert executable == new[0] == sys.executable
    # Whatever becomes of the variable, there is no third start.
    monkeypatch.setattr(os, 'environ', environment)
    huge_pages.restart('txl_jax.main', 'txl-jax')
    assert len(starts) == 1 and huge_pages._STARTED not in environment
    return ' '.join(new[1:]), environment['GLIBC_TUNABLES']

  return run


def test_the_same_command_with_huge_pages(started):
  on = 'glibc.malloc.hugetlb=1'
  command = '-m txl_jax.main --config=ptb --workdir=a b'
  assert started(f'python {command}') == (command, on)
  assert started('python -u -m txl_jax.main') == ('-u -m txl_jax.main', on)
  other = 'glibc.malloc.check=1'
  assert started(f'python {command}', other) == (command, f'{other}:{on}')
  assert started(f'python {command}', '') == (command, on)


@pytest.mark.parametrize(
  'given',
  [
    dict(tunables='glibc.malloc.hugetlb=0'),  # the user's choice
    dict(tunables='glibc.malloc.hugetlb=1'),  # the second start
    dict(tunables='glibc.malloc.check=1:glibc.malloc.hugetlb=1'),
    dict(pages='[always] madvise never'),
    dict(pages='always madvise [never]'),
    dict(pages=None),  # another system
    dict(command='python -m pdb -m txl_jax.main'),
    dict(command='python launcher.py -m txl_jax.main --config=ptb'),
    dict(command='python -m pytest'),
    dict(command='python'),
    dict(command=''),  # embedded in a program
    dict(python=''),  # Python does not know where it is
    dict(python='/bin/sh'),  # another one than this
  ],
  ids=str,
)
def test_no_second_start(started, given):
  assert started(**dict(command='python -m txl_jax.main') | given) is None


def test_the_program_goes_on_if_it_cannot_be_started_again(
  monkeypatch, tmp_path
):
  def fail(*_):
    raise OSError('no memory')

  (tmp_path / 'enabled').write_text('always [madvise] never\n')
  monkeypatch.setattr(os, 'execve', fail)
  monkeypatch.setattr(huge_pages, '_PAGES', str(tmp_path / 'enabled'))
  monkeypatch.setattr(sys, 'orig_argv', ['python', '-m', 'txl_jax.main'])
  monkeypatch.setattr(sys, 'argv', ['/path/main.py'])
  environment = dict(os.environ)
  huge_pages.restart('txl_jax.main')
  assert os.environ == environment


@pytest.mark.parametrize('module', ['txl_jax.main', 'txl_jax', 'benchmarks'])
def test_programs_start_twice_where_linux_has_huge_pages(tmp_path, module):
  (tmp_path / 'sitecustomize.py').write_text(
    'import os\nprint(os.getpid(), os.environ.get("GLIBC_TUNABLES"))\n'
  )
  path = os.pathsep.join([str(tmp_path), str(programs.ROOT)])
  environment = os.environ | {'PYTHONPATH': path, 'PYTHONUNBUFFERED': '1'}
  environment.pop('GLIBC_TUNABLES', None)
  done = subprocess.run(
    [sys.executable, '-m', module, '--no_such_flag'],
    cwd=programs.ROOT,
    env=environment,
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  try:
    with open(huge_pages._PAGES) as f:
      offered = '[madvise]' in f.read()
  except OSError:
    offered = False
  starts = [line.split() for line in done.stdout.splitlines()]
  assert done.returncode == 1 and 'no_such_flag' in done.stderr
  expected = ['None', 'glibc.malloc.hugetlb=1'] if offered else ['None']
  assert [tunables for _, tunables in starts] == expected
  assert len({process for process, _ in starts}) == 1
