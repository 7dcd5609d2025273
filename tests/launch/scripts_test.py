"""Every script: help, documented commands, flags of XLA."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.launch import launchers


def test_modes():
  """What is run can be run; what is sourced is not run by mistake."""
  for path in launchers.SHELL:
    sourced = path.read_text().startswith('# shellcheck shell=bash')
    assert os.access(path, os.X_OK) != sourced, path.name


def examples(text):
  """The commands of a text that start a launcher, their lines joined."""
  text = text.replace('\\\n', ' ')
  pattern = r'^ *((?:python )?launch/\S+\.(?:sh|py) .*)$'
  return re.findall(pattern, text, re.MULTILINE)


@pytest.mark.parametrize('program', launchers.PROGRAMS)
def test_help(program, tools):
  done = launchers.call(program, '--help')
  assert done.returncode == 0
  assert done.stdout
  assert not done.stderr
  found = examples(done.stdout)
  assert found
  for example in found:
    run_example(example, tools)


def run_example(command, tools):
  arguments = launchers.with_dry_run(command)
  if arguments[0] == 'python':
    arguments[0] = sys.executable
  if arguments[0].endswith('with_flags.sh'):
    arguments.remove('--dry_run')
    arguments.insert(2, '--dry_run')
  done = subprocess.run(
    arguments,
    cwd=launchers.ROOT,
    env=launchers.environment(tools),
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert done.returncode == 0, f'{command}: {done.stderr}'
  assert done.stdout
  assert not launchers.calls(tools), 'a dry run has touched something'


@pytest.mark.thorough
def test_documented_commands(tools):
  text = (launchers.ROOT / 'docs/launching.md').read_text()
  found = examples(text)
  assert len(found) > 10
  for command in found:
    run_example(command, tools)
  for name in ('tpu_pod.sh', 'multi_slice.sh', 'slurm_gpu.sh'):
    assert any(c.startswith(f'launch/{name}') for c in found), name
  assert any('launch/kubernetes_job.py' in c for c in found)
  assert any('launch/local.py' in c for c in found)


def test_flags_of_the_platforms():
  """They stand before those of the user, which win; a value stays whole."""
  for platform, name in (('gpu', 'XLA_FLAGS'), ('tpu', 'LIBTPU_INIT_ARGS')):
    done = launchers.call(
      'with_flags', platform, '--dry_run', 'a b', **{name: '--x=1'}
    )
    env, setting, cache, command = shlex.split(done.stdout)
    assert env == 'env'
    assert setting.startswith(f'{name}=--xla_')
    assert setting.endswith('=true --x=1')
    assert cache == 'JAX_COMPILATION_CACHE_DIR=/home/me/.cache/txl_jax'
    assert command == 'a b'
  done = launchers.call(
    'with_flags', 'gpu', 'printenv', 'JAX_COMPILATION_CACHE_DIR'
  )
  assert done.stdout == '/home/me/.cache/txl_jax\n'
  mine = {'JAX_COMPILATION_CACHE_DIR': '/x y'}
  done = launchers.call('with_flags', 'gpu', 'printenv', *mine, **mine)
  assert done.stdout == '/x y\n'


@pytest.mark.thorough
def test_xla_knows_the_flags_of_gpus():
  """XLA aborts at one that it does not know; a CPU has the same list."""
  ask = [sys.executable, '-c', 'import jax; print(len(jax.devices()))']
  done = launchers.call('with_flags', 'gpu', *ask, JAX_PLATFORMS='cpu')
  assert done.stdout == '1\n', done.stderr
  unknown = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_gpu_no_such_flag=1'}
  assert launchers.call('with_flags', 'gpu', *ask, **unknown).returncode != 0
