"""A Transformer with memory and learned relative positions.

It follows Shaw et al. 2018 and the ablations of Dai et al. 2019.

Shapes
  B batch, T segment, M memory, S = M + T, H heads, K head width, L rows of the
  position table.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from txl_jax.models import config, initial, transformer_xl
from txl_jax.models.config import model_name
from txl_jax.program.settings import key, size


@dataclasses.dataclass(frozen=True)
class Config(config.Relative):
  """Keys of `Shaw`, the section `model` of a config."""

  name: str = model_name(
    'shaw', 'Transformer with learned relative positions (Shaw et al. 2018)'
  )
  table_len: int = size(
    1024,
    "L: rows of each layer's position table, for distances 0 to L - 1; usually "
    'train.segment_len + model.mem_len. Larger distances share the row of '
    'distance L - 1, so evaluation may use a longer memory.',
  )
  biases: bool = key(
    True,
    'A content bias u and a bias for each distance, as in the code of Dai et '
    'al. 2019. If False, scores are only the terms (a) and (b), as their paper '
    'describes this encoding.',
  )


class Attention(transformer_xl.Attention):
  """Attention with a learned vector and bias for each distance.

  With tables r [L, H, K] and b [L, H], farthest distance first, and u [H, K],

    score(i, j) = ((q_i + u) . k_j + q_i . r_d + b_d) / sqrt(K)

  If model.biases is False, u and b are zero instead of parameters.
  """

  def setup_positions(self) -> None:
    c = self.config
    L = c.table_len
    f32 = jnp.float32
    init = initial.normal(c.init_std)
    shape = c.n_head, c.d_head
    self.table = self.param('table', init, (L, *shape), f32)
    if not c.biases:
      return
    self.distance_bias = self.param('distance_bias', init, (L, c.n_head), f32)
    self.u = self.param('u', init, shape, f32)

  def position_terms(self, positions: Any, bits: Any = ()) -> Any:
    """(rows of the table, int32 [S], and None) -> PositionTerms."""
    del bits
    rows, _ = positions
    c = self.config
    r = jnp.asarray(self.table, c.operand_dtype)[rows]  # [S, H, K]
    zeros = jnp.zeros(r.shape[1:], c.state_dtype)
    if not c.biases:
      return transformer_xl.PositionTerms(r, zeros, zeros)
    b = jnp.asarray(self.distance_bias)[rows]  # [S, H]
    u = jnp.asarray(self.u, zeros.dtype)
    return transformer_xl.PositionTerms(r, u, zeros, b)


class Layer(transformer_xl.Layer):
  """A layer with this attention."""

  ATTENTION = Attention


class Shaw(transformer_xl.TransformerXL):
  """Transformer-XL with learned relative positions, see `Attention`."""

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
    """Table rows of S distances, int32 [S], farthest first; and None.

    Distances are clipped at min(L, clamp_len) - 1, or L - 1 without clamp_len.
    """
    del train
    L, clamp_len = self.config.table_len, self.config.clamp_len
    used = min(L, clamp_len or L)
    d = jnp.minimum(jnp.arange(S - 1, -1, -1), used - 1)
    return L - 1 - d, None
