#!/usr/bin/env bash
# The environment of a process: all launchers start programs on accelerators
# through this file, so XLA flags and the compilation cache are set only here.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/with_flags.sh tpu|gpu [--dry_run] COMMAND [ARGUMENT...]

Executes COMMAND with XLA flags that overlap collectives with computation, and
with a persistent compilation cache. Existing values of LIBTPU_INIT_ARGS,
XLA_FLAGS and JAX_COMPILATION_CACHE_DIR take precedence.

  launch/with_flags.sh gpu python -m txl_jax.main \
    --config=enwik8_12l --workdir=runs/e12
TEXT
}

# shellcheck source=launch/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

platform=${1-}
case $platform in
  --help)
    usage
    exit
    ;;
  tpu)
    variable=LIBTPU_INIT_ARGS
    flags=(
      # Gathers parameters sharded by fsdp during the previous layer. This
      # changes v3; newer generations decide by themselves. The latency-hiding
      # scheduler is on for all.
      --xla_enable_async_all_gather=true
      # Not used: --xla_tpu_enable_async_collective_fusion=true and related
      # flags, which libtpu 0.0.52 refuses except for v5e, where they are the
      # default. docs/launching.md lists the effect of each common flag.
    )
    ;;
  gpu)
    variable=XLA_FLAGS
    flags=(
      # Schedules by estimated time: each collective starts as early, and is
      # awaited as late, as the program allows.
      --xla_gpu_enable_latency_hiding_scheduler=true
      # In the loop over layers, these gather the next layer's parameters and
      # reduce the previous one's gradients while a layer is computed.
      --xla_gpu_enable_pipelined_all_gather=true
      --xla_gpu_enable_pipelined_reduce_scatter=true
      --xla_gpu_enable_pipelined_all_reduce=true
      # Otherwise a pipelined loop copies its buffers in every iteration.
      --xla_gpu_enable_while_loop_double_buffering=true
    )
    ;;
  *) fail "platform '$platform'; allowed: tpu, gpu" ;;
esac
shift
if [ "${1-}" = --dry_run ]; then
  dry_run=1
  shift
fi
[ $# -gt 0 ] || fail 'a command is missing after the platform'

# The last of two equal flags counts.
export "$variable=${flags[*]}${!variable:+ ${!variable}}"
# Only process 0 writes it; on shared storage, all hosts benefit.
: "${JAX_COMPILATION_CACHE_DIR:=$HOME/.cache/txl_jax}"
export JAX_COMPILATION_CACHE_DIR

if [ -n "$dry_run" ]; then
  words env "$variable=${!variable}" \
    "JAX_COMPILATION_CACHE_DIR=$JAX_COMPILATION_CACHE_DIR" "$@"
  exit
fi
# exec, here and in the other launchers: signals reach Python.
exec "$@"
