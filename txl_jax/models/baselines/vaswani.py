"""A Transformer whose inputs have sinusoids added: absolute positions.

The positions are those of Vaswani et al. 2017, as in the ablations of Dai et
al. 2019. A memory, which those never have, is the naive reuse of states that
Section 3.3 of Dai et al. 2019 argues against.

Shapes
  B batch, T segment, M memory, S = M + T, H heads, K head width, D model width.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import config, transformer_xl
from txl_jax.models.config import model_name
from txl_jax.ops import matmul
from txl_jax.program.settings import AT_TEST_TIME, count, key


@dataclasses.dataclass(frozen=True)
class Absolute(config.Transformer):
  """Keys of a Transformer with absolute positions, added to its inputs."""

  norm_queries: bool = key(  # pyright: ignore
    True,
    'With pre_norm, queries are computed from normed states, as keys and '
    'values are; False: from the states themselves (PyTorch original).',
  )


@dataclasses.dataclass(frozen=True)
class Config(Absolute):
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


class Attention(transformer_xl.Attention):
  """Scores by content alone: q_i . k_j / sqrt(K)."""

  def setup_positions(self) -> None:
    pass

  def position_terms(self, positions: Any, bits: Any = ()) -> None:
    del positions, bits

  def scores(self, q: jax.Array, k: jax.Array, terms: Any) -> jax.Array:
    del terms
    return attention.content_scores(q, k, matmul.einsum)

  def attend(self, q, k, v, terms, filled, key):
    c, T, S = self.config, q.shape[1], k.shape[1]
    rate = 0.0 if key is None else c.dropatt
    scores = self.scores(q, k, terms)
    mask = attention.visibility(T, S - T, filled, c.span)
    return attention.attend(
      scores,
      v,
      mask,
      dropout_rate=rate,
      dropout_key=key,
      einsum=matmul.einsum,
    )


class Layer(transformer_xl.Layer):
  """A layer that knows no positions."""

  ATTENTION = Attention


class AbsoluteTransformer(transformer_xl.TransformerXL):
  """A Transformer whose layers know no distances."""

  LAYER = Layer
  ABSOLUTE = True

  def positions(self, S: int, train: bool) -> tuple[None, None]:
    del S, train
    return None, None


class Vaswani(AbsoluteTransformer):
  """Absolute positions, see `models.base` and `Config`.

  Positions count down within a row of n real tokens: token i, before dropout,
  is sqrt(D) embedding_i + sinusoid(n - 1 - i). They are those of the segment
  alone: with a memory, states of several segments have the same position, and
  no score tells them apart by their distance.
  """

  Config = Config

  def inputs(self, tokens, lengths, train):
    c, left = self.config, tokens_left(tokens.shape[1], lengths)
    wide = jnp.promote_types(c.dtype, jnp.float32)
    table = attention.sinusoid(left.reshape(-1).astype(wide), c.d_model)
    table = table.reshape(*left.shape, c.d_model).astype(c.state_dtype)
    return self.embed(tokens, train=train, positions=table)


def tokens_left(T: int, lengths: jax.Array | None) -> jax.Array:
  """How many tokens follow each token in a row of n real ones.

  n - 1 - i for token i, 0 for padding: int32 [T], or [B, T] with lengths.
  """
  n = T if lengths is None else jnp.asarray(lengths)[:, None]
  return jnp.maximum(n - 1 - jnp.arange(T), 0)
