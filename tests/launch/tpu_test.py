"""tpu_pod.sh and tpu_worker.sh, with a gcloud that runs them here."""

import contextlib
import os
import signal

import pytest

from tests.launch import launchers
from tests.launch.launchers import FLAGS, POD, WORKDIR

# A host of a TPU: the remote command runs here, in a home of its own.
HOST = """
case "$*" in
  *describe*) cat "$HOME/state" ;;
  *' ssh '*)
    for word in "$@"; do
      case $word in
        --command=*) cd "$HOME" && bash -c "${word#--command=}" ;;
      esac
    done
    ;;
esac
"""


@pytest.fixture
def host(tools, tmp_path):
  """The home of a host that has the program installed; its python is ours."""
  home = tmp_path / 'the home'
  home.mkdir()
  (home / 'txl_jax').mkdir()
  (home / 'txl_jax/launch').symlink_to(launchers.LAUNCH)
  python = home / 'txl_jax/.venv/bin/python'
  python.parent.mkdir(parents=True)
  python.write_text(
    '#!/usr/bin/env bash\n'
    'printf "%s\\n" "$LIBTPU_INIT_ARGS" "$@" >"$HOME/given"\n'
    'trap "echo saved; exit 143" TERM\n'
    'while :; do sleep 0.05; done\n'
  )
  python.chmod(0o755)
  (home / 'state').write_text('READY\n')
  launchers.write_tool(tools, 'gcloud', HOST)
  launchers.write_tool(tools, 'git')
  yield home
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    os.kill(int((home / '.txl_jax/pid').read_text()), signal.SIGKILL)


def pod(subcommand, host, tools, *more):
  return launchers.call(
    'tpu_pod', subcommand, *POD, *more, folder=tools, HOME=str(host)
  )


@pytest.mark.thorough
def test_tpu_host(host, tools):
  """Through two shells the arguments arrive as they were given."""
  flags = ['--', '--config=c.py', WORKDIR, '--config.generate.prompt=$HOME *']
  assert 'not running' in pod('status', host, tools).stdout
  done = pod('start', host, tools, '--env=LIBTPU_INIT_ARGS=--a b', *flags)
  assert 'started' in done.stdout, done.stderr
  launchers.wait_for((host / 'given').exists)
  given = (host / 'given').read_text().splitlines()
  assert given[0].endswith('=true --a b')
  assert given[1:] == ['-m', 'txl_jax.main', *flags[1:]]
  # The same command again does not start a second one.
  done = pod('resume', host, tools, '--type=v3-8', *flags)
  assert 'already running' in done.stdout
  done = pod('stop', host, tools)
  assert 'stopped' in done.stdout, done.stderr
  status = pod('status', host, tools).stdout
  assert 'not running; last line: saved' in status
  assert 'not running' in pod('stop', host, tools).stdout
  # What needs no TPU runs beside one, with the installed Python first.
  done = pod('run', host, tools, '--', 'bash', '-c', 'echo $JAX_PLATFORMS $0')
  assert done.stdout == 'cpu bash\n', done.stderr


@pytest.mark.parametrize(
  ('state', 'expected'),
  [
    ('READY', ['describe', 'ssh']),
    ('PREEMPTED', ['describe', 'delete', 'create', 'scp', 'ssh', 'ssh']),
    ('NOT_FOUND', ['describe', 'create', 'scp', 'ssh', 'ssh']),
    ('CREATING', ['describe']),
    ('broken', ['describe']),
  ],
)
def test_resume(state, expected, tools):
  """What is done depends on the state that gcloud tells."""
  answer = f'echo a warning >&2; echo {state}'
  if state in ('NOT_FOUND', 'broken'):
    answer = f'echo "ERROR: {state}: e24" >&2; exit 1'
  launchers.write_tool(tools, 'git')
  launchers.write_tool(
    tools, 'gcloud', f'case "$*" in *describe*) {answer} ;; esac; exit 0'
  )
  done = launchers.call(
    'tpu_pod', 'resume', *POD, '--type=v3-32', *FLAGS, folder=tools
  )
  names = [
    c.split()[4] for c in launchers.calls(tools) if c.startswith('gcloud')
  ]
  assert names == expected
  assert (done.returncode == 0) == ('ssh' in expected)
  if not done.returncode:
    assert 'tpu_worker.sh\\ start' in launchers.calls(tools)[-1]
  elif state == 'CREATING':
    assert done.stderr == 'error: e24 is CREATING: try again later\n'
  else:
    assert 'ERROR: broken' in done.stderr


def test_a_request_is_waited_for(tools):
  """A queued resource that fails is an error; one that is active is not."""
  create = ['create', *POD, '--type=v6e-32', '--queued']
  launchers.write_tool(
    tools, 'gcloud', 'case "$*" in *describe*) echo ACTIVE ;; esac'
  )
  assert launchers.call('tpu_pod', *create, folder=tools).returncode == 0
  launchers.write_tool(
    tools, 'gcloud', 'case "$*" in *describe*) echo FAILED ;; esac'
  )
  done = launchers.call('tpu_pod', *create, folder=tools)
  assert done.returncode == 1
  assert done.stderr == 'error: e24 is FAILED\n'
