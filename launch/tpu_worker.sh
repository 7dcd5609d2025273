#!/usr/bin/env bash
# Called by tpu_pod.sh and multi_slice.sh on each host.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tpu_worker.sh install [--nfs=SERVER:/SHARE]
       tpu_worker.sh start|run [--dry_run] -- ARGUMENT...
       tpu_worker.sh stop|status|logs

tpu_pod.sh and multi_slice.sh call this on each host of a Cloud TPU. The log
and the process id are in ~/.txl_jax.

  launch/tpu_worker.sh start -- --config=enwik8_24l \
    --workdir=/mnt/nfs/runs/e24
TEXT
}

# shellcheck source=launch/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

state=$HOME/.txl_jax
mount=/mnt/nfs
python=$repo/.venv/bin/python

# running: succeeds if the process of `start` is alive; sets pid.
running() {
  pid=$(cat "$state/pid" 2>/dev/null) &&
    tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q txl_jax.main
}

worker_install() {
  local nfs=
  case ${1-} in
    --nfs=?*:/?*) nfs=${1#*=} ;;
    '') ;;
    *) fail "argument '$1'; allowed: --nfs=SERVER:/SHARE" ;;
  esac
  # The images have Python 3.10; uv installs a newer one. The variable is for
  # images whose pip refuses to touch system packages.
  PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user --quiet uv
  [ -x "$python" ] || python3 -m uv venv --quiet --python 3.12 "$repo/.venv"
  python3 -m uv pip install --quiet --python "$python" -e "${repo}[tpu,gcs,tensorboard]"
  [ -n "$nfs" ] || return 0
  sudo apt-get -qq update
  sudo apt-get -qq install -y nfs-common
  sudo mkdir -p "$mount"
  # An entry in fstab mounts it again after a restart of the host.
  grep -qs " $mount nfs " /etc/fstab ||
    printf '%s %s nfs defaults,_netdev,nofail 0 0\n' "$nfs" "$mount" |
    sudo tee -a /etc/fstab >/dev/null
  mountpoint -q "$mount" || sudo mount "$mount"
}

worker_start() {
  local command=("$repo/launch/with_flags.sh" tpu "$python" -m txl_jax.main
    "$@")
  if [ -n "$dry_run" ]; then
    words "${command[@]}"
    return
  fi
  if running; then
    echo "$HOSTNAME: already running, process $pid"
    return
  fi
  mkdir -p "$state"
  nohup "${command[@]}" </dev/null >>"$state/log" 2>&1 &
  echo $! >"$state/pid"
  echo "$HOSTNAME: started, process $!"
}

# A single host would wait for the others at its first use of the TPU.
worker_run() {
  run env JAX_PLATFORMS=cpu "PATH=$repo/.venv/bin:$PATH" "$@"
}

worker_stop() {
  if ! running; then
    echo "$HOSTNAME: not running"
    return
  fi
  kill -TERM "$pid"
  local second
  for ((second = 0; second < 300; second++)); do
    if ! running; then
      echo "$HOSTNAME: stopped"
      return
    fi
    sleep 1
  done
  printf 'error: %s: process %s has not stopped within 300 s\n' "$HOSTNAME" \
    "$pid" >&2
  exit 1
}

worker_status() {
  local what='not running'
  ! running || what="running, process $pid"
  echo "$HOSTNAME: $what; last line: $(tail -n 1 "$state/log" 2>/dev/null ||
    echo none)"
}

worker_logs() {
  exec tail -n 100 -F "$state/log"
}

action=${1-}
cd "$repo"
case $action in
  --help) usage ;;
  install) worker_install "${@:2}" ;;
  start | run)
    shift
    if [ "${1-}" = --dry_run ]; then
      dry_run=1
      shift
    fi
    [ "${1-}" = -- ] && [ $# -gt 1 ] || fail "$action: nothing follows --"
    shift
    "worker_$action" "$@"
    ;;
  stop | status | logs)
    [ $# -eq 1 ] || fail "argument '$2' is not expected"
    "worker_$action"
    ;;
  *)
    fail "subcommand '$action'; allowed: install, start, run, stop, status,\
 logs"
    ;;
esac
