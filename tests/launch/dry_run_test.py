"""A dry run prints the exact commands."""

import shlex
import sys

import pytest

from tests.launch import launchers
from tests.launch.launchers import FLAGS, POD

TPU_SSH = 'gcloud compute tpus tpu-vm ssh e24 --zone=z'
TPU_STATE = (
  "gcloud compute tpus tpu-vm describe e24 --zone=z '--format=value(state)'"
)
TPU_INSTALL = [
  'git -C REPO archive --format=tar.gz --output=/tmp/e24-txl_jax.tar.gz HEAD',
  'gcloud compute tpus tpu-vm scp /tmp/e24-txl_jax.tar.gz '
  'e24:txl_jax.tar.gz --zone=z --worker=all',
  'rm -f /tmp/e24-txl_jax.tar.gz',
]
TPU_UNPACK = (
  'mkdir -p txl_jax && tar -xzf txl_jax.tar.gz -C txl_jax && cd txl_jax && '
)
SUMMARY = (
  '# txl_jax.main --mode=summary, with these flags, tells how TPUs will attend'
)
DRY = [
  (
    'tpu_pod',
    [
      'create',
      *POD,
      '--type=v3-32',
      '--project=p',
      '--spot',
      '--dry_run',
    ],
    [
      'gcloud compute tpus tpu-vm create e24 --zone=z --project=p '
      '--accelerator-type=v3-32 --version=tpu-ubuntu2204-base --spot'
    ],
  ),
  (
    'tpu_pod',
    ['create', *POD, '--type=v6e-32', '--queued', '--dry_run'],
    [
      'gcloud compute tpus queued-resources create e24 --zone=z '
      '--accelerator-type=v6e-32 --runtime-version=v2-alpha-tpuv6e '
      '--node-id=e24',
      '# every 30 s, until it is ACTIVE:',
      'gcloud compute tpus queued-resources describe e24 --zone=z '
      "'--format=value(state.state)'",
    ],
  ),
  (
    'tpu_pod',
    ['install', *POD, '--nfs=10.0.0.2:/share', '--dry_run'],
    [
      *TPU_INSTALL,
      f"{TPU_SSH} --worker=all '--command={TPU_UNPACK}"
      "launch/tpu_worker.sh install --nfs=10.0.0.2:/share'",
    ],
  ),
  (
    'tpu_pod',
    ['run', *POD, '--worker=3', '--dry_run', '--', 'python', '-V'],
    [
      f"{TPU_SSH} --worker=3 '--command=cd txl_jax && "
      "launch/tpu_worker.sh run -- python -V'"
    ],
  ),
  (
    'tpu_pod',
    ['start', *POD, '--env=A=1', '--dry_run', *FLAGS],
    [
      SUMMARY,
      f"{TPU_SSH} --worker=all '--command=cd txl_jax && env A=1 "
      "launch/tpu_worker.sh start -- --config=c.py --workdir=/w/x'",
    ],
  ),
  (
    'tpu_pod',
    ['start', *POD, '--dry_run', '--', '--config=c.py', '--workdir=gs://b/e'],
    [
      SUMMARY,
      f"{TPU_SSH} --worker=all '--command=cd txl_jax && "
      "launch/tpu_worker.sh start -- --config=c.py --workdir=gs://b/e'",
    ],
  ),
  (
    'tpu_pod',
    ['logs', *POD, '--dry_run'],
    [
      f"{TPU_SSH} --worker=0 '--command=cd txl_jax && "
      "launch/tpu_worker.sh logs'"
    ],
  ),
  (
    'tpu_pod',
    ['status', *POD, '--dry_run'],
    [
      TPU_STATE,
      f"{TPU_SSH} --worker=all '--command=cd txl_jax && "
      "launch/tpu_worker.sh status'",
    ],
  ),
  (
    'tpu_pod',
    ['stop', *POD, '--dry_run'],
    [
      f"{TPU_SSH} --worker=all '--command=cd txl_jax && "
      "launch/tpu_worker.sh stop'"
    ],
  ),
  (
    'tpu_pod',
    ['delete', *POD, '--dry_run'],
    ['gcloud compute tpus tpu-vm delete e24 --zone=z --quiet'],
  ),
  (
    'tpu_pod',
    ['resume', *POD, '--type=v3-32', '--dry_run', *FLAGS],
    [
      TPU_STATE,
      '# if it was preempted:',
      'gcloud compute tpus tpu-vm delete e24 --zone=z --quiet',
      '# if it was preempted or does not exist:',
      'gcloud compute tpus tpu-vm create e24 --zone=z '
      '--accelerator-type=v3-32 --version=tpu-ubuntu2204-base',
      *TPU_INSTALL,
      f"{TPU_SSH} --worker=all '--command={TPU_UNPACK}"
      "launch/tpu_worker.sh install'",
      '# then, or if it is ready:',
      SUMMARY,
      f"{TPU_SSH} --worker=all '--command=cd txl_jax && "
      "launch/tpu_worker.sh start -- --config=c.py --workdir=/w/x'",
    ],
  ),
  (
    'multi_slice',
    [
      'create',
      *POD,
      '--slices=2',
      '--type=v6e-256',
      '--spot',
      '--dry_run',
    ],
    [
      'gcloud compute tpus queued-resources create e24 --zone=z '
      '--accelerator-type=v6e-256 --runtime-version=v2-alpha-tpuv6e '
      '--node-count=2 --node-prefix=e24 --spot',
      '# every 30 s, until it is ACTIVE:',
      'gcloud compute tpus queued-resources describe e24 --zone=z '
      "'--format=value(state.state)'",
    ],
  ),
  (
    'multi_slice',
    ['start', *POD, '--slices=2', '--dry_run', *FLAGS],
    [
      SUMMARY,
      'gcloud compute tpus queued-resources ssh e24 --zone=z --node=all '
      "--worker=all '--command=cd txl_jax && launch/tpu_worker.sh start -- "
      "--config=c.py --workdir=/w/x --config.mesh.slices=2'",
    ],
  ),
  (
    'multi_slice',
    [
      'logs',
      *POD,
      '--slices=2',
      '--node=1',
      '--worker=5',
      '--dry_run',
    ],
    [
      'gcloud compute tpus queued-resources ssh e24 --zone=z --node=1 '
      "--worker=5 '--command=cd txl_jax && launch/tpu_worker.sh logs'"
    ],
  ),
  (
    'multi_slice',
    ['delete', *POD, '--slices=2', '--dry_run'],
    [
      'gcloud compute tpus queued-resources delete e24 --zone=z --force --quiet'
    ],
  ),
  (
    'slurm_gpu',
    [
      '--nodes=4',
      '--gpus=8',
      '--python=/v/python',
      '--sbatch=--partition=h100',
      '--dry_run',
      *FLAGS,
    ],
    [
      'sbatch --job-name=txl_jax --nodes=4 --ntasks-per-node=8 --gres=gpu:8 '
      '--time=1-00:00:00 --requeue --signal=B:USR1@300 --open-mode=append '
      '--output=txl_jax-%j.log --chdir=REPO --partition=h100 '
      'REPO/launch/slurm_job.sh gpu 8 /v/python --config=c.py --workdir=/w/x',
      '# what the job runs:',
      'srun --kill-on-bad-exit=0 --wait=300 launch/with_flags.sh gpu /v/python '
      '-m txl_jax.main --config=c.py --workdir=/w/x',
    ],
  ),
  (
    'slurm_gpu',
    [
      '--nodes=2',
      '--gpus=4',
      '--tasks=node',
      '--cpus=12',
      '--time=2:00:00',
      '--name=e',
      '--python=/v/python',
      '--dry_run',
      *FLAGS,
    ],
    [
      'sbatch --job-name=e --nodes=2 --ntasks-per-node=1 --gres=gpu:4 '
      '--time=2:00:00 --requeue --signal=B:USR1@300 --open-mode=append '
      '--output=e-%j.log --chdir=REPO --cpus-per-task=12 '
      'REPO/launch/slurm_job.sh node 4 /v/python --config=c.py --workdir=/w/x',
      '# what the job runs:',
      'env JAX_LOCAL_DEVICE_IDS=0,1,2,3 srun --kill-on-bad-exit=0 --wait=300 '
      '--cpus-per-task=12 launch/with_flags.sh gpu /v/python -m txl_jax.main '
      '--config=c.py --workdir=/w/x',
    ],
  ),
  (
    'tpu_worker',
    ['start', '--dry_run', *FLAGS],
    [
      'REPO/launch/with_flags.sh tpu REPO/.venv/bin/python -m txl_jax.main '
      '--config=c.py --workdir=/w/x'
    ],
  ),
  (
    'job',
    ['logs', '--name=e', '--pod=1', '--dry_run'],
    [
      'kubectl --namespace=default logs --follow --tail=100 '
      '--selector=job-name=e,batch.kubernetes.io/job-completion-index=1'
    ],
  ),
  (
    'job',
    ['status', '--name=e', '--tpu=t', '--namespace=lm', '--dry_run'],
    [
      'kubectl --namespace=lm get jobset/e',
      'kubectl --namespace=lm get pods '
      '--selector=jobset.sigs.k8s.io/jobset-name=e',
    ],
  ),
  (
    'job',
    ['delete', '--name=e', '--dry_run'],
    [
      'kubectl --namespace=default delete --ignore-not-found '
      '--cascade=foreground job/e service/e'
    ],
  ),
]


