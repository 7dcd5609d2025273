"""Attention maps, score terms and hidden states of a Transformer's layers.

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

# Collections that a layer can sow: attention probabilities, the terms of the
# scores, the layer's output.
MAPS, TERMS, OUTPUTS = 'maps', 'terms', 'outputs'


def show(module: nn.Module, kind: str, make: Callable[[], jax.Array]) -> None:
  """Sows `make()` in the collection `kind` if the caller made it mutable."""
  if module.is_mutable_collection(kind) and not module.is_initializing():
    module.sow(kind, 'shown', make())


def score_terms(
  q: jax.Array, k: jax.Array, terms: Any, mask: jax.Array
) -> jax.Array:
  """The four terms of each attention score (Dai et al. 2019, Section 3.3).

  (a) q_i . k_j, (b) q_i . r_d, (c) u . k_j and (d) v . r_d, each / sqrt(K); a
  bias b_d is added to (d). Their sum is the score. The arguments are those of
  `attention.relative_scores`; `terms` is its (r, u, v_bias, b), or None for a
  model with no relative positions, whose (b) to (d) are 0.

  Returns float32 or wider [4, B, H, T, S], NaN where the mask, bool
  [B or 1, T, S], is False.
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
  """Sows MAPS and TERMS of attention; mask() is bool [B or 1, T, S]."""

  def maps():
    return attention.probabilities(module.scores(q, k, terms), mask())

  show(module, MAPS, maps)
  show(module, TERMS, lambda: score_terms(q, k, terms, mask()))


# Methods of `transformer_xl.TransformerXL`, which has `forward`.


def attention_maps(
  self: Any,
  tokens: jax.Array,
  memory: Any,
  *,
  lengths: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
  """Attention probabilities of every layer, and the new memory.

  float32 [N, B, H, T, S], without dropout; the first M of the S keys are the
  memory, oldest first.
  """
  _, memory, maps = self.forward(tokens, memory, lengths, False, MAPS)
  return maps, memory


def attention_terms(
  self: Any,
  tokens: jax.Array,
  memory: Any,
  *,
  lengths: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
  """The `score_terms` of every layer, and the new memory.

  float32 [N, 4, B, H, T, S]; see `attention_maps`.
  """
  _, memory, terms = self.forward(tokens, memory, lengths, False, TERMS)
  return terms, memory
