"""Host state of a checkpoint: all but the arrays."""

import dataclasses
import importlib.metadata
import math
from dataclasses import field
from typing import Any

from txl_jax.parallel import hardware
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.runs.metrics_log import Mark
from txl_jax.training import averaging, optim


@dataclasses.dataclass(frozen=True)
class Progress:
  """Progress of a run; saved in every checkpoint.

  Rollbacks skip batches: step s reads batch s + passed_over.
  """

  evaluated: int = 0  # last evaluated step
  evaluated_batch: int = 0  # step + passed_over at that evaluation
  best_step: int = -1  # evaluated step with the lowest nll, or -1
  best: float = math.inf  # its mean nll in nats
  last: float = math.inf  # mean nll of the last evaluation
  since_best: int = 0  # scheduled evaluations since the best one
  plateau: optim.Plateau = field(default_factory=optim.Plateau)
  trigger: averaging.NTTrigger = field(default_factory=averaging.NTTrigger)
  rollbacks: int = 0  # returns to a checkpoint after a non-finite loss
  passed_over: int = 0

  def after(
    self, step: int, nats: float, config: optim.Optim, regular: bool = True
  ) -> 'Progress':
    """The Progress after an evaluation of `step` with mean nll `nats`.

    The evaluation at the last step, unless it is also a scheduled one
    (`regular`), changes neither learning rate nor averaging, so a run that is
    extended later is identical to one that was longer from the start.
    """
    new: dict[str, Any] = {'evaluated': step, 'last': nats}
    new['evaluated_batch'] = step + self.passed_over
    new['since_best'] = self.since_best + regular
    if nats < self.best:
      new |= {'best_step': step, 'best': nats, 'since_best': 0}
    if regular and config.schedule == 'plateau':
      new['plateau'] = self.plateau.update(nats, config)
    if regular and config.average == 'nt':
      new['trigger'] = self.trigger.update(nats, step, config)
    return dataclasses.replace(self, **new)

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> 'Progress':
    """Inverse of `dataclasses.asdict`; raises files.ODD for other fields."""
    plateau = optim.Plateau(**fields['plateau'])
    trigger = averaging.NTTrigger(**fields['trigger'])
    return cls(**{**fields, 'plateau': plateau, 'trigger': trigger})


@dataclasses.dataclass(frozen=True)
class HostState:
  """Contents of a checkpoint other than arrays."""

  progress: Progress
  record: Mark  # end of the log
  config: dict[str, Any]  # flat
  corpus: str  # digest of the corpus; '' for converted weights
  # Versions of packages, the kind of device, the implementation of attention.
  versions: dict[str, str]

  @classmethod
  def of(
    cls,
    progress: Progress,
    record: Mark,
    config: Any,
    corpus: str,
    kernel: str = '',
  ) -> Any:
    """The HostState of a run, with the current versions."""
    flat = settings.flatten(config)
    return cls(progress, record, flat, corpus, _versions(kernel))

  @classmethod
  def read(cls, checkpoints: Checkpoints, step: int) -> 'HostState':
    """Reads the HostState of a checkpoint; UserError if it is damaged."""
    host = checkpoints.host(step)
    try:
      progress = Progress.from_json(host['progress'])
      record = Mark(**host['record'])
      config = settings.flatten(host['config'])
      corpus = host['corpus']
      return cls(progress, record, config, corpus, dict(host['versions']))
    except files.ODD as e:
      path = checkpoints.folder / f'{step}/host'
      raise UserError(f'{path} is damaged: {type(e).__name__}: {e}') from e

  @property
  def trained(self) -> bool:
    """Whether training saved the checkpoint; False for converted weights."""
    return bool(self.corpus)

  @property
  def kernel(self) -> str:
    """What `proof.proven` has kept, to compute the same bits.

    '' if it is not known, or if the bits may differ for other reasons.
    """
    kept = str(self.versions.get('attention', ''))
    return kept if self.versions == _versions(kept) else ''

  def other_versions(self, kernel: str = '') -> list[str]:
    """A warning for each package or device that differs from the checkpoint.

    And for the kernel of attention, where it is known of both.
    """
    then = self.versions.copy()
    if 'attention' in then:  # as kept, 'NAME for CASE'
      then['attention'], kernel = (
        str(x).partition(' ')[0] for x in (then['attention'], kernel)
      )
    now = _versions(kernel if 'attention' in then else '')
    return [
      f'warning: {name} was {then.get(name)}, is now {version}: '
      'results from here on may differ in the last digits'
      for name, version in now.items()
      if then.get(name) != version
    ]


def _versions(kernel):
  names = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
  versions = {name: importlib.metadata.version(name) for name in names}
  versions['platform'] = hardware.describe()['device']
  return versions | ({'attention': kernel} if kernel else {})
