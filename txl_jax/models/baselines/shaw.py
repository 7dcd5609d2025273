"""A Transformer with memory and learned relative positions.

It follows Shaw et al. 2018 and the ablations of Dai et al. 2019.

Shapes
  B batch, T segment, M memory, S = M + T, H heads, K head width, L rows of the
  table.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from txl_jax.models import config, initial, transformer_xl
from txl_jax.models.config import model_name
from txl_jax.program.settings import key, size


@dataclasses.dataclass(frozen=True)
class Config(config.Relative):
  """The section `model` of a config for `Shaw`."""

  name: str = model_name(
    'shaw', 'Transformer with learned relative positions (Shaw et al. 2018)'
  )
  table_len: int = size(
    1024,
    'L: distances, from 0, that have a row in the position table of each '
    'layer: the train.segment_len + model.mem_len of training. Larger ones '
    'count as the largest of them, so the memory may be longer later.',
  )
  biases: bool = key(
    True,
    'A bias u of the content and a bias of each distance, as in the code that '
    'Dai et al. 2019 published; without them, scores are what their text says '
    'of this encoding: the terms (a) and (b).',
  )


class Attention(transformer_xl.Attention):
  """Scores by content and by distance, with a table of distances.

  With tables r [L, H, K] and b [L, H], farthest distance first, and u [H, K],

    score(i, j) = ((q_i + u) . k_j + q_i . r_d + b_d) / sqrt(K)

  Without `biases`, u and b are zero, not parameters.
  """

  def setup_positions(self) -> None:
    c = self.config
    init, shape = initial.normal(c.init_std), (c.n_head, c.d_head)
    L, wide = c.table_len, jnp.float32
    self.table = self.param('table', init, (L, *shape), wide)
    if not c.biases:
      return
    self.distance_bias = self.param('distance_bias', init, (L, c.n_head), wide)
    self.u = self.param('u', init, shape, wide)

  def position_terms(self, positions: Any, bits: Any = ()) -> Any:
    """PositionTerms of the rows of the table, int32 [S]."""
    del bits
    (rows, _), c = positions, self.config
    r = jnp.asarray(self.table, c.operand_dtype)[rows]  # [S, H, K]
    zeros = jnp.zeros(r.shape[1:], c.state_dtype)
    if not c.biases:
      return transformer_xl.PositionTerms(r, zeros, zeros)
    b = jnp.asarray(self.distance_bias)[rows]  # [S, H]
    u = jnp.asarray(self.u, zeros.dtype)
    return transformer_xl.PositionTerms(r, u, zeros, b)


class Layer(transformer_xl.Layer):
  """A layer with tables of its own."""

  ATTENTION = Attention


class Shaw(transformer_xl.TransformerXL):
  """Learned relative positions, see `models.base` and `Config`."""

  Config = Config
  LAYER = Layer
  SHARDING = (
    *transformer_xl.TransformerXL.SHARDING,
    (r'attention/table', (None, 'tensor', None)),  # [L, H, K]
    (r'attention/distance_bias', (None, 'tensor')),  # [L, H]
    (r'attention/u', ('tensor', None)),  # [H, K]
  )
  NOT_DECAYED = (r'attention/(u|distance_bias)',)

  def positions(self, S: int, train: bool) -> tuple[Any, Any]:
    """The row of the table for each of S distances, int32 [S], and None.

    With clamp_len only the last rows are used, the first of them for all
    distances beyond.
    """
    del train
    c = self.config
    used = min(c.table_len, c.clamp_len or c.table_len)
    d = jnp.minimum(jnp.arange(S - 1, -1, -1), used - 1)
    return c.table_len - 1 - d, None
