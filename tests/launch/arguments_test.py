"""A wrong argument is one line and status 2, and nothing is touched."""

import pytest

from tests.launch import launchers
from tests.launch.launchers import FLAGS, GPU, POD, SHARED, TPU

WRONG = [
  ('tpu_pod', [], "subcommand ''"),
  ('tpu_pod', ['crate'], "subcommand 'crate'"),
  ('tpu_pod', ['create', '--zone=z', '--type=v3-8'], '--name is missing'),
  ('tpu_pod', ['create', '--name=x', '--type=v3-8'], '--zone is missing'),
  ('tpu_pod', ['create', *POD], '--type is missing'),
  (
    'tpu_pod',
    ['create', *POD, '--type=v5e-16'],
    'v5litepod-16, its name there',
  ),
  ('tpu_pod', ['create', *POD, '--type=v9-8'], '--type=v9-8'),
  ('tpu_pod', ['create', *POD, '--name='], "argument '--name='"),
  ('tpu_pod', ['status', *POD, '--slices=2'], 'multi_slice.sh'),
  ('tpu_pod', ['status', *POD, 'x'], "argument 'x'"),
  ('tpu_pod', ['status', *POD, '--', 'x'], "argument 'x'"),
  ('tpu_pod', ['install', *POD, '--nfs=host'], '--nfs=host'),
  ('tpu_pod', ['run', *POD], 'a command is missing'),
  ('tpu_pod', ['start', *POD], '--config is missing'),
  ('tpu_pod', ['start', *POD, '--', '--config=c'], '--workdir='),
  (
    'tpu_pod',
    ['start', *POD, '--', '--config=c', '--workdir=runs/x'],
    '--workdir=runs/x',
  ),
  (
    'slurm_gpu',
    ['--nodes=1', '--gpus=8', '--', '--config=c', '--workdir=gs://b'],
    '--workdir=gs://b',
  ),
  ('multi_slice', ['status', *POD], '--slices is missing'),
  (
    'multi_slice',
    ['status', *POD, '--slices=1'],
    '--slices is missing',
  ),
  ('multi_slice', ['status', *POD, '--slices=two'], '--slices=two'),
  ('slurm_gpu', [], '--nodes is missing'),
  ('slurm_gpu', ['--nodes=2', *FLAGS], '--gpus is missing'),
  ('slurm_gpu', ['--nodes=0', '--gpus=8', *FLAGS], '--nodes=0'),
  (
    'slurm_gpu',
    ['--nodes=1', '--gpus=8', '--cpus=x', *FLAGS],
    '--cpus=x',
  ),
  (
    'slurm_gpu',
    ['--nodes=1', '--gpus=8', '--tasks=all', *FLAGS],
    '--tasks',
  ),
  ('slurm_gpu', ['--nodes=1', '--gpus=8', 'x'], "argument 'x'"),
  ('slurm_gpu', ['--nodes=1', '--gpus=8'], '--config is missing'),
  ('slurm_job', [], 'are missing'),
  ('with_flags', [], "platform ''"),
  ('with_flags', ['cpu', 'ls'], "platform 'cpu'"),
  ('with_flags', ['gpu'], 'a command is missing'),
  ('tpu_worker', ['go'], "subcommand 'go'"),
  ('tpu_worker', ['start'], 'nothing follows --'),
  ('tpu_worker', ['stop', 'x'], "argument 'x'"),
  ('tpu_worker', ['install', 'x'], "argument 'x'"),
  ('local', [], 'nothing to start'),
  ('local', ['--process=2', *FLAGS], '--process=2'),
  ('local', ['--processes=0', *FLAGS], '--processes=0'),
  ('local', ['--processes=two', *FLAGS], 'two'),
  ('local', ['--devices=3', *FLAGS], '--devices: 3 for 2'),
  ('local', ['--gpus=0,1,2', *FLAGS], '--gpus: 3 for 2'),
  ('local', ['--gpus=0,0', *FLAGS], '--gpus=0,0'),
  ('local', ['--gpus=0,1', '--devices=2', *FLAGS], 'exclude'),
  ('job', [], 'required: action, --name'),
  ('job', ['stop', '--name=x'], 'stop'),
  ('job', ['logs', '--name=X'], '--name=X'),
  ('job', ['logs', '--name=x', '--', 'y'], "argument 'y'"),
  ('job', ['start', '--name=x', '--env=X'], '--env=X'),
  ('job', ['start', '--name=x'], 'give either --nodes'),
  ('job', ['start', '--name=x', '--tpu=t', '--gpus=1'], 'give either --nodes'),
]
WRONG += [
  ('job', ['start', '--name=x', '--gpus=8', *SHARED], '--image is missing'),
  ('job', ['start', *GPU, '--nodes=0', *SHARED], '--nodes=0'),
  ('job', ['start', *GPU], '--config is missing'),
  ('job', ['start', *GPU, *FLAGS], '--workdir=/w/x'),
  (
    'job',
    ['start', *GPU, '--', '--config=c', '--workdir=gs://b'],
    '--workdir=gs://b; allowed',
  ),
  (
    'job',
    ['start', '--name=e', '--image=i', '--nodes=1', '--gpus=8', *SHARED],
    '--claim is missing',
  ),
  ('job', ['start', *TPU, '--topology=4', *SHARED], '--topology=4'),
  ('job', ['start', *TPU, '--topology=3x3', *SHARED], 'multiple of --chips=4'),
]


@pytest.mark.parametrize(('program', 'arguments', 'says'), WRONG)
def test_wrong_arguments(program, arguments, says, tools):
  done = launchers.call(program, *arguments, folder=tools)
  assert done.returncode == 2
  assert not done.stdout
  assert done.stderr.startswith('error: ')
  assert done.stderr.count('\n') == 1
  assert says in done.stderr
  assert not launchers.calls(tools)
