#!/usr/bin/env bash
# Several slices of Cloud TPUs as one mesh.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/multi_slice.sh SUBCOMMAND --name=NAME --zone=ZONE --slices=N
         [OPTION...] [-- FLAG OF txl_jax.main...]

N equal slices of Cloud TPUs, requested together as one queued resource. The
TPU runtime tells each host which slice it is (its MEGASCALE variables);
--config.mesh.slices=N is added to the flags, so that only gradients cross the
slow network between slices. Needs gcloud, with a project set in it.

  create   asks for them and waits; --type=v6e-256, --spot,
           --version=IMAGE instead of the usual one of the type
  install  copies the commit checked out here to all hosts and installs it;
           --nfs=SERVER:/SHARE is mounted as /mnt/nfs
  run      one command on one host, without its TPU: -- COMMAND...
  start    starts txl_jax.main on all hosts; it goes on when you log out
  logs     follows the log of a host
  status   state of the request, and of the program on each host
  stop     SIGTERM: a checkpoint, then the end
  resume   start; before it create and install, if the slices were preempted
  delete   deletes them

  --project=PROJECT   instead of the one of gcloud
  --node=S --worker=N host of logs and run: N of slice S; default: 0 and 0
  --env=NAME=VALUE    a variable for start and run; may be repeated
  --dry_run           only print the commands

--workdir must be on storage that all hosts share. start and resume go on with
the run that is there.

  launch/multi_slice.sh create --name=lm1b --zone=us-east5-b --slices=2 \
    --type=v6e-256
  launch/multi_slice.sh install --name=lm1b --zone=us-east5-b --slices=2 \
    --nfs=10.0.0.2:/share
  launch/multi_slice.sh start --name=lm1b --zone=us-east5-b --slices=2 -- \
    --config=configs/lm1b_large.py --workdir=/mnt/nfs/runs/lm1b \
    --config.data.dir=/mnt/nfs/data
TEXT
}

# shellcheck source=launch/tpu_common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tpu_common.sh"
slices=0
tpu_main "$@"
