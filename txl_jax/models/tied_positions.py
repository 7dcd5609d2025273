"""Transformer-XL whose queries and keys also project the positions.

The model of model.tie_positions, from the authors' code for Penn Treebank
(issue 109 of the original): r_d = W_k sinusoid(d), u = v = W_q sinusoid(0).
There are no parameters W_r, u and v.
"""

from typing import Any

import jax

from txl_jax import attention
from txl_jax.models import transformer_xl
from txl_jax.models.transformer_xl import NO_DROPOUT, DropoutBits, PositionTerms


class Attention(transformer_xl.Attention):
  """Attention with these positions; dropout_qkv acts on them, too."""

  def setup_positions(self) -> None:
    """Creates nothing."""

  def position_terms(
    self, positions: Any, bits: DropoutBits = NO_DROPOUT
  ) -> PositionTerms:
    """(R [S, D], None) -> PositionTerms."""
    R, _ = positions
    c = self.config
    u, r = self.q(R[-1]), self.k(R[None]).squeeze(0).astype(c.operand_dtype)
    if bits.u is not None:
      u = attention.dropout(u, c.dropout_qkv, bits.u)
      shared = (0,) if c.locked_dropout else ()
      r = attention.dropout(r, c.dropout_qkv, bits.r, shared)
    return PositionTerms(r, u, u)


class Layer(transformer_xl.Layer):
  """A layer with this attention."""

  ATTENTION = Attention


class TiedPositions(transformer_xl.TransformerXL):
  """The language model; its Config is that of Transformer-XL."""

  LAYER = Layer

  def positions(self, S: int, train: bool) -> tuple[jax.Array, None]:
    """The table R [S, D], and None."""
    return self.table(S, train), None
