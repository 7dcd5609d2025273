"""Keys of the section `model` that Transformers have in common.

Shapes: N layers, H heads, K head width, M memory, S = M + T keys.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from txl_jax.models import config
from txl_jax.models.config import rate
from txl_jax.program.settings import AT_TEST_TIME, IN_USE, count, key, size

# The choices of same_length: how many keys a query sees, itself included.
SPANS = {
  'off': 'all that causality allows',
  'M': 'M (PyTorch original)',
  'M+1': 'M + 1 (TensorFlow original)',
}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  """Keys of every Transformer; it has no memory."""

  n_layer: int = size(12, 'N: number of layers.', at_most=1000)
  n_head: int = size(8, 'H: number of attention heads.')
  d_head: int = size(64, 'K: width of each head.')
  d_ff: int = size(2048, 'Width of the feed-forward layers.')
  pre_norm: bool = key(
    False, 'Norms before the sublayers instead of after the residual sum.'
  )
  ln_eps: float = key(1e-5, 'Epsilon of the layer norms.', above=0)
  dropatt: float = rate(0.0, 'Dropout rate of the attention probabilities.')
  dropout_qkv: float = rate(
    0.0,
    'Dropout rate of queries, keys and values, and of what the same '
    'projections make of positions (model.tie_positions).',
  )
  unroll: int = count(
    0,
    'Layers per iteration of the layer loop: all of them is fastest on CPUs '
    'and GPUs, 1 compiles fastest; 0 is all of them on a GPU, 1 elsewhere.',
    may_change=IN_USE,
  )
  remat: str = key(
    'none',
    'What a layer recomputes in the backward pass instead of keeping it.',
    choices={
      'none': 'nothing',
      'scores': 'everything except products with its weights: nothing of size '
      'T x S is kept',
      'layer': 'everything',
    },
    may_change=IN_USE,
  )

  SINUSOIDS: ClassVar[bool] = False  # positions are sinusoids of width D
  mem_len: ClassVar[int] = 0  # M
  memory_init: ClassVar[str] = 'empty'
  norm_queries: ClassVar[bool] = True

  @property
  def span(self) -> int | None:
    """How many keys a query sees, itself included; None is all S."""
    return None

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.SINUSOIDS and self.d_model % 2:
      yield 'd_model', 'even numbers'
    yield from super().problems()


@dataclasses.dataclass(frozen=True)
class Absolute(Config):
  """Keys of a Transformer with absolute positions, added to its inputs."""

  norm_queries: bool = key(  # pyright: ignore
    True,
    'With pre_norm, queries are computed from normed states, as keys and '
    'values are; False: from the states themselves (PyTorch original).',
  )


@dataclasses.dataclass(frozen=True)
class Relative(Config):
  """Keys of a Transformer with relative positions and a memory."""

  mem_len: int = count(  # pyright: ignore
    512,
    'M: number of states in the memory; 0 is a model without memory.',
    may_change=AT_TEST_TIME,
  )
  same_length: str = key(
    'off', 'How many keys a query sees.', choices=SPANS, may_change=AT_TEST_TIME
  )
  clamp_len: int = count(
    0, 'Larger distances count as this one; 0 is off.', may_change=AT_TEST_TIME
  )
  memory_init: str = key(  # pyright: ignore
    'empty',
    'What the memory starts with.',
    choices={
      'empty': 'no visible slots',
      'zeros': 'zero states that are attended to (TensorFlow original, Hugging '
      'Face)',
    },
  )

  attention: str = key(
    'auto',
    'How attention is computed in training.',
    choices={
      'auto': 'a kernel where there is one (`--mode=summary` shows which)',
      'xla': 'plain operations',
      'triton': 'a kernel for NVIDIA GPUs, Ampere or newer',
      'tpu': 'a kernel for TPUs',
    },
    may_change=IN_USE,
  )

  @property
  def span(self) -> int | None:
    M = self.mem_len
    return {'off': None, 'M': max(M, 1), 'M+1': M + 1}[self.same_length]
