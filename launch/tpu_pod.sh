#!/usr/bin/env bash
# One slice of a Cloud TPU, from its creation to its deletion.
set -euo pipefail

about() {
  cat <<'TEXT'
Usage: launch/tpu_pod.sh SUBCOMMAND --name=NAME --zone=ZONE [OPTION...]
         [-- FLAG OF txl_jax.main...]

A Cloud TPU slice of any size.
TEXT
}

details() {
  cat <<'TEXT'
  --queued            create waits in the queue; delete, resume need it
  --worker=N          host of logs and run; default: 0

  launch/tpu_pod.sh create --name=e24 --zone=europe-west4-a --type=v3-32
  launch/tpu_pod.sh install --name=e24 --zone=europe-west4-a \
    --nfs=10.0.0.2:/share
  launch/tpu_pod.sh start --name=e24 --zone=europe-west4-a -- \
    --config=enwik8_24l --workdir=/mnt/nfs/runs/e24 \
    --config.data.dir=/mnt/nfs/data
TEXT
}

# shellcheck source=launch/tpu_common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tpu_common.sh"
tpu_main "$@"
