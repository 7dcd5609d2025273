"""What a run that continues finds, compares and tells."""

import importlib.metadata
import pathlib
from typing import Any

import jax

from txl_jax import settings
from txl_jax.data.prepared import Prepared
from txl_jax.errors import UserError
from txl_jax.parallel import processes
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.training.progress import Progress


def start(
  checkpoints: Checkpoints, folder: pathlib.Path, resume: str
) -> int | None:
  """The step to continue from, or None for a new run.

  UserError: the folder of the run has checkpoints but none that can be used,
  or `resume`, the key train.resume, forbids what is found.
  """
  processes.on_main(checkpoints.recover)
  found = processes.on_main(checkpoints.steps)
  if found and resume == 'never':
    raise UserError(
      f'{folder} holds checkpoints (newest: step {found[0]}) and train.resume '
      'is never; allowed: auto, must, or another --workdir'
    )
  newest = checkpoints.newest()
  if newest is None and found:
    raise UserError(
      f'{checkpoints.folder} holds checkpoints {found}, none of which can be '
      'used; restore one, or choose another --workdir'
    )
  if newest is None and resume == 'must':
    raise UserError(
      f'{folder} holds no checkpoint and train.resume is must; allowed: auto, '
      'never'
    )
  return newest


def host_part(
  config: Any, corpus: Prepared, progress: Progress
) -> dict[str, Any]:
  """What a checkpoint holds besides arrays: a JSON dict."""
  return {
    'progress': progress.to_json(),
    'config': settings.flatten(config.to_dict()),
    'corpus': corpus.digest,
    'versions': _versions(),
  }


def other_versions(host: dict[str, Any]) -> list[str]:
  """A line for each package, or device, that is not as in a `host_part`."""
  return [
    f'warning: {name} was {host["versions"].get(name)} and is {version}: the '
    'figures from here on may differ in their last digits'
    for name, version in _versions().items()
    if host['versions'].get(name) != version
  ]


def _versions():
  names = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
  versions = {name: importlib.metadata.version(name) for name in names}
  return versions | {'platform': jax.devices()[0].device_kind}
