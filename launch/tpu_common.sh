# shellcheck shell=bash
# Functions shared by tpu_pod.sh and multi_slice.sh, which define only their own
# parts of the help. Sourced after `set -euo pipefail`.

# shellcheck source=launch/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name='' zone='' project='' type='' version='' spot='' queued='' nfs=''
node=0 host=0 slices=1 with_slices='' variables=()
gcloud=(gcloud compute tpus)
folder=txl_jax # in the home directory of each host
archive=txl_jax.tar.gz

# usage: prints the help; `about` and `details` are the caller's parts.
usage() {
  about
  cat <<'TEXT'
Needs gcloud, with a project set in it.

  create   requests the TPU and waits; --type=v6e-32, --spot,
           --version=IMAGE instead of the type's usual image
  install  copies the checked-out commit to all hosts and installs it;
           --nfs=SERVER:/SHARE is mounted as /mnt/nfs
  run      runs a command on one host, without its TPU: -- COMMAND...
  start    starts txl_jax.main on all hosts; it keeps running when you log out
  logs     follows the log of a host
  status   shows the state of the TPU, and of the program on each host
  stop     sends SIGTERM; the program saves a checkpoint and ends
  resume   runs start, after create and install if the TPU was preempted
  delete   deletes the TPU

--workdir must be on storage shared by all hosts, or in a bucket to which the
TPU's service account can write: gs://BUCKET/NAME. start and resume continue
the run in it.

  --project=PROJECT   instead of gcloud's
  --env=NAME=VALUE    environment of start and run; may be repeated
  --dry_run           only print the commands
TEXT
  details
}

# tpu_main ARG...: parses the command line and runs the subcommand.
tpu_main() {
  local action=${1-}
  case $action in
    --help)
      usage
      exit
      ;;
    create | install | run | start | stop | logs | status | resume | delete) ;;
    *)
      fail "subcommand '$action'; allowed: create, install, run, start, stop,\
 logs, status, resume, delete; see --help"
      ;;
  esac
  shift
  parse "$@"
  set -- ${rest[@]+"${rest[@]}"}
  need --name "$name" e24
  need --zone "$zone" europe-west4-a
  if [ -n "$with_slices" ]; then
    [ "$slices" -gt 1 ] || fail '--slices is missing, or 1; allowed: 2 or more'
    queued=1
  fi
  where=("--zone=$zone")
  [ -z "$project" ] || where+=("--project=$project")
  case $action in
    run) [ $# -gt 0 ] || fail 'a command is missing after --' ;;
    start | resume)
      check_flags "$@"
      # The slow network is between slices, so they are the outer axis of the
      # mesh.
      [ -z "$with_slices" ] || set -- "$@" "--config.mesh.slices=$slices"
      ;;
    *) [ $# -eq 0 ] || fail "argument '$1' is not expected after --" ;;
  esac
  case $action in
    create | resume) choose_version ;;
  esac
  "tpu_$action" "$@"
}

# option ARG: handles an option; see `parse`.
option() {
  case $1 in
    --name=?*) name=${1#*=} ;;
    --zone=?*) zone=${1#*=} ;;
    --project=?*) project=${1#*=} ;;
    --type=?*) type=${1#*=} ;;
    --version=?*) version=${1#*=} ;;
    --nfs=?*:/?*) nfs=${1#*=} ;;
    --node=?*) node=${1#*=} ;;
    --worker=?*) host=${1#*=} ;;
    --env=?*=*) variables+=("${1#*=}") ;;
    --spot) spot=1 ;;
    --queued) queued=1 ;;
    --slices=?*)
      [ -n "$with_slices" ] || fail "argument '$1': use multi_slice.sh"
      count --slices "${1#*=}"
      slices=${1#*=}
      ;;
    *) return 1 ;;
  esac
}

# choose_version: sets the image for the TPU generation, unless one is given.
choose_version() {
  need --type "$type" v6e-32
  [ -z "$version" ] || return 0
  case $type in
    v2-* | v3-* | v4-*) version=tpu-ubuntu2204-base ;;
    v5litepod-*) version=v2-alpha-tpuv5-lite ;;
    v5p-*) version=v2-alpha-tpuv5 ;;
    v6e-*) version=v2-alpha-tpuv6e ;;
    v5e-*) fail "--type=$type; allowed: v5litepod-${type#v5e-}, its name there" ;;
    *) fail "--version is missing: --type=$type has no default" ;;
  esac
}

