#!/usr/bin/env bash
# One slice of a Cloud TPU, from its creation to its deletion.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/tpu_pod.sh SUBCOMMAND --name=NAME --zone=ZONE [OPTION...]
         [-- FLAG OF txl_jax.main...]

A Cloud TPU slice of any size. Needs gcloud, with a project set in it.

  create   makes it; --type=v6e-32, --spot, --queued to wait in the queue,
           --version=IMAGE instead of the usual one of the type
  install  copies the commit checked out here to all hosts and installs it;
           --nfs=SERVER:/SHARE is mounted as /mnt/nfs
  run      one command on one host, without its TPU: -- COMMAND...
  start    starts txl_jax.main on all hosts; it goes on when you log out
  logs     follows the log of a host
  status   state of the slice, and of the program on each host
  stop     SIGTERM: a checkpoint, then the end
  resume   start; before it create and install, if the slice was preempted
  delete   deletes it

  --project=PROJECT   instead of the one of gcloud
  --worker=N          host of logs and run; default: 0
  --env=NAME=VALUE    a variable for start and run; may be repeated
  --dry_run           only print the commands

--workdir must be on storage that all hosts share. start and resume go on with
the run that is there.

  launch/tpu_pod.sh create --name=e24 --zone=europe-west4-a --type=v3-32
  launch/tpu_pod.sh install --name=e24 --zone=europe-west4-a \
    --nfs=10.0.0.2:/share
  launch/tpu_pod.sh start --name=e24 --zone=europe-west4-a -- \
    --config=configs/enwik8_24l.py --workdir=/mnt/nfs/runs/e24 \
    --config.data.dir=/mnt/nfs/data
TEXT
}

# shellcheck source=launch/tpu_common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tpu_common.sh"
slices=1
tpu_main "$@"
