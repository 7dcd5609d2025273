"""Gated convolutional network (Dauphin et al. 2017, arXiv 1612.08083).

Shapes
  B batch, T segment, D width of embeddings; a convolution has kernel size k,
  input width C and output width F.

A layer computes, from its input X with causal convolutions * and the
elementwise product ⊙,

  h = (X * W + b) ⊙ sigmoid(X * V + c)

and residual blocks add their input to the output of several layers. The memory
holds the last k - 1 inputs of each convolution, zeros before the first token,
so the results do not depend on how a text is divided into segments. There are
no layer norms; weights are normalised instead.
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
from txl_jax.models import base, config, embedding, inspection
from txl_jax.parallel.placement import OUTPUTS
from txl_jax.program.settings import key, size

# For each choice of gate, the output of a layer: a function of a = X * W + b
# alone, or also of g = X * V + c.
PLAIN = {'relu': jax.nn.relu, 'tanh': jnp.tanh, 'linear': lambda a: a}
GATED = {
  'glu': lambda a, g: a * jax.nn.sigmoid(g),
  'gtu': lambda a, g: jnp.tanh(a) * jax.nn.sigmoid(g),
  'bilinear': lambda a, g: a * g,
}

_SIZE = '[1-9][0-9]{0,5}'
_BLOCK = r'\[(S,S(?: S,S)*)\](?:\*(S))?'.replace('S', _SIZE)


class Shape(NamedTuple):
  """Shape of a convolution."""

  kernel: int  # k
  width: int  # F


def parse(text: str) -> list[list[Shape]]:
  """Parses `blocks`: the shapes in each block. ValueError for wrong syntax."""
  if not re.fullmatch(f'{_BLOCK}( {_BLOCK})*', text):
    raise ValueError(
      'blocks like [5,512] or [1,128 5,128 1,512]*3, separated by a space: '
      'kernel,width of each convolution, then *repeats; numbers from 1 to '
      '999999'
    )
  blocks = []
  for block, repeats in re.findall(_BLOCK, text):
    shapes = [Shape(*map(int, pair.split(','))) for pair in block.split(' ')]
    blocks += [shapes] * int(repeats or 1)
  return blocks


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  """Keys of `GCNN`, the section `model` of a config."""

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
    'The output weights are the embedding table, so the last block must have '
    'width d_model. If False, they share nothing: all bins have one embedding '
    'table, and the softmax head has the width of the last block.',
  )
  blocks: str = key(
    '[4,512]*8',
    'Residual blocks: kernel,width of each convolution in brackets, *repeats: '
    "'[5,512] [1,128 5,128 1,512]*3' is one block, then three equal ones.",
  )
  gate: str = key(
    'glu',
    'Output of a layer, from the convolutions a = X * W + b and g = X * V + c; '
    'choices without g have no V and c.',
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
    """Keys with conflicting values, see `settings`."""
    try:
      width = parse(self.blocks)[-1][-1].width
    except ValueError as e:
      yield 'blocks', str(e)
      return
    if self.tie_weights and width != self.d_model:
      why = f'the last block has width {width}, not model.d_model'
      yield 'tie_weights', f'False, because {why}'
    for name, off in ('d_embed', 0), ('tie_projs', ()):
      if not self.tie_weights and getattr(self, name) != off:
        yield name, f'{off} without model.tie_weights'
    yield from super().problems()

  @property
  def d_softmax(self) -> int:
    return 0 if self.tie_weights else parse(self.blocks)[-1][-1].width


class Convolution(nn.Module):
  """X * W + b, with kernel size k and output width F.

  Weights are initialised with variance 2 / (k C) (Kaiming He et al. 2015). With
  weight_norm they are `scale` v / |v|, and the initial scale is |v|.
  """

  config: Config
  shape: Shape
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, k - 1 + T, C] -> [B, T, F]."""
    c, (k, F) = self.config, self.shape
    init = nn.initializers.variance_scaling(2.0, 'fan_in', 'normal')
    w = self.param('kernel', init, (k, x.shape[-1], F), jnp.float32)
    if c.weight_norm:
      norm = jnp.sqrt(jnp.sum(jnp.square(w), axis=(0, 1)))
      w *= (self.param('scale', lambda _: norm) / norm)[None, None]
    y = jax.lax.conv_general_dilated(
      x,
      w.astype(c.state_dtype),
      window_strides=(1,),
      padding='VALID',
      dimension_numbers=('NTC', 'TIO', 'NTC'),
    )
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (F,), jnp.float32)
      y += bias.astype(c.state_dtype)[None, None]
    return y


class Block(nn.Module):
  """A residual block: its input plus the output of a stack of layers.

  If their widths differ, a 1 x 1 convolution without bias projects the input.
  Dropout follows each layer, also within a bottleneck, but not the residual
  sum: each block would drop it again. Memory holds inputs after dropout.
  """

  config: Config
  shapes: list[Shape]

  @nn.compact
  def __call__(self, x, memory, lengths, train):
    """x [B, T, C] -> [B, T, F], and the new memory.

    `memory` is an iterator over the last inputs, [B, k - 1, C], of convolutions
    with k > 1; the block consumes its own. The new memory is a list. For
    `lengths` see `attention.update_memory`.
    """
    c = self.config
    y = x
    new_memory = []
    for i, shape in enumerate(self.shapes):
      if shape.kernel > 1:
        past = next(memory)
        new_memory.append(attention.update_memory(past, y, lengths))
        y = jnp.concatenate([past, y], axis=1)
      a = Convolution(c, shape, name=f'w_{i}')(y)
      if c.gate in PLAIN:
        y = PLAIN[c.gate](a)
      else:
        y = GATED[c.gate](a, Convolution(c, shape, name=f'v_{i}')(y))
      locked = c.locked_dropout
      y = embedding.Dropout()(y, c.dropout, train=train, locked=locked)
    if x.shape[-1] != y.shape[-1]:
      shape = Shape(kernel=1, width=y.shape[-1])
      x = Convolution(c, shape, use_bias=False, name='shortcut')(x)
    return x + y, new_memory


class GCNN(base.LanguageModel):
  """Gated convolutional language model, described at the top of this file."""

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
    """A list of zeros [B, k - 1, C], one for each convolution with k > 1."""
    c = self.config
    shapes = list(itertools.chain(*parse(c.blocks)))
    widths = [c.d_model, *(shape.width for shape in shapes)]
    return [
      jnp.zeros([batch_size, shape.kernel - 1, C], c.state_dtype)
      for shape, C in zip(shapes, widths)
      if shape.kernel > 1
    ]

  def states(self, tokens, memory, *, lengths=None, train=False):
    """See `base.LanguageModel.states`; here layers are blocks."""
    x = self.vocabulary.embed(tokens, train=train)
    past = iter(memory)
    new_memory = []
    for block in self.blocks:
      inspection.show(self, inspection.STATES, lambda x=x: x)
      x, block_memory = block(x, past, lengths, train)
      new_memory += block_memory
    return x, new_memory
