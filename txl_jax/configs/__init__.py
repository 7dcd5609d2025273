"""The configs of experiments, under a name that cannot clash with yours.

  from txl_jax.configs import common

An installed txl_jax contains them here. In a clone, or after pip install -e,
they are the files of configs/ at its top.
"""

import pathlib

_HERE = pathlib.Path(__file__).parent
if not (_HERE / 'common.py').exists():
  __path__.append(str(_HERE.parents[1] / 'configs'))


def paths() -> dict[str, pathlib.Path]:
  """{name: its file} of all configs, sorted by name."""
  folder = pathlib.Path(__path__[-1])
  return {p.stem: p for p in sorted(folder.glob('[!_]*.py'))}
