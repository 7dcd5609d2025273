"""Transformers with absolute positions: base class and sinusoidal model.

`Vaswani` adds the sinusoids of Vaswani et al. 2017 to the embeddings, as in the
ablations of Dai et al. 2019, which have no memory. With a memory, it is the
naive reuse of states that Section 3.3 of that paper argues against.

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
  """Keys of Transformers that add absolute positions to their inputs."""

  norm_queries: bool = key(  # pyright: ignore
    True,
    'With pre_norm, queries come from normalised states, like keys and values; '
    'if False, only keys and values do (PyTorch original).',
  )


@dataclasses.dataclass(frozen=True)
class Config(Absolute):
  """Keys of `Vaswani`, the section `model` of a config."""

  SINUSOIDS = True

  name: str = model_name(
    'vaswani', 'Transformer with absolute sinusoids (Vaswani et al. 2017)'
  )
  mem_len: int = count(  # pyright: ignore
    0,
    'M: length of the memory in tokens; 0 means no memory, as in the paper. '
    'States in memory keep the positions of their own segments.',
    may_change=AT_TEST_TIME,
  )


class Attention(transformer_xl.Attention):
  """Attention without positions: the scores are q_i . k_j / sqrt(K)."""

  def setup_positions(self) -> None:
    pass

  def position_terms(self, positions: Any, bits: Any = ()) -> None:
    del positions, bits

  def scores(self, q: jax.Array, k: jax.Array, terms: Any) -> jax.Array:
    del terms
    return attention.content_scores(q, k, matmul.einsum)

  def attend(
    self, q: Any, k: Any, v: Any, terms: Any, filled: Any, bits: Any
  ) -> jax.Array:
    c, T, S = self.config, q.shape[1], k.shape[1]
    return attention.attend(
      self.scores(q, k, terms),
      v,
      attention.visibility(T, S - T, filled, c.span),
      dropout_rate=0.0 if bits is None else c.dropatt,
      dropout_key=bits,
      einsum=matmul.einsum,
    )


class Layer(transformer_xl.Layer):
  """A layer whose attention has no positions."""

  ATTENTION = Attention


class AbsoluteTransformer(transformer_xl.TransformerXL):
  """A Transformer with positions in the inputs, none in the scores."""

  LAYER = Layer
  ABSOLUTE = True

  def positions(self, S: int, train: bool) -> tuple[None, None]:
    del S, train
    return None, None


class Vaswani(AbsoluteTransformer):
  """The Transformer with sinusoids added to its embeddings.

  Positions count down: the input for token i of n real tokens, before dropout,
  is sqrt(D) embedding_i + sinusoid(n - 1 - i). They are counted within each
  segment, so with a memory, tokens of different segments have equal positions,
  and scores cannot tell their distances apart.
  """

  Config = Config

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    c = self.config
    positions = tokens_left(tokens.shape[1], lengths)
    wide = attention.widened(c.dtype)
    table = attention.sinusoid(positions.reshape(-1).astype(wide), c.d_model)
    table = table.reshape(*positions.shape, c.d_model).astype(c.state_dtype)
    return self.vocabulary.embed(tokens, train=train, positions=table)


def tokens_left(T: int, lengths: jax.Array | None) -> jax.Array:
  """The number of real tokens after each token: int32 [1, T], or [B, T].

  It is n - 1 - i for token i of n real tokens, and 0 for padding.
  """
  n = T if lengths is None else jnp.asarray(lengths)[:, None]
  return jnp.maximum(n - 1 - jnp.arange(T)[None], 0)