@pytest.mark.parametrize(('program', 'arguments', 'expected'), DRY)
def test_dry_run(program, arguments, expected):
  assert launchers.dry(program, *arguments) == expected


def test_dry_run_of_local():
  python = shlex.quote(sys.executable)
  assert launchers.dry(
    'local',
    '--processes=2',
    '--devices=8',
    '--port=99',
    '--dry_run',
    *FLAGS,
  ) == [
    'env PYTHONUNBUFFERED=1 JAX_PLATFORMS=cpu '
    f'XLA_FLAGS=--xla_force_host_platform_device_count=4 {python} -m '
    'txl_jax.main --config=c.py --workdir=/w/x --coordinator=127.0.0.1:99 '
    f'--num_processes=2 --process_id={i}'
    for i in range(2)
  ]
  assert launchers.dry(
    'local', '--gpus=4,5,6,7', '--port=99', '--dry_run', '--', './mine', 'a b'
  ) == [
    f'env PYTHONUNBUFFERED=1 CUDA_VISIBLE_DEVICES={gpus} '
    "REPO/launch/with_flags.sh gpu ./mine 'a b' --coordinator=127.0.0.1:99 "
    f'--num_processes=2 --process_id={i}'
    for i, gpus in enumerate(('4,5', '6,7'))
  ]
