"""Running the launchers, beside tools that only write down their calls."""

import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / 'launch'
SHELL = sorted(LAUNCH.glob('**/*.sh'))
PROGRAMS = {
  'tpu_pod': ['launch/tpu_pod.sh'],
  'multi_slice': ['launch/multi_slice.sh'],
  'slurm_gpu': ['launch/slurm_gpu.sh'],
  'with_flags': ['launch/with_flags.sh'],
  'tpu_worker': ['launch/tpu_worker.sh'],
  'slurm_job': ['launch/slurm_job.sh'],
  'local': [sys.executable, 'launch/local.py'],
  'job': [sys.executable, 'launch/kubernetes_job.py'],
}
TOOLS = ('gcloud', 'kubectl', 'sbatch', 'srun', 'scancel', 'scontrol')
FLAGS = ['--', '--config=c.py', '--workdir=/w/x']
POD = ['--name=e24', '--zone=z']
WORKDIR = "--workdir=/a b/it's"
GPU = ['--name=e', '--image=i', '--claim=c', '--nodes=2', '--gpus=8']
TPU = ['--name=e', '--image=i', '--claim=c', '--tpu=tpu-v6e-slice']
SHARED = ['--', '--config=c.py', '--workdir=/shared/e']


def write_tool(folder, name, script=''):
  """A tool that writes down its call, then does what the script says."""
  path = folder / name
  path.write_text(
    '#!/usr/bin/env bash\n'
    f'printf "%s\\n" "{name}$(printf " %q" "$@")" >>{folder}/calls\n{script}\n'
  )
  path.chmod(0o755)


def calls(folder):
  path = folder / 'calls'
  return path.read_text().splitlines() if path.exists() else []


def environment(folder=None, **more):
  """That of a user, with the tools of a folder and the linters in reach."""
  env = {k: v for k, v in os.environ.items() if not k.startswith('SLURM_')}
  for name in 'XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'JAX_COMPILATION_CACHE_DIR':
    env.pop(name, None)
  env.pop('TMPDIR', None)
  path = f'{pathlib.Path(sys.executable).parent}:{env["PATH"]}'
  if folder is not None:
    path = f'{folder}:{path}'
  return env | {'PATH': path, 'HOME': '/home/me'} | more


def call(program, *arguments, folder=None, **more):
  return subprocess.run(
    [*PROGRAMS[program], *arguments],
    cwd=ROOT,
    env=environment(folder, **more),
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )


def with_dry_run(command):
  """The arguments of a command line, --dry_run among them."""
  arguments = shlex.split(command)
  at = arguments.index('--') if '--' in arguments else len(arguments)
  return [*arguments[:at], '--dry_run', *arguments[at:]]


def dry(command):
  """The lines of a dry run; the repository's own folder is REPO in them."""
  program, *arguments = with_dry_run(command)
  done = call(program, *arguments)
  assert done.returncode == 0, done.stderr
  assert not done.stderr
  return done.stdout.replace(str(ROOT), 'REPO').splitlines()


def wait_for(condition, seconds=30):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'waited in vain'
    time.sleep(0.05)
