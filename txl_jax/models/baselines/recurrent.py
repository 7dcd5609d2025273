"""Base class and keys of recurrent language models.

Shapes: B batch, T segment, D model width, H width of a layer.
"""

import dataclasses

import jax

from txl_jax.models import base, config, inspection
from txl_jax.models.config import rate
from txl_jax.parallel.placement import OUTPUTS
from txl_jax.program.settings import size


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  """Keys of all recurrent models."""

  n_layer: int = size(2, 'N: number of layers.', at_most=1000)
  d_hidden: int = size(
    1024, 'Width of all layers except the last, whose width is d_model.'
  )
  weight_drop: float = rate(
    0.0,
    'Dropout rate of the recurrent weights (qrnn: of the convolution weights), '
    'one mask per segment (DropConnect, Wan et al. 2013).',
  )


def widths(config: Config) -> list[int]:
  """The width H of each layer."""
  return [config.d_hidden] * (config.n_layer - 1) + [config.d_model]


class Recurrent(base.LanguageModel):
  """A stack of recurrent layers, with dropout between them.

  Subclasses create `self.layers` in `setup`: modules with a call (x [B, T, J],
  state, lengths, train) -> [B, T, H], state. The memory is the tuple of their
  states, arrays [B, ...]. No gradient flows through it to earlier segments
  (truncated backpropagation through time).
  """

  SHARDING = (
    *base.LanguageModel.SHARDING,
    (r'layers_\d+/bias', (None, OUTPUTS)),  # [gates, H]
  )
  NOT_DECAYED = (r'layers_\d+/bias',)

  def states(self, tokens, memory, *, lengths=None, train=False):
    """See `base.LanguageModel.states`."""
    c = self.config
    states = []
    x = self.vocabulary.embed(tokens, train=train)
    for n, (layer, state) in enumerate(zip(self.layers, memory, strict=True)):
      inspection.show(self, inspection.STATES, lambda x=x: x)
      if n:
        x = self.drop(x, c.dropout, train=train, locked=c.locked_dropout)
      x, state = layer(x, state, lengths, train)
      states.append(state)
    return x, jax.lax.stop_gradient(tuple(states))
