"""What recurrent language models have in common.

Shapes: B batch, T segment, D model width, H width of a layer.
"""

import dataclasses

import jax

from txl_jax.models import base, config
from txl_jax.models.config import rate
from txl_jax.parallel.placement import OUTPUTS
from txl_jax.program.settings import size


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  """Keys of every recurrent model."""

  n_layer: int = size(2, 'N: number of layers.', at_most=1000)
  d_hidden: int = size(
    1024, 'Width of all layers except the last, whose width is d_model.'
  )
  weight_drop: float = rate(
    0.0,
    'Dropout rate of the weights that the states of a layer pass through from '
    'position to position: one mask per segment (DropConnect, Wan et al. '
    '2013).',
  )


def widths(config: Config) -> list[int]:
  """H of each layer."""
  return [config.d_hidden] * (config.n_layer - 1) + [config.d_model]


class Recurrent(base.LanguageModel):
  """A stack of recurrent layers, with dropout between them.

  A model makes `self.layers` in its setup: modules (x [B, T, any], state,
  lengths, train) -> [B, T, H], state. Its memory is the tuple of their states,
  arrays whose first axis is the batch. No gradient flows through it from one
  segment to the one before (truncated backpropagation through time).
  """

  SHARDING = (
    *base.LanguageModel.SHARDING,
    (r'layers_\d+/bias', (None, OUTPUTS)),  # [gates, H]
  )
  NOT_DECAYED = (r'layers_\d+/bias',)

  def through(self, tokens, memory, lengths, train):
    """The embeddings and the output of each layer, and the new memory."""
    c, new = self.config, []
    x = self.embed(tokens, train=train)
    every = [x]
    for n, (layer, state) in enumerate(zip(self.layers, memory, strict=True)):
      if n:
        x = self.drop(x, c.dropout, train=train, locked=c.locked_dropout)
      x, state = layer(x, state, lengths, train)
      new.append(state)
      every.append(x)
    return tuple(every), jax.lax.stop_gradient(tuple(new))
