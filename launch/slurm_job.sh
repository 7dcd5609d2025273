#!/usr/bin/env bash
# The job that slurm_gpu.sh submits. SLURM runs a copy of this file, in the
# folder of the repository.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/slurm_job.sh [--dry_run] gpu|node GPUS PYTHON FLAG...

Do not call this directly; launch/slurm_gpu.sh submits it, as in

  launch/slurm_gpu.sh --nodes=2 --gpus=8 -- \
    --config=enwik8_12l --workdir=/shared/runs/e12
TEXT
}

# shellcheck source=launch/common.sh
. launch/common.sh

case ${1-} in
  --help)
    usage
    exit
    ;;
  --dry_run)
    dry_run=1
    shift
    ;;
esac
[ $# -gt 3 ] || fail 'tasks, GPUs, Python and flags are missing; see --help'
tasks=$1 gpus=$2 python=$3
shift 3

# When one process has ended, the others save a checkpoint and end by
# themselves, so srun must not kill them at once, only those that hang.
step=(srun --kill-on-bad-exit=0 --wait=300)
# srun does not inherit this from sbatch.
[ -z "${SLURM_CPUS_PER_TASK-}" ] ||
  step+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
if [ "$tasks" = node ]; then
  # Under SLURM, JAX gives each process one GPU by default.
  devices=$(seq -s, 0 $((gpus - 1)))
  step=(env "JAX_LOCAL_DEVICE_IDS=${devices%,}" "${step[@]}")
fi
step+=(launch/with_flags.sh gpu "$python" -m txl_jax.main "$@")
if [ -n "$dry_run" ]; then
  words "${step[@]}"
  exit
fi

# The signal goes to the tasks through SLURM: srun itself would kill them on
# TERM.
cancelled=
trap 'signalled=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap 'signalled=1 cancelled=1' TERM # SLURM has also sent it to the tasks

"${step[@]}" &
srun=$!
status=0
while true; do
  # A signal ends the wait, not srun; the status is then the signal's, even if
  # srun has ended meanwhile.
  signalled=
  if wait "$srun"; then status=0; else status=$?; fi
  [ -n "$signalled" ] || break
done

# 143: the program was stopped, by us or by SLURM, and has saved.
if [ "$status" = 143 ] && [ -z "$cancelled" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
