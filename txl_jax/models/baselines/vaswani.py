"""A Transformer whose inputs have sinusoids added: absolute positions.

The positions are those of Vaswani et al. 2017, as in the ablations of Dai et
al. 2019. A memory, which those never have, is the naive reuse of states that
Section 3.3 of Dai et al. 2019 argues against.

Shapes: B batch, T segment, M memory, D model width.
"""

import dataclasses

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import transformer, transformer_config
from txl_jax.models.config import model_name
from txl_jax.program.settings import AT_TEST_TIME, count


@dataclasses.dataclass(frozen=True)
class Config(transformer_config.Absolute):
  """The section `model` of a config for `Vaswani`."""

  SINUSOIDS = True

  name: str = model_name(
    'vaswani', 'Transformer with absolute sinusoids (Vaswani et al. 2017)'
  )
  mem_len: int = count(  # pyright: ignore
    0,
    'M: number of states in the memory, which keep the positions of their own '
    'segment; 0 is a model without memory, as in the paper.',
    may_change=AT_TEST_TIME,
  )


class Vaswani(transformer.Transformer):
  """Absolute positions, see `models.base` and `Config`.

  Positions count down within a row of n real tokens: token i, before dropout,
  is sqrt(D) embedding_i + sinusoid(n - 1 - i). They are those of the segment
  alone: with a memory, states of several segments have the same position, and
  no score tells them apart by their distance.
  """

  Config = Config
  ABSOLUTE = True

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    c, left = self.config, transformer.tokens_left(tokens.shape[1], lengths)
    wide = jnp.promote_types(c.dtype, jnp.float32)
    table = attention.sinusoid(left.reshape(-1).astype(wide), c.d_model)
    table = table.reshape(*left.shape, c.d_model).astype(c.state_dtype)
    return self.embed(tokens, train=train, positions=table)
