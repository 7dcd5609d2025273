"""A wrong argument is one line and status 2, and nothing is touched."""

import pytest

from tests.launch import launchers

POD, FLAGS = ' '.join(launchers.POD), ' '.join(launchers.FLAGS)
GPU, TPU = ' '.join(launchers.GPU), ' '.join(launchers.TPU)
SHARED = ' '.join(launchers.SHARED)
BUCKET = '-- --config=c --workdir=gs://b'
NODE = 'slurm_gpu --nodes=1 --gpus=8'
WRONG = {
  'tpu_pod': "subcommand ''",
  'tpu_pod crate': "subcommand 'crate'",
  'tpu_pod create --zone=z --type=v3-8': '--name is missing',
  'tpu_pod create --name=x --type=v3-8': '--zone is missing',
  f'tpu_pod create {POD}': '--type is missing',
  f'tpu_pod create {POD} --type=v5e-16': 'v5litepod-16, its name there',
  f'tpu_pod create {POD} --type=v9-8': '--type=v9-8',
  f'tpu_pod create {POD} --name=': "argument '--name='",
  f'tpu_pod status {POD} --slices=2': 'multi_slice.sh',
  f'tpu_pod status {POD} x': "argument 'x'",
  f'tpu_pod status {POD} -- x': "argument 'x'",
  f'tpu_pod install {POD} --nfs=host': '--nfs=host',
  f'tpu_pod run {POD}': 'a command is missing',
  f'tpu_pod start {POD}': '--config is missing',
  f'tpu_pod start {POD} -- --config=c': '--workdir=',
  f'tpu_pod start {POD} -- --config=c --workdir=runs/x': '--workdir=runs/x',
  f'{NODE} {BUCKET}': '--workdir=gs://b',
  f'multi_slice status {POD}': '--slices is missing',
  f'multi_slice status {POD} --slices=1': '--slices is missing',
  f'multi_slice status {POD} --slices=two': '--slices=two',
  'slurm_gpu': '--nodes is missing',
  f'slurm_gpu --nodes=2 {FLAGS}': '--gpus is missing',
  f'slurm_gpu --nodes=0 --gpus=8 {FLAGS}': '--nodes=0',
  f'{NODE} --cpus=x {FLAGS}': '--cpus=x',
  f'{NODE} --tasks=all {FLAGS}': '--tasks',
  f'{NODE} x': "argument 'x'",
  NODE: '--config is missing',
  'slurm_job': 'are missing',
  'with_flags': "platform ''",
  'with_flags cpu ls': "platform 'cpu'",
  'with_flags gpu': 'a command is missing',
  'tpu_worker go': "subcommand 'go'",
  'tpu_worker start': 'nothing follows --',
  'tpu_worker stop x': "argument 'x'",
  'tpu_worker install x': "argument 'x'",
  'local': 'nothing to start',
  f'local --process=2 {FLAGS}': '--process=2',
  f'local --processes=0 {FLAGS}': '--processes=0',
  f'local --processes=two {FLAGS}': 'two',
  f'local --devices=3 {FLAGS}': '--devices: 3 for 2',
  f'local --gpus=0,1,2 {FLAGS}': '--gpus: 3 for 2',
  f'local --gpus=0,0 {FLAGS}': '--gpus=0,0',
  f'local --gpus=0,1 --devices=2 {FLAGS}': 'exclude',
  'job': 'required: action, --name',
  'job stop --name=x': 'stop',
  'job logs --name=X': '--name=X',
  'job logs --name=x -- y': "argument 'y'",
  'job start --name=x --env=X': '--env=X',
  'job start --name=x': 'give either --nodes',
  'job start --name=x --tpu=t --gpus=1': 'give either --nodes',
  f'job start --name=x --gpus=8 {SHARED}': '--image is missing',
  f'job start {GPU} --nodes=0 {SHARED}': '--nodes=0',
  f'job start {GPU}': '--config is missing',
  f'job start {GPU} {FLAGS}': '--workdir=/w/x',
  f'job start {GPU} {BUCKET}': '--workdir=gs://b; allowed',
  f'job start --name=e --image=i --gpus=8 {SHARED}': '--claim is missing',
  f'job start {TPU} --topology=4 {SHARED}': '--topology=4',
  f'job start {TPU} --topology=3x3 {SHARED}': 'multiple of --chips=4',
}


@pytest.mark.parametrize('command', WRONG)
def test_wrong_arguments(command, tools):
  done = launchers.call(*command.split(), folder=tools)
  assert done.returncode == 2
  assert not done.stdout
  assert done.stderr.startswith('error: ')
  assert done.stderr.count('\n') == 1
  assert WRONG[command] in done.stderr
  assert not launchers.calls(tools)
