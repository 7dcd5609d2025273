"""Attention maps, score terms and hidden states of a model's layers.

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

# Collections in which layers show something if the caller makes them mutable.
STATES = 'states'  # the embeddings and the outputs of layers
MAPS = 'maps'  # attention probabilities
TERMS = 'terms'  # the terms of the scores


def wanted(module: nn.Module) -> list[str]:
  """The collections that the caller made mutable."""
  if module.is_initializing():
    return []
  kinds = STATES, MAPS, TERMS
  return [kind for kind in kinds if module.is_mutable_collection(kind)]


def show(module: nn.Module, kind: str, make: Callable[[], jax.Array]) -> None:
  """Sows `make()` in the collection `kind` if it is wanted."""
  if kind in wanted(module):
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
  module: Any, q: jax.Array, k: jax.Array, terms: Any, filled: Any
) -> None:
  """Shows MAPS and TERMS of a `transformer_xl.Attention`."""
  T, S = q.shape[1], k.shape[1]

  def mask():
    return attention.visibility(T, S - T, filled, module.config.span)

  def maps():
    return attention.probabilities(module.scores(q, k, terms), mask())

  show(module, MAPS, maps)
  show(module, TERMS, lambda: score_terms(q, k, terms, mask()))


def sow_layers(module: nn.Module, shown: dict[str, jax.Array]) -> None:
  """Sows what N layers have shown, [N, ...] for each kind, in their model."""
  for kind, arrays in shown.items():
    # The final states are a result of the model.
    for x in arrays[:-1] if kind == STATES else [arrays]:
      module.sow(kind, 'shown', x)


def read(
  model: Any,
  variables: Any,
  tokens: jax.Array,
  memory: Any,
  kind: str,
  *,
  lengths: jax.Array | None = None,
) -> tuple[Any, Any]:
  """What the layers show for int32 [B, T], without dropout; and the new memory.

  STATES   the embeddings and the output of each layer, N + 1 arrays
           [B, T, width]; the last is the input of the softmax
  MAPS     attention probabilities, float32 [N, B, H, T, S]; the first M of the
           S keys are the memory, oldest first
  TERMS    `score_terms`, float32 [N, 4, B, H, T, S]

  The memory is not a ring, whose slots are not in the order of positions.
  """
  (h, memory), collections = model.apply(
    variables, tokens, memory, lengths=lengths, method='states', mutable=[kind]
  )
  *earlier, last = collections[kind]['shown']
  return (*earlier, last, h) if kind == STATES else last, memory
