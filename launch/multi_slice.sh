#!/usr/bin/env bash
# Several slices of Cloud TPUs as one mesh.
set -euo pipefail

about() {
  cat <<'TEXT'
Usage: launch/multi_slice.sh SUBCOMMAND --name=NAME --zone=ZONE --slices=N
         [OPTION...] [-- FLAG OF txl_jax.main...]

N equal slices of Cloud TPUs, requested together as one queued resource. The
TPU runtime tells each host which slice it is (its MEGASCALE variables);
--config.mesh.slices=N is added to the flags, so that only gradients cross the
slow network between slices.
TEXT
}

details() {
  cat <<'TEXT'
  --slices=N          number of slices, at least 2
  --node=S --worker=N host of logs and run: N of slice S; default: 0 and 0

  launch/multi_slice.sh create --name=lm1b --zone=us-east5-b --slices=2 \
    --type=v6e-256
  launch/multi_slice.sh install --name=lm1b --zone=us-east5-b --slices=2 \
    --nfs=10.0.0.2:/share
  launch/multi_slice.sh start --name=lm1b --zone=us-east5-b --slices=2 -- \
    --config=lm1b_large --workdir=/mnt/nfs/runs/lm1b \
    --config.data.dir=/mnt/nfs/data
TEXT
}

# shellcheck source=launch/tpu_common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tpu_common.sh"
# shellcheck disable=SC2034 # read by tpu_main
with_slices=1
tpu_main "$@"
