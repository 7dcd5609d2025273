"""Lists or copies the launchers of clusters, see docs/launching.md.

txl-jax launch
txl-jax launch --copy_to=.  makes ./launch
"""

import pathlib
import shutil

from absl import app, flags

from txl_jax.program import command_line, files
from txl_jax.program.errors import UserError

_TO = flags.DEFINE(
  command_line.Path(), 'copy_to', '', 'Folder to put the folder launch into.'
)
# Those that people call.
LAUNCHERS = {
  'local.py': 'several processes on this machine',
  'tpu_pod.sh': 'a slice of Cloud TPUs (installs from a clone)',
  'multi_slice.sh': 'several slices as one mesh (installs from a clone)',
  'slurm_gpu.sh': 'GPU nodes of a SLURM cluster',
  'kubernetes_job.py': 'GPUs or TPUs of a Kubernetes cluster',
  'with_flags.sh': 'any program, with flags of XLA and a cache of programs',
}


def folder() -> pathlib.Path:
  """The launchers within an installed txl_jax, or in launch/ of a clone."""
  here = pathlib.Path(__file__).parents[1]
  installed = here / 'launchers'
  return installed if installed.exists() else here.parent / 'launch'


def main(_: list[str]) -> None:
  """Copies the launchers if asked to, and lists them."""
  there = folder()
  if _TO.value:
    to = pathlib.Path(_TO.value) / 'launch'
    if to.exists():
      allowed = 'a folder without launch'
      raise UserError(f'--copy_to: {to} is there; allowed: {allowed}')
    with files.writing(f'{to}'):
      shutil.copytree(there, to, ignore=shutil.ignore_patterns('__pycache__'))
    there = to
  for name, what in LAUNCHERS.items():
    print(f'{there / name}: {what}')


if __name__ == '__main__':
  with command_line.told():
    app.run(main, flags_parser=command_line.parse)
