#!/usr/bin/env bash
# The environment of a process: launchers start programs on accelerators through
# this file, so flags of XLA and the cache of compiled programs are only here.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: launch/with_flags.sh tpu|gpu [--dry_run] COMMAND [ARGUMENT...]

Becomes COMMAND, with flags of XLA that overlap collectives with computation
and with a persistent cache of compiled programs. What LIBTPU_INIT_ARGS,
XLA_FLAGS or JAX_COMPILATION_CACHE_DIR already hold wins over what is set here.

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
      # Parameters sharded by fsdp are gathered while the layer before them
      # computes. This changes v3; newer generations choose by themselves. The
      # latency-hiding scheduler is on in all of them.
      --xla_enable_async_all_gather=true
      # Not here: --xla_tpu_enable_async_collective_fusion=true and relatives,
      # which libtpu 0.0.52 refuses but for v5e, where they are the default.
      # docs/launching.md has what each of the usual flags changes.
    )
    ;;
  gpu)
    variable=XLA_FLAGS
    flags=(
      # Schedules by estimated time, so that a collective starts as early and
      # is waited for as late as the program allows.
      --xla_gpu_enable_latency_hiding_scheduler=true
      # The layers are a loop: with these, parameters of the next layer are
      # gathered, and gradients of the last one reduced, beside this layer.
      --xla_gpu_enable_pipelined_all_gather=true
      --xla_gpu_enable_pipelined_reduce_scatter=true
      --xla_gpu_enable_pipelined_all_reduce=true
      # Without it, a pipelined loop copies its buffers in every iteration.
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
# Only process 0 writes it: on storage that all hosts share, all gain by it.
: "${JAX_COMPILATION_CACHE_DIR:=$HOME/.cache/txl_jax}"
export JAX_COMPILATION_CACHE_DIR

if [ -n "$dry_run" ]; then
  words env "$variable=${!variable}" \
    "JAX_COMPILATION_CACHE_DIR=$JAX_COMPILATION_CACHE_DIR" "$@"
  exit
fi
# exec, here and in the other launchers: signals reach Python.
exec "$@"
