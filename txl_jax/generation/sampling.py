"""Sampling of tokens from logits [B, V]: B rows (samples), V vocabulary."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Sampling:
  """Sampling parameters; see `adjust` for the equations."""

  temperature: float = 1.0  # divides the logits; 0 is greedy decoding
  top_k: int = 0  # sample from the k most probable tokens; 0 is off
  top_p: float = 1.0  # smallest set with this probability; 1 is off
  repetition_penalty: float = 1.0  # lowers logits of seen tokens; 1 is off
  forbidden: tuple[int, ...] = ()  # token ids that are never sampled


def adjust(logits: jax.Array, seen: jax.Array, sampling: Sampling) -> jax.Array:
  """Adjusts logits float32 [B, V] for sampling; excluded tokens get -inf.

  `seen`, bool [B, V], marks tokens that have occurred. Forbidden tokens are
  excluded first; then, in the order of the Hugging Face library:

  1. Repetition penalty (Keskar et al. 2019, Section 4.1, in the sign-aware
     form): a positive logit of a seen token is divided by it, a negative one is
     multiplied by it.
  2. Division by the temperature, unless it is 0.
  3. top_k: keep exactly the k largest logits (all, if k > V).
  4. top_p (Holtzman et al. 2020): keep the smallest set of tokens whose
     renormalised probability reaches p; at least one token.

  Ties are broken in favour of the lower id, as in argmax. (Hugging Face's top_k
  keeps every token that ties with the k-th.)
  """
  B, V = logits.shape
  if sampling.forbidden:
    logits = logits.at[:, list(sampling.forbidden)].set(-jnp.inf)
  penalty = sampling.repetition_penalty
  if penalty != 1:
    penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(seen, penalised, logits)
  if sampling.temperature != 0:
    logits = logits / sampling.temperature
  k = min(sampling.top_k or V, V)
  if k == V and sampling.top_p == 1:
    return logits
  ranked, ids = jax.lax.top_k(logits, k)  # [B, k], lower id first in a tie
  if sampling.top_p < 1:
    p = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(p, axis=-1) - p  # probability of the larger logits
    first = jnp.arange(k)[None] == 0  # kept even if top_p rounds to 0
    ranked = jnp.where(first | (before < sampling.top_p), ranked, -jnp.inf)
  excluded = jnp.full_like(logits, -jnp.inf)
  return excluded.at[jnp.arange(B)[:, None], ids].set(ranked)


def draw(state: Any, key: jax.Array, sampling: Sampling) -> jax.Array:
  """Samples the next token of each row, int32 [B].

  Row b uses the key fold_in(fold_in(key, b), position[b]), so its tokens depend
  neither on other rows nor on how decoding is split into chunks.
  """
  logits = adjust(state.logits, state.seen, sampling)
  if sampling.temperature == 0:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
  fold = jax.random.fold_in
  keys = jax.vmap(fold, in_axes=(None, 0))(key, jnp.arange(len(logits)))
  keys = jax.vmap(fold)(keys, state.position)
  return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