# remote WORKER LINE: runs a shell line on host WORKER of slice --node, or on
# every host if WORKER is `all`.
remote() {
  if [ -z "$with_slices" ]; then
    run "${gcloud[@]}" tpu-vm ssh "$name" "${where[@]}" "--worker=$1" \
      "--command=$2"
  else
    local slice=$node
    [ "$1" != all ] || slice=all
    run "${gcloud[@]}" queued-resources ssh "$name" "${where[@]}" \
      "--node=$slice" "--worker=$1" "--command=$2"
  fi
}

# worker ARG...: prints the line that calls tpu_worker.sh on a host.
worker() {
  printf 'cd %s && ' "$folder"
  if [ ${#variables[@]} -eq 0 ]; then
    words launch/tpu_worker.sh "$@"
  else
    words env "${variables[@]}" launch/tpu_worker.sh "$@"
  fi
}

tpu_create() {
  local command=("${gcloud[@]}")
  if [ -z "$queued" ]; then
    command+=(tpu-vm create "$name" "${where[@]}" "--accelerator-type=$type"
      "--version=$version")
  else
    command+=(queued-resources create "$name" "${where[@]}"
      "--accelerator-type=$type" "--runtime-version=$version")
    if [ -n "$with_slices" ]; then
      command+=("--node-count=$slices" "--node-prefix=$name")
    else
      command+=("--node-id=$name")
    fi
  fi
  [ -z "$spot" ] || command+=(--spot)
  run "${command[@]}"
  [ -z "$queued" ] || wait_active
}

# describe: prints the state.
describe() {
  if [ -n "$queued" ]; then
    run "${gcloud[@]}" queued-resources describe "$name" "${where[@]}" \
      '--format=value(state.state)'
  else
    run "${gcloud[@]}" tpu-vm describe "$name" "${where[@]}" \
      '--format=value(state)'
  fi
}

# wait_active: waits in the queue until the request is ACTIVE.
wait_active() {
  note 'every 30 s, until it is ACTIVE:'
  if [ -n "$dry_run" ]; then
    describe
    return
  fi
  local state
  while true; do
    state=$(describe)
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDED | SUSPENDING | DELETING)
        printf 'error: %s is %s\n' "$name" "$state" >&2
        exit 1
        ;;
    esac
    sleep 30
  done
}

tpu_install() {
  local source=${TMPDIR:-/tmp}/$name-$archive install=(install) copy
  [ -z "$nfs" ] || install+=("--nfs=$nfs")
  # The commit, so that a run can be traced to it.
  [ -n "$dry_run" ] || [ -e "$repo/.git" ] ||
    fail "install copies a commit, but $repo is not a clone"
  run git -C "$repo" archive --format=tar.gz "--output=$source" HEAD
  if [ -z "$with_slices" ]; then
    copy=(tpu-vm scp "$source" "$name:$archive" "${where[@]}" --worker=all)
  else
    copy=(queued-resources scp "$source" "$name:$archive" "${where[@]}"
      --node=all --worker=all)
  fi
  run "${gcloud[@]}" "${copy[@]}"
  run rm -f "$source"
  remote all "mkdir -p $folder && tar -xzf $archive -C $folder &&\
 $(worker "${install[@]}")"
}

tpu_run() {
  remote "$host" "$(worker run -- "$@")"
}

tpu_start() {
  note 'txl_jax.main --mode=summary, with these flags, tells how TPUs will attend'
  remote all "$(worker start -- "$@")"
}

tpu_stop() {
  remote all "$(worker stop)"
}

tpu_logs() {
  remote "$host" "$(worker logs)"
}

tpu_status() {
  describe
  remote all "$(worker status)"
}

tpu_delete() {
  if [ -n "$queued" ]; then
    run "${gcloud[@]}" queued-resources delete "$name" "${where[@]}" --force \
      --quiet
  else
    run "${gcloud[@]}" tpu-vm delete "$name" "${where[@]}" --quiet
  fi
}

# tpu_resume FLAG...: all steps needed until the run continues.
tpu_resume() {
  local state
  if [ -n "$dry_run" ]; then
    describe
    note 'if it was preempted:'
    tpu_delete
    note 'if it was preempted or does not exist:'
    tpu_create
    tpu_install
    note 'then, or if it is ready:'
    tpu_start "$@"
    return
  fi
  state=$(describe 2>&1) || case $state in
    *NOT_FOUND*) state=NOT_FOUND ;;
    *)
      printf '%s\n' "$state" >&2
      exit 1
      ;;
  esac
  state=${state##*$'\n'} # gcloud may print warnings first
  case $state in
    READY | ACTIVE) ;;
    NOT_FOUND)
      tpu_create
      tpu_install
      ;;
    PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED)
      tpu_delete
      tpu_create
      tpu_install
      ;;
    *)
      printf 'error: %s is %s: try again later\n' "$name" "$state" >&2
      exit 1
      ;;
  esac
  tpu_start "$@"
}
