"""What the host knows about a run, besides the arrays on its devices."""

import dataclasses
import math
from dataclasses import field
from typing import Any

from txl_jax.training import averaging, optim


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a run has come; in every checkpoint.

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

  def after(self, step: int, nats: float, config: optim.Optim) -> 'Progress':
    """The Progress after a step was evaluated, with its mean nll in nats."""
    new: dict[str, Any] = {'evaluated': step, 'last': nats}
    if nats < self.best:
      new |= {'best_step': step, 'best': nats}
    if config.schedule == 'plateau':
      new['plateau'] = self.plateau.update(nats, config)
    if config.average == 'nt':
      new['trigger'] = self.trigger.update(nats, step, config)
    return dataclasses.replace(self, **new)

  def to_json(self) -> dict[str, Any]:
    """A dict for a JSON file."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> 'Progress':
    """What `to_json` gave, as a Progress."""
    plateau = optim.Plateau(**fields['plateau'])
    trigger = averaging.Trigger(**fields['trigger'])
    return cls(**{**fields, 'plateau': plateau, 'trigger': trigger})
