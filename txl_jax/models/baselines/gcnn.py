"""Gated convolutional network (Dauphin et al. 2017, arXiv 1612.08083).

Shapes
  B batch, T segment, D width of embeddings; a convolution has kernel k, input
  width C and output width F.

With X the input, of which a position sees itself and the k - 1 before it,

  h = (X * W + b) x sigmoid(X * V + c)

Blocks of such convolutions add their output to their input. A text is preceded
by zeros: with a memory that starts as zeros and holds the last k - 1 inputs of
each convolution, segments of any length compute the same function as one long
segment. There are no norms: weights are normalised instead.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, config
from txl_jax.parallel.placement import OUTPUTS
from txl_jax.program.settings import key, size

# The output of a layer for each choice of gate: from a = X * W + b alone, or
# with g = X * V + c.
PLAIN = {'relu': jax.nn.relu, 'tanh': jnp.tanh, 'linear': lambda a: a}
GATED = {
  'glu': lambda a, g: a * jax.nn.sigmoid(g),
  'gtu': lambda a, g: jnp.tanh(a) * jax.nn.sigmoid(g),
  'bilinear': lambda a, g: a * g,
}

_SIZE = '[1-9][0-9]{0,5}'
_BLOCK = r'\[(S,S(?: S,S)*)\](?:\*(S))?'.replace('S', _SIZE)


class Shape(NamedTuple):
  """The sizes of a convolution."""

  kernel: int  # k
  width: int  # F


def parse(text: str) -> list[list[Shape]]:
  """The convolutions of each block; ValueError, which says what is allowed."""
  if not re.fullmatch(f'{_BLOCK}( {_BLOCK})*', text):
    raise ValueError(
      'blocks like [5,512] or [1,128 5,128 1,512]*3, with a space between: '
      'kernel,width of their convolutions, and how often; numbers from 1 to '
      '999999'
    )
  blocks = []
  for block, times in re.findall(_BLOCK, text):
    shapes = [Shape(*map(int, pair.split(','))) for pair in block.split(' ')]
    blocks += [shapes] * int(times or 1)
  return blocks


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  """The section `model` of a config for `GCNN`."""

  name: str = config.model_name(
    'gcnn', 'Gated convolutional network (Dauphin et al. 2017)'
  )
  d_model: int = size(
    512,
    'D: width of the embeddings, the input of the first block.',
    at_most=10**6,
  )
  tie_weights: bool = key(
    True,
    'The output weights are the embedding table; the last block must be as '
    'wide. If False, the two share nothing: embeddings are one table, whatever '
    'the cutoffs, and the head of the softmax is as wide as the last block.',
  )
  blocks: str = key(
    '[4,512]*8',
    'kernel,width of the convolutions in each residual block, and how often: '
    "'[5,512] [1,128 5,128 1,512]*3' is one block, then three others.",
  )
  gate: str = key(
    'glu',
    'What a layer computes from a = X * W + b and g = X * V + c, where X * W '
    'is a convolution; choices that use a alone have no V.',
    choices={
      'glu': 'a sigmoid(g), the gated linear unit',
      'gtu': 'tanh(a) sigmoid(g), the gated tanh unit',
      'bilinear': 'a g',
      'relu': 'max(a, 0)',
      'tanh': 'tanh(a)',
      'linear': 'a',
    },
  )
  weight_norm: bool = key(
    True,
    'Weights are g v / |v| for each output feature (Salimans and Kingma 2016).',
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    try:
      last = parse(self.blocks)[-1][-1].width
    except ValueError as e:
      yield 'blocks', str(e)
      return
    if self.tie_weights and last != self.d_model:
      yield 'tie_weights', f'False, for the last of model.blocks is {last} wide'
    for name, none in ('d_embed', 0), ('tie_projs', ()):
      if not self.tie_weights and getattr(self, name) != none:
        yield name, f'{none} without model.tie_weights'
    yield from super().problems()

  @property
  def d_softmax(self) -> int:
    return 0 if self.tie_weights else parse(self.blocks)[-1][-1].width


class Convolution(nn.Module):
  """X * W + b, of kernel k and output width F.

  Initial weights have variance 2 / k C (Kaiming He et al. 2015); the scales g
  leave them as they are.
  """

  config: Config
  shape: Shape
  use_bias: bool = True

  @nn.compact
  def __call__(self, x):
    """[B, k - 1 + T, C] -> [B, T, F]."""
    c, (k, F) = self.config, self.shape
    init = nn.initializers.variance_scaling(2.0, 'fan_in', 'normal')
    w = self.param('kernel', init, (k, x.shape[-1], F), jnp.float32)
    if c.weight_norm:
      norm = jnp.sqrt(jnp.sum(jnp.square(w), axis=(0, 1)))
      w *= self.param('scale', lambda _: norm) / norm
    y = jax.lax.conv_general_dilated(
      x,
      w.astype(c.state_dtype),
      window_strides=(1,),
      padding='VALID',
      dimension_numbers=('NTC', 'TIO', 'NTC'),
    )
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (F,), jnp.float32)
      y += bias.astype(c.state_dtype)
    return y


class Block(nn.Module):
  """A residual block: its input plus the output of a stack of convolutions.

  Where the widths differ, the input is projected (1 x 1, without bias). Dropout
  follows each convolution: so it reaches the narrow inner layers of a
  bottleneck, memory holds what later positions would have seen in one long
  segment, and the residual path, where every block would drop again, has none.
  """

  config: Config
  shapes: list[Shape]

  @nn.compact
  def __call__(self, x, memory, lengths, train):
    """x [B, T, C] -> [B, T, F], and the new memory.

    Memory is an iterator, whose next items are the last inputs, [B, k - 1, C],
    of each convolution whose k is above 1; the new one is a list. Lengths are
    as in `attention.update_memory`.
    """
    c, y, new = self.config, x, []
    for i, shape in enumerate(self.shapes):
      if shape.kernel > 1:
        past = next(memory)
        new.append(attention.update_memory(past, y, lengths))
        y = jnp.concatenate([past, y], axis=1)
      a = Convolution(c, shape, name=f'w_{i}')(y)
      if c.gate in PLAIN:
        y = PLAIN[c.gate](a)
      else:
        y = GATED[c.gate](a, Convolution(c, shape, name=f'v_{i}')(y))
      locked = c.locked_dropout
      y = base.Dropout()(y, c.dropout, train=train, locked=locked)
    if x.shape[-1] != y.shape[-1]:
      one = Shape(1, y.shape[-1])
      x = Convolution(c, one, use_bias=False, name='shortcut')(x)
    return x + y, new


class GCNN(base.LanguageModel):
  """Gated convolutional network, see `models.base` and `Config`."""

  Config = Config
  SHARDING = (
    *base.LanguageModel.SHARDING,
    (r'(w_\d+|v_\d+|shortcut)/kernel', (None, None, OUTPUTS)),  # [k, C, F]
    (r'(w_\d+|v_\d+|shortcut)/(scale|bias)', (OUTPUTS,)),  # [F]
  )

  def setup(self) -> None:
    super().setup()
    c = self.config
    self.blocks = [Block(c, shapes) for shapes in parse(c.blocks)]

  def init_memory(self, batch_size: int) -> Any:
    """A list of zeros [B, k - 1, C] for each convolution whose k is above 1."""
    c = self.config
    shapes = list(itertools.chain(*parse(c.blocks)))
    widths = [c.d_model, *(shape.width for shape in shapes)]
    return [
      jnp.zeros([batch_size, shape.kernel - 1, C], c.state_dtype)
      for shape, C in zip(shapes, widths)
      if shape.kernel > 1
    ]

  def through(self, tokens, memory, lengths, train):
    """The embeddings and the output of each block, and the new memory."""
    x, old, new = self.embed(tokens, train=train), iter(memory), []
    every = [x]
    for block in self.blocks:
      x, kept = block(x, old, lengths, train)
      new += kept
      every.append(x)
    return tuple(every), new
