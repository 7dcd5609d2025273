# shellcheck shell=bash
# Functions shared by the launchers. Sourced after `set -euo pipefail`, not run.

# shellcheck disable=SC2034 # read by the scripts that source this file
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dry_run=

# fail MESSAGE: prints a user error in one line and exits with status 2.
fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

# words ARG...: one line that a shell parses back into exactly these arguments.
words() {
  local word quoted line=
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_@%+=:,./-]*)
        quoted=
        while [[ $word == *\'* ]]; do
          quoted+=${word%%\'*}"'\\''"
          word=${word#*\'}
        done
        line+=" '$quoted$word'"
        ;;
      *) line+=" $word" ;;
    esac
  done
  printf '%s\n' "${line# }"
}

# run COMMAND...: runs the command, or prints it in a dry run.
run() {
  if [ -n "$dry_run" ]; then
    words "$@"
  else
    "$@"
  fi
}

# note MESSAGE: a comment between the commands of a dry run.
note() {
  [ -z "$dry_run" ] || printf '# %s\n' "$1"
}

# parse ARG...: handles --help and --dry_run, and passes every other argument to
# the caller's function `option`, which returns 1 if it does not know it. The
# arguments after -- go into the array `rest`; in macOS's bash an empty one
# needs ${rest[@]+...}.
parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --help)
        usage
        exit
        ;;
      --dry_run) dry_run=1 ;;
      --)
        shift
        break
        ;;
      *) option "$1" || fail "argument '$1' is not expected; see --help" ;;
    esac
    shift
  done
  # shellcheck disable=SC2034 # read by the caller
  rest=("$@")
}

# need OPTION VALUE EXAMPLE: fails if the value is empty.
need() {
  [ -n "$2" ] || fail "$1 is missing, say $1=$3"
}

# count OPTION VALUE: fails unless the value is an integer above 0.
count() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] ||
    fail "$1=$2; allowed: a whole number above 0"
}

# check_flags FLAG...: fails unless the flags can start, and later continue, a
# run.
check_flags() {
  local flag config='' workdir=''
  for flag in "$@"; do
    case $flag in
      --config=*) config=${flag#*=} ;;
      --workdir=*) workdir=${flag#*=} ;;
    esac
  done
  [ -n "$config" ] ||
    fail "--config is missing: give txl_jax's flags last, after --"
  case $workdir in
    /* | gs://?*/?*) ;;
    *) fail "--workdir=$workdir; allowed after --: an absolute path that all\
 hosts share, or gs://BUCKET/NAME" ;;
  esac
}
