"""What the layers of a Transformer show on request.

Shapes
  B batch, T segment, M memory, S = M + T keys, N layers, H heads, D model
  width.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base

# Their attention, the terms of its scores, their output.
MAPS, TERMS, OUTPUTS = 'maps', 'terms', 'outputs'


def show(module: nn.Module, kind: str, make: Callable[[], jax.Array]) -> None:
  """Sows the result of `make`, if the caller has made `kind` mutable."""
  if module.is_mutable_collection(kind) and not module.is_initializing():
    module.sow(kind, 'shown', make())


def score_terms(
  q: jax.Array, k: jax.Array, terms: Any, mask: jax.Array
) -> jax.Array:
  """The terms whose sum is the score (Dai et al. 2019, Section 3.3).

  (a) q_i . k_j, (b) q_i . r_d, (c) u . k_j and (d) v . r_d, each / sqrt(K); a
  bias b_d belongs to (d). float32 or wider [4, B, H, T, S], NaN where a query
  does not see the key, by mask, bool [B or 1, T, S]. Arguments are as for
  `attention.relative_scores`, of which the terms are r, u, v_bias and b; where
  they are None, (a) is the only term and the others are 0.
  """
  a = attention.content_scores(q, k)
  others = [jnp.zeros_like(a)] * 3
  if terms is not None:
    r, u, v_bias, b = terms
    none, no_q, no_k = jnp.zeros_like(u), jnp.zeros_like(q), jnp.zeros_like(k)
    no_r = jnp.zeros_like(r)
    others = [
      attention.relative_scores(q, no_k, r, none, none),
      attention.relative_scores(no_q, k, no_r, u, none),
      attention.relative_scores(no_q, no_k, r, none, v_bias, b),
    ]
  return jnp.where(mask[:, None], jnp.stack([a, *others]), jnp.nan)


def show_attention(
  module: Any, q: jax.Array, k: jax.Array, terms: Any, mask: Callable
) -> None:
  """MAPS and TERMS of an attention module, given what it computed."""

  def maps():
    return attention.probabilities(module.scores(q, k, terms), mask())

  show(module, MAPS, maps)
  show(module, TERMS, lambda: score_terms(q, k, terms, mask()))


class Inspected(base.LanguageModel):
  """A model whose `forward` can show what its layers compute.

  It defines `inputs` and `forward`, see `transformer_xl.TransformerXL`.
  """

  ATTENDS = True

  def states(self, tokens, memory, *, lengths=None, train=False):
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    h, memory, _ = self.forward(tokens, memory, lengths, train)
    return h, memory

  def through(self, tokens, memory, lengths, train):
    first, arguments = self.inputs(tokens, lengths, train), (lengths, train)
    _, memory, outputs = self.forward(tokens, memory, *arguments, OUTPUTS)
    return (first, *outputs), memory

  def attention_maps(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The probabilities that the layers give to keys, and the new memory.

    They are those of `states` without dropout, float32 [N, B, H, T, S]; the
    first M of the S keys are the slots of the memory, the newest one last.
    """
    _, memory, maps = self.forward(tokens, memory, lengths, False, MAPS)
    return maps, memory

  def attention_terms(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The terms of the scores behind `attention_maps`, and the new memory.

    They are the `score_terms` of each layer: float32 [N, 4, B, H, T, S].
    """
    _, memory, terms = self.forward(tokens, memory, lengths, False, TERMS)
    return terms, memory
