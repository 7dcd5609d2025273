"""How a token is drawn from logits [B, V]: B rows (samples), V vocabulary."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a token is drawn from the logits; see `adjust` for the equations."""

  # Divides the logits; 0 takes the most probable token.
  temperature: float = 1.0
  top_k: int = 0  # draw among the k most probable tokens; 0 is off
  top_p: float = 1.0  # among the fewest that reach this probability; 1 is off
  repetition_penalty: float = 1.0  # above 1, seen tokens become rarer; 1 is off
  forbidden: tuple[int, ...] = ()  # token ids that are never drawn


def adjust(logits: jax.Array, seen: jax.Array, sampling: Sampling) -> jax.Array:
  """Logits to draw from, float32 [B, V]: -inf where a token is excluded.

  From logits, float32 [B, V], and the tokens seen, bool [B, V], in the order of
  the Hugging Face library. Forbidden tokens are excluded before anything else.

  1. Repetition penalty (Keskar et al. 2019, Section 4.1, in the form that
     never rewards): a positive logit of a seen token is divided by it, a
     negative one is multiplied by it.
  2. Division by the temperature, unless it is 0.
  3. top_k: exactly the k largest stay (all of them, if k > V).
  4. top_p (Holtzman et al. 2020): of what is left, renormalised, the
     smallest set whose probability reaches p stays; at least one token.

  Of equal logits the one with the lower id counts as the larger, as in an
  argmax. (Hugging Face's top_k keeps every token that ties with the k-th.)
  """
  B, V = logits.shape
  if sampling.forbidden:
    logits = logits.at[:, list(sampling.forbidden)].set(-jnp.inf)
  penalty = sampling.repetition_penalty
  if penalty != 1:
    lower = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(seen, lower, logits)
  if sampling.temperature != 0:
    logits = logits / sampling.temperature
  k = min(sampling.top_k or V, V)
  if k == V and sampling.top_p == 1:
    return logits
  ranked, ids = jax.lax.top_k(logits, k)  # [B, k], lower id first in a tie
  if sampling.top_p < 1:
    p = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(p, axis=-1) - p  # probability of the larger ones
    first = jnp.arange(k) == 0  # even if p is 0 as a float32
    ranked = jnp.where(first | (before < sampling.top_p), ranked, -jnp.inf)
  excluded = jnp.full_like(logits, -jnp.inf)
  return excluded.at[jnp.arange(B)[:, None], ids].set(ranked)


def draw(state: Any, key: jax.Array, sampling: Sampling) -> jax.Array:
  """The next token of each row: int32 [B].

  Row b draws with the key fold_in(fold_in(key, b), position[b]), so its
  tokens depend neither on the other rows nor on how the text is cut up.
  """
  logits = adjust(state.logits, state.seen, sampling)
  if sampling.temperature == 0:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
  fold = jax.random.fold_in
  keys = jax.vmap(fold, in_axes=(None, 0))(key, jnp.arange(len(logits)))
  keys = jax.vmap(fold)(keys, state.position)
  return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
