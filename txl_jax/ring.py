"""Relative attention over a ring of keys and values, for frozen weights.

Pure functions on plain arrays that compute the same scores as
`txl_jax.attention`: where the weights do not change, keys and values of past
states are kept instead of the states, and nothing is projected twice.

Shapes
  B rows, T queries (the current segment), M past states seen at most,
  C slots of the ring, H heads, K head width.

A ring is [B H, C, K]: rows and heads share one axis, so that its products are
plain ones. Each state is written to the next slot, wrapping around from the
last slot to the first; all rows write to the same slots. When T states have
been written from slot `at` on, slot s is at distance

  d = (at + i - s) mod C

from query i. It is visible iff d <= i + filled and d < span, where
filled <= M is the number of past states of a row: states that are older, or
come after the query, are farther away than that if C >= M + T.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention


def write(ring: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
  """The ring [B H, C, K] with new [B, H, T, K] from slot `at`, int32 [], on."""
  B, H, T, K = new.shape
  new = new.reshape(B * H, T, K).astype(ring.dtype)
  C = ring.shape[1]
  put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
  if T == 1:
    return put(ring, new, at)
  # Two pieces of T slots, one up to the last slot and one from the first; only
  # the slots that new states belong in change.
  for first, start in (at, jnp.minimum(at, C - T)), (at - C, 0):
    i = start + jnp.arange(T) - first  # of the new states
    old = jax.lax.dynamic_slice_in_dim(ring, start, T, axis=1)
    moved = jnp.roll(new, first - start, axis=1)
    piece = jnp.where(((i >= 0) & (i < T))[:, None], moved, old)
    ring = put(ring, piece, start)
  return ring


def rewind(
  rings: Any, at: jax.Array, counts: jax.Array
) -> tuple[Any, jax.Array]:
  """Rings and `at` without the last counts[b] states of row b, int32 [B].

  The states that these had overwritten do not come back.
  """
  least = jnp.min(counts)
  more = counts - least

  def turn(rings):
    """Makes rows with fewer states end at the same slot as the others."""

    def each(ring):
      heads = ring.shape[0] // len(counts)
      return jax.vmap(lambda x, n: jnp.roll(x, n, axis=0))(
        ring, jnp.repeat(more, heads)
      )

    return jax.tree.map(each, rings)

  rings = jax.lax.cond(jnp.any(more > 0), turn, lambda rings: rings, rings)
  (C,) = {ring.shape[1] for ring in jax.tree.leaves(rings)}
  return rings, (at - least) % C


def visibility(
  at: jax.Array, T: int, C: int, filled: jax.Array, span: int | None = None
) -> jax.Array:
  """Which slots each query may look at, bool [B, T, C]; see above.

  `filled`, int [B], is how many past states each row has, at most M. A query
  sees at most `span` keys, itself included; None means all.
  """
  i = jnp.arange(T)[:, None]
  d = (at + i - jnp.arange(C)) % C  # [T, C]
  visible = d <= i + filled[:, None, None]  # [B, T, C]
  return visible if span is None else visible & (d < span)


def scores(
  q: jax.Array,
  k: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  at: jax.Array,
  b: jax.Array | None = None,
) -> jax.Array:
  """The scores of `attention.relative_scores`, for the slots of a ring.

  Args:
    q: [B, H, T, K] queries, the first of them at slot `at`.
    k: [B H, C, K] ring of keys, those of the segment included.
    r: [H, K, C] projected position table, farthest first.
    u: [H, K] content bias.
    v_bias: [H, K] position bias.
    at: int32 [], the slot of the first query.
    b: [C, H], added to the score of each distance before it is scaled,
      farthest first; None adds nothing.

  Returns:
    [B, H, T, C], float32 or wider.
  """
  B, H, T, K = q.shape
  C, scale = k.shape[1], K**-0.5
  wide = jnp.promote_types(q.dtype, jnp.float32)

  def product(form, *operands):
    return jnp.einsum(form, *operands, preferred_element_type=wide)

  content = ((q + u[:, None]) * scale).reshape(B * H, T, K)
  content = product('ntk,nck->ntc', content, k).reshape(B, H, T, C)
  # The table has no batch axis, so the rows of queries are treated as more
  # queries. With few queries a CPU reads it faster with C last.
  positional = jnp.swapaxes((q + v_bias[:, None]) * scale, 0, 1)
  position = product('hnk,hkc->hnc', positional.reshape(H, B * T, K), r)
  position = jnp.swapaxes(position.reshape(H, B, T, C), 0, 1)
  if b is not None:
    position += (b.T * scale).astype(wide)[:, None]  # [H, 1, C]
  return content + by_slot(position, at)


def by_slot(x: jax.Array, at: jax.Array) -> jax.Array:
  """Scores [..., T, C] by distance, farthest first, rearranged by slot.

  The last column, distance 0, belongs to slot `at` + i for query i: column c
  of the input becomes column c + at + i + 1, modulo C, of the output.
  """
  *_, T, C = x.shape
  if T == 1:  # a slice of the row, written twice
    twice = jnp.concatenate([x, x], axis=-1)
    start = (-at - 1) % C
    return jax.lax.dynamic_slice_in_dim(twice, start, C, axis=x.ndim - 1)
  return jax.lax.platform_dependent(x, at, tpu=_shifted, default=_gathered)


def _gathered(x, at):
  """`by_slot` as a gather, which is fused into what uses it."""
  *lead, T, C = x.shape
  source = (jnp.arange(C) - at - 1 - jnp.arange(T)[:, None]) % C  # [T, C]
  source = source.reshape((1,) * len(lead) + (T, C))
  return jnp.take_along_axis(x, source, axis=-1)


def _shifted(x, at):
  """`by_slot` using only slices: a gather along lanes is slow on a TPU."""
  *_, T, C = x.shape
  twice = jnp.concatenate([x, x, x[..., : T - 1]], axis=-1)
  turned = jax.lax.dynamic_slice_in_dim(
    twice, (-at - T) % C, C + T - 1, axis=x.ndim - 1
  )
  return attention.relative_shift(turned)[..., :C]


def attend(scores: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """Values summed with the probabilities of their keys: [B, H, T, K].

  Scores are [B, H, T, C], the ring of values [B H, C, K], the mask bool
  [B, T, C]; the result has the dtype of v.
  """
  B, H, T, C = scores.shape
  weights, total = attention.exponentials(scores, mask)
  weights = weights.astype(v.dtype).reshape(B * H, T, C)
  out = jnp.einsum('ntc,nck->ntk', weights, v).reshape(B, H, T, -1)
  return (out / total).astype(v.dtype)
