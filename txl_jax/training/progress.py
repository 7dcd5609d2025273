"""What the host knows about a run, besides the arrays on its devices."""

import dataclasses
import math

from txl_jax.training import averaging, optim


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a run has come; in every checkpoint.

  Attributes:
    evaluated: last step that was evaluated.
    best_step: the evaluated step with the lowest nll, -1 before the first.
    best: its mean nll in nats.
    last: mean nll of the last evaluation.
    plateau: see `optim.Plateau`.
    trigger: see `averaging.Trigger`.
    rollbacks: how often the run went back to a checkpoint.
    passed_over: batches that it has left out by that; step s reads batch
      s + passed_over.
  """

  evaluated: int = 0
  best_step: int = -1
  best: float = math.inf
  last: float = math.inf
  plateau: optim.Plateau = dataclasses.field(default_factory=optim.Plateau)
  trigger: averaging.Trigger = dataclasses.field(
    default_factory=averaging.Trigger
  )
  rollbacks: int = 0
  passed_over: int = 0

  def after(self, step: int, nats: float, config: optim.Optim) -> 'Progress':
    """The Progress after an evaluation.

    Args:
      step: the step that was evaluated.
      nats: its mean nll.
      config: the section `optim` of a config.
    """
    plateau, trigger = self.plateau, self.trigger
    if config.schedule == 'plateau':
      plateau = plateau.update(nats, config)
    if config.average == 'nt':
      trigger = trigger.update(nats, step, config)
    better = nats < self.best
    return dataclasses.replace(
      self,
      evaluated=step,
      best_step=step if better else self.best_step,
      best=nats if better else self.best,
      last=nats,
      plateau=plateau,
      trigger=trigger,
    )

  def to_json(self):
    """A dict for a JSON file."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, fields):
    """What `to_json` gave, as a Progress."""
    parts = {
      'plateau': optim.Plateau(**fields['plateau']),
      'trigger': averaging.Trigger(**fields['trigger']),
    }
    return cls(**{**fields, **parts})
