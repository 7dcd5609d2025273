# shellcheck shell=bash
# Sourced by newest and oldest.

# Runs the README's test command in the current folder, a clone, with Python $1
# in a fresh environment. The packages are those that pip picks, or, with $2, uv
# by that --resolution.
test_with() (
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$1" -m venv "$work"
  if [ $# = 1 ]; then
    "$work/bin/pip" install --quiet -e '.[test]'
  else
    "$work/bin/pip" install --quiet uv
    # Without --upgrade, the pip that the environment came with would stay.
    "$work/bin/uv" pip install --quiet --upgrade --resolution "$2" \
      --python "$work/bin/python" -e '.[test]'
  fi
  "$work/bin/pip" list 2>/dev/null | grep -E '^(jax|flax|numpy|optax|orbax)'
  JAX_PLATFORMS=cpu "$work/bin/python" -m pytest
)
