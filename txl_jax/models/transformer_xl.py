"""Transformer-XL (Dai et al. 2019).

Shapes
  B batch, T segment, M memory, S = M + T, H heads, K head width, D model width.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import inference, initial, layers, transformer
from txl_jax.models.config import model_name, rate
from txl_jax.models.transformer_config import Relative
from txl_jax.program.settings import IN_USE, key


@dataclasses.dataclass(frozen=True)
class Config(Relative):
  """The section `model` of a config for `TransformerXL`."""

  SINUSOIDS = True

  name: str = model_name('transformer_xl', 'Transformer-XL (Dai et al. 2019)')
  untie_biases: bool = key(
    False, 'u and v for each layer instead of one pair for all.'
  )
  dropout_table: float = rate(
    -1.0,
    'Dropout rate of the position table; -1 is model.dropout.',
    at_least=-1,
  )
  locked_table: bool = key(
    False,
    'Dropout of the position table has one mask for all distances.',
    may_change=IN_USE,
  )
  tie_positions: bool = key(
    False,
    'Words and distances share projections, as in the PyTorch code for Penn '
    'Treebank: r_d = W_k sinusoid(d), u = v = W_q sinusoid(0). There are then '
    'no parameters W_r, u and v.',
  )

  @property
  def shares_biases(self) -> bool:
    """Whether all layers have the same parameters u and v."""
    return not (self.untie_biases or self.tie_positions)

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.tie_positions and self.untie_biases:
      yield 'untie_biases', 'False with model.tie_positions'
    yield from super().problems()


class Biases(nn.Module):
  """The global content and position biases u and v, each [H, K]."""

  config: Any

  @nn.compact
  def __call__(self):
    """Returns (u, v)."""
    c = self.config
    init, shape = initial.normal(c.init_std), (c.n_head, c.d_head)
    u = self.param('u', init, shape, jnp.float32)
    v = self.param('v', init, shape, jnp.float32)
    return u.astype(c.state_dtype), v.astype(c.state_dtype)


class RelativeAttention(layers.Attention):
  """Scores by content and by distance, see `attention.relative_scores`."""

  def setup(self) -> None:
    super().setup()
    if not self.config.tie_positions:
      self.r = self.to_heads()

  def distances(self, positions: Any, words: Any = ()) -> layers.Distances:
    """See `layers.Attention`; positions are (table [S, D], (u, v))."""
    (R, biases), c = positions, self.config
    if not c.tie_positions:
      return layers.Distances(self.r(R).astype(c.operand_dtype), *biases)
    u, r = self.q(R[-1]), self.k(R[None])[0].astype(c.operand_dtype)
    if len(words):
      u = attention.dropout(u, c.dropout_qkv, words[0])
      shared = (0,) if c.locked_dropout else ()
      r = attention.dropout(r, c.dropout_qkv, words[1], shared)
    return layers.Distances(r, u, u)


class Layer(transformer.Layer):
  """A layer with its own biases if they are untied."""

  ATTENTION = RelativeAttention

  def setup(self) -> None:
    super().setup()
    if self.config.untie_biases:
      self.biases = Biases(self.config)

  def positions(self, shared: Any) -> Any:
    R, biases = shared
    return R, self.biases() if self.config.untie_biases else biases


class TransformerXL(inference.WithRing):
  """Transformer-XL, see `models.base` and `Config`."""

  Config = Config
  LAYER = Layer
  SHARDING = (
    *inference.WithRing.SHARDING,
    (r'attention/r/kernel', ('fsdp', 'tensor', None)),  # [D, H, K]
    (r'biases/[uv]', ('tensor', None)),  # [H, K]
  )
  NOT_DECAYED = (r'biases/[uv]',)

  def setup(self) -> None:
    super().setup()
    if self.config.shares_biases:
      self.biases = Biases(self.config)

  def positions(self, S: int, train: bool) -> Any:
    """The table [S, D], and the (u, v) that all layers share, or None."""
    c = self.config
    # The table is computed in float32 whatever the compute dtype: bfloat16 has
    # too few digits for the angles of large distances.
    wide = jnp.promote_types(c.dtype, jnp.float32)
    d = attention.distances(S, c.clamp_len, wide)
    R = attention.sinusoid(d, c.d_model).astype(c.state_dtype)
    rate = c.dropout if c.dropout_table < 0 else c.dropout_table
    R = self.drop(R[None], rate, train=train, locked=c.locked_table)[0]
    return R, self.biases() if c.shares_biases else None
