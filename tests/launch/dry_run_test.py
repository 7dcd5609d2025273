"""A dry run prints the exact commands."""

import shlex
import sys

import pytest

from tests.launch import launchers

POD, FLAGS = ' '.join(launchers.POD), ' '.join(launchers.FLAGS)
VM = 'gcloud compute tpus tpu-vm'
QUEUED = 'gcloud compute tpus queued-resources'
TPU_SSH = f'{VM} ssh e24 --zone=z'
WORKER = 'cd txl_jax && launch/tpu_worker.sh'
TPU_STATE = f"{VM} describe e24 --zone=z '--format=value(state)'"
TPU_INSTALL = [
  'git -C REPO archive --format=tar.gz --output=/tmp/e24-txl_jax.tar.gz HEAD',
  f'{VM} scp /tmp/e24-txl_jax.tar.gz e24:txl_jax.tar.gz --zone=z --worker=all',
  'rm -f /tmp/e24-txl_jax.tar.gz',
]
TPU_UNPACK = (
  f"{TPU_SSH} --worker=all '--command=mkdir -p txl_jax && tar -xzf "
  'txl_jax.tar.gz -C txl_jax && cd txl_jax && launch/tpu_worker.sh install'
)
ACTIVE = [
  '# every 30 s, until it is ACTIVE:',
  f"{QUEUED} describe e24 --zone=z '--format=value(state.state)'",
]
SUMMARY = (
  '# txl_jax.main --mode=summary, with these flags, tells how TPUs will attend'
)
DRY = {
  f'tpu_pod create {POD} --type=v3-32 --project=p --spot': [
    f'{VM} create e24 --zone=z --project=p '
    '--accelerator-type=v3-32 --version=tpu-ubuntu2204-base --spot'
  ],
  f'tpu_pod create {POD} --type=v6e-32 --queued': [
    f'{QUEUED} create e24 --zone=z --accelerator-type=v6e-32 '
    '--runtime-version=v2-alpha-tpuv6e --node-id=e24',
    *ACTIVE,
  ],
  f'tpu_pod install {POD} --nfs=10.0.0.2:/share': [
    *TPU_INSTALL,
    f"{TPU_UNPACK} --nfs=10.0.0.2:/share'",
  ],
  f'tpu_pod run {POD} --worker=3 -- python -V': [
    f"{TPU_SSH} --worker=3 '--command={WORKER} run -- python -V'"
  ],
  f'tpu_pod start {POD} --env=A=1 {FLAGS}': [
    SUMMARY,
    f"{TPU_SSH} --worker=all '--command=cd txl_jax && env A=1 "
    f"launch/tpu_worker.sh start {FLAGS}'",
  ],
  f'tpu_pod start {POD} -- --config=c.py --workdir=gs://b/e': [
    SUMMARY,
    f"{TPU_SSH} --worker=all '--command={WORKER} start -- --config=c.py "
    "--workdir=gs://b/e'",
  ],
  f'tpu_pod logs {POD}': [f"{TPU_SSH} --worker=0 '--command={WORKER} logs'"],
  f'tpu_pod status {POD}': [
    TPU_STATE,
    f"{TPU_SSH} --worker=all '--command={WORKER} status'",
  ],
  f'tpu_pod stop {POD}': [f"{TPU_SSH} --worker=all '--command={WORKER} stop'"],
  f'tpu_pod delete {POD}': [f'{VM} delete e24 --zone=z --quiet'],
  f'tpu_pod resume {POD} --type=v3-32 {FLAGS}': [
    TPU_STATE,
    '# if it was preempted:',
    f'{VM} delete e24 --zone=z --quiet',
    '# if it was preempted or does not exist:',
    f'{VM} create e24 --zone=z '
    '--accelerator-type=v3-32 --version=tpu-ubuntu2204-base',
    *TPU_INSTALL,
    f"{TPU_UNPACK}'",
    '# then, or if it is ready:',
    SUMMARY,
    f"{TPU_SSH} --worker=all '--command={WORKER} start {FLAGS}'",
  ],
  f'multi_slice create {POD} --slices=2 --type=v6e-256 --spot': [
    f'{QUEUED} create e24 --zone=z --accelerator-type=v6e-256 '
    '--runtime-version=v2-alpha-tpuv6e --node-count=2 --node-prefix=e24 --spot',
    *ACTIVE,
  ],
  f'multi_slice start {POD} --slices=2 {FLAGS}': [
    SUMMARY,
    f"{QUEUED} ssh e24 --zone=z --node=all --worker=all '--command={WORKER} "
    f"start {FLAGS} --config.mesh.slices=2'",
  ],
  f'multi_slice logs {POD} --slices=2 --node=1 --worker=5': [
    f"{QUEUED} ssh e24 --zone=z --node=1 --worker=5 '--command={WORKER} logs'"
  ],
  f'multi_slice delete {POD} --slices=2': [
    f'{QUEUED} delete e24 --zone=z --force --quiet'
  ],
  'slurm_gpu --nodes=4 --gpus=8 --python=/v/python '
  f'--sbatch=--partition=h100 {FLAGS}': [
    'sbatch --job-name=txl_jax --nodes=4 --ntasks-per-node=8 --gres=gpu:8 '
    '--time=1-00:00:00 --requeue --signal=B:USR1@300 --open-mode=append '
    '--output=txl_jax-%j.log --chdir=REPO --partition=h100 '
    'REPO/launch/slurm_job.sh gpu 8 /v/python --config=c.py --workdir=/w/x',
    '# what the job runs:',
    'srun --kill-on-bad-exit=0 --wait=300 launch/with_flags.sh gpu /v/python '
    '-m txl_jax.main --config=c.py --workdir=/w/x',
  ],
  'slurm_gpu --nodes=2 --gpus=4 --tasks=node --cpus=12 --time=2:00:00 '
  f'--name=e --python=/v/python {FLAGS}': [
    'sbatch --job-name=e --nodes=2 --ntasks-per-node=1 --gres=gpu:4 '
    '--time=2:00:00 --requeue --signal=B:USR1@300 --open-mode=append '
    '--output=e-%j.log --chdir=REPO --cpus-per-task=12 '
    'REPO/launch/slurm_job.sh node 4 /v/python --config=c.py --workdir=/w/x',
    '# what the job runs:',
    'env JAX_LOCAL_DEVICE_IDS=0,1,2,3 srun --kill-on-bad-exit=0 --wait=300 '
    '--cpus-per-task=12 launch/with_flags.sh gpu /v/python -m txl_jax.main '
    '--config=c.py --workdir=/w/x',
  ],
  f'tpu_worker start {FLAGS}': [
    'REPO/launch/with_flags.sh tpu REPO/.venv/bin/python -m txl_jax.main '
    '--config=c.py --workdir=/w/x'
  ],
  'job logs --name=e --pod=1': [
    'kubectl --namespace=default logs --follow --tail=100 '
    '--selector=job-name=e,batch.kubernetes.io/job-completion-index=1'
  ],
  'job status --name=e --tpu=t --namespace=lm': [
    'kubectl --namespace=lm get jobset/e',
    'kubectl --namespace=lm get pods '
    '--selector=jobset.sigs.k8s.io/jobset-name=e',
  ],
  'job delete --name=e': [
    'kubectl --namespace=default delete --ignore-not-found '
    '--cascade=foreground job/e service/e'
  ],
  f'local --processes=2 --devices=8 --port=99 {FLAGS}': [
    'env PYTHONUNBUFFERED=1 JAX_PLATFORMS=cpu '
    'XLA_FLAGS=--xla_force_host_platform_device_count=4 '
    f'{shlex.quote(sys.executable)} -m txl_jax.main --config=c.py '
    '--workdir=/w/x --coordinator=127.0.0.1:99 --num_processes=2 '
    f'--process_id={i}'
    for i in range(2)
  ],
  "local --gpus=4,5,6,7 --port=99 -- ./mine 'a b'": [
    f'env PYTHONUNBUFFERED=1 CUDA_VISIBLE_DEVICES={gpus} '
    "REPO/launch/with_flags.sh gpu ./mine 'a b' --coordinator=127.0.0.1:99 "
    f'--num_processes=2 --process_id={i}'
    for i, gpus in enumerate(('4,5', '6,7'))
  ],
}


@pytest.mark.parametrize('command', DRY)
def test_dry_run(command):
  assert launchers.dry(command) == DRY[command]
