#!/usr/bin/env bash
# GPU nodes of a SLURM cluster.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/slurm_gpu.sh --nodes=N --gpus=G [OPTION...]
         -- FLAG OF txl_jax.main...

Submits a job of N nodes with G GPUs each. At its time limit, or on preemption,
the job saves a checkpoint, returns to the queue and later continues the same
run; `scancel JOB` ends it for good. JAX gets the process numbers from SLURM.
Run this in the environment that has txl_jax.

  --tasks=gpu         one process for each GPU; or node: one for each node
  --time=1-00:00:00   time limit of the job; default: 1 day
  --cpus=N            CPUs of a process; default: the cluster's
  --name=NAME         name of the job; default: txl_jax
  --python=PYTHON     default: the python of the environment
  --sbatch=OPTION     an sbatch option, e.g. --sbatch=--partition=h100; may be
                      repeated
  --dry_run           only print the commands

--workdir must be on storage shared by all nodes, or gs://BUCKET/NAME, which
needs the extra gcs in the environment.

  launch/slurm_gpu.sh --nodes=4 --gpus=8 --cpus=12 \
    --sbatch=--partition=h100 --sbatch=--account=lm -- \
    --config=enwik8_24l --workdir=/shared/runs/e24 \
    --config.model.dtype=bfloat16 --config.mesh.slices=4
TEXT
}

# shellcheck source=launch/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

nodes='' gpus='' tasks=gpu time=1-00:00:00 cpus='' name=txl_jax
python=$(command -v python || command -v python3 || echo python)
options=()
option() {
  case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --gpus=*) gpus=${1#*=} ;;
    --tasks=*) tasks=${1#*=} ;;
    --time=?*) time=${1#*=} ;;
    --cpus=*)
      count --cpus "${1#*=}"
      cpus=${1#*=}
      ;;
    --name=?*) name=${1#*=} ;;
    --python=?*) python=${1#*=} ;;
    --sbatch=-?*) options+=("${1#*=}") ;;
    *) return 1 ;;
  esac
}
parse "$@"
set -- ${rest[@]+"${rest[@]}"}
need --nodes "$nodes" 4
need --gpus "$gpus" 8
count --nodes "$nodes"
count --gpus "$gpus"
case $tasks in
  gpu) per_node=$gpus ;;
  node) per_node=1 ;;
  *) fail "--tasks=$tasks; allowed: gpu, node" ;;
esac
check_flags "$@"

# USR1 comes 5 minutes before the time limit, to slurm_job.sh only: TERM could
# not be distinguished from scancel. GPUs are requested per node, so that
# each process sees all of them and JAX selects its own.
command=(sbatch "--job-name=$name" "--nodes=$nodes"
  "--ntasks-per-node=$per_node" "--gres=gpu:$gpus" "--time=$time" --requeue
  --signal=B:USR1@300 --open-mode=append "--output=$name-%j.log"
  "--chdir=$repo")
[ -z "$cpus" ] || command+=("--cpus-per-task=$cpus")
command+=(${options[@]+"${options[@]}"})
job=("$repo/launch/slurm_job.sh" "$tasks" "$gpus" "$python" "$@")
run "${command[@]}" "${job[@]}"
if [ -n "$dry_run" ]; then
  note 'what the job runs:'
  cd "$repo"
  SLURM_CPUS_PER_TASK=$cpus "${job[0]}" --dry_run "${job[@]:1}"
fi
