"""The host's part of a checkpoint, and how a run continues from it."""

import dataclasses
import importlib.metadata
import math
from dataclasses import field
from pathlib import Path
from typing import Any

from txl_jax.parallel import hardware, processes
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.runs.metrics_log import Mark
from txl_jax.training import averaging, optim
from txl_jax.training.options import Config


@dataclasses.dataclass(frozen=True)
class Progress:
  """Progress of a run; in every checkpoint.

  Batches are passed over by going back to a checkpoint: step s reads batch
  s + passed_over.
  """

  evaluated: int = 0  # last step that was
  best_step: int = -1  # the evaluated step with the lowest nll
  best: float = math.inf  # its mean nll in nats
  last: float = math.inf  # mean nll of the last evaluation
  plateau: optim.Plateau = field(default_factory=optim.Plateau)
  trigger: averaging.Trigger = field(default_factory=averaging.Trigger)
  rollbacks: int = 0  # how often the run went back to a checkpoint
  passed_over: int = 0

  def after(
    self, step: int, nats: float, config: optim.Optim, regular: bool = True
  ) -> 'Progress':
    """The Progress after a step was evaluated, with its mean nll in nats.

    An evaluation that is not `regular` was made because the run was to end
    there: it decides neither the rate nor where an average starts, so that the
    run goes on as one that was longer from the first.
    """
    new: dict[str, Any] = {'evaluated': step, 'last': nats}
    if nats < self.best:
      new |= {'best_step': step, 'best': nats}
    if regular and config.schedule == 'plateau':
      new['plateau'] = self.plateau.update(nats, config)
    if regular and config.average == 'nt':
      new['trigger'] = self.trigger.update(nats, step, config)
    return dataclasses.replace(self, **new)

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> 'Progress':
    """A Progress of which `dataclasses.asdict` made these; or files.ODD."""
    plateau = optim.Plateau(**fields['plateau'])
    trigger = averaging.Trigger(**fields['trigger'])
    return cls(**{**fields, 'plateau': plateau, 'trigger': trigger})


@dataclasses.dataclass(frozen=True)
class Host:
  """What a checkpoint holds besides arrays."""

  progress: Progress
  record: Mark  # of the log
  config: dict[str, Any]  # flat
  corpus: str  # its digest; '' of weights that were converted
  versions: dict[str, str]  # of packages, and the kind of the devices

  @classmethod
  def of(
    cls, progress: Progress, record: Mark, config: Any, corpus: str
  ) -> Any:
    """The Host of a run as it stands."""
    flat = settings.flatten(config.to_dict())
    return cls(progress, record, flat, corpus, _versions())

  @classmethod
  def read(cls, checkpoints: Checkpoints, step: int) -> 'Host':
    """Reads the Host of a checkpoint; UserError if it is damaged."""
    found = checkpoints.host(step)
    try:
      progress = Progress.from_json(found['progress'])
      record = Mark(**found['record'])
      config, corpus = settings.flatten(found['config']), found['corpus']
      return cls(progress, record, config, corpus, found['versions'])
    except files.ODD as e:
      path = checkpoints.folder / f'{step}/host'
      raise UserError(f'{path} is damaged: {type(e).__name__}: {e}') from e

  @property
  def trained(self) -> bool:
    """Whether a run has saved it, on a corpus; else weights were converted."""
    return bool(self.corpus)

  def other_versions(self) -> list[str]:
    """A line for each package, or device, that is another one now."""
    return [
      f'warning: {name} was {self.versions.get(name)} and is {version}: the '
      'figures from here on may differ in their last digits'
      for name, version in _versions().items()
      if self.versions.get(name) != version
    ]


def check_length(config: Config, folder: Path, step: int) -> None:
  """UserError if a run that goes on from a step was to end before it."""
  if config.train.steps < step:
    allowed = f'at least {step}, which the run in {folder} has made'
    settings.refuse('train.steps', config.train.steps, allowed)


def start(checkpoints: Checkpoints, folder: Path, resume: str) -> int | None:
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
    allowed = 'train.resume is must; allowed: auto, never'
    raise UserError(f'{folder} holds no checkpoint and {allowed}')
  return newest


def _versions():
  names = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
  versions = {name: importlib.metadata.version(name) for name in names}
  return versions | {'platform': hardware.describe()['device']}
