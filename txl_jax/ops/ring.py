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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.program import target_device

_COLUMNS = 64  # of a table, a multiple of them: products are slower otherwise


def write(ring: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
  """The ring [B H, C, K] with new [B, H, T, K] from slot `at`, int32 [], on."""
  if ring.dtype == jnp.bfloat16 and target_device.device().platform == 'cpu':
    # XLA would write into a float32 copy of the whole ring, each time.
    bits = functools.partial(jax.lax.bitcast_convert_type, new_dtype=jnp.uint16)
    written = write(bits(ring), bits(new.astype(ring.dtype)), at)
    return jax.lax.bitcast_convert_type(written, ring.dtype)
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
    # Rolling would be a copy; a gather is fused with what writes.
    moved = jnp.take(new, i, axis=1, mode='clip')
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


def table(r: jax.Array) -> jax.Array:
  """The position table r [C, H, K], as `scores` reads it: [H, K, W].

  Its W > C columns are the distances, farthest first, then zeros, which are
  room for `by_slot`.
  """
  C = len(r)
  W = (C // _COLUMNS + 1) * _COLUMNS
  return jnp.pad(jnp.transpose(r, (1, 2, 0)), ((0, 0), (0, 0), (0, W - C)))


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
    r: [H, K, W] projected position table, from `table`.
    u: [H, K] content bias.
    v_bias: [H, K] position bias.
    at: int32 [], the slot of the first query.
    b: [C, H], added to the score of each distance before it is scaled,
      farthest first; None adds nothing.

  Returns:
    [B, H, T, C], float32 or wider.
  """
  B, H, T, K = q.shape
  C, W, scale = k.shape[1], r.shape[2], K**-0.5
  wide = jnp.promote_types(q.dtype, jnp.float32)

  def product(form, *operands):
    return matmul.einsum(form, *operands, preferred_element_type=wide)

  def by_distance(q):  # [B, H, T, K] -> [B, H, T, W]
    # The table has no batch axis, so the rows of queries are treated as more
    # queries. With few queries a CPU reads it faster with W last.
    flat = jnp.swapaxes(q, 0, 1).reshape(H, -1, K)
    x = product('hnk,hkc->hnc', flat, r).reshape(H, B, -1, W)
    if b is not None:
      added = jnp.pad((b.T * scale).astype(wide), ((0, 0), (0, W - C)))
      x += added[:, None, None]
    return jnp.swapaxes(x, 0, 1)

  content = ((q + u[:, None]) * scale).reshape(B * H, T, K)
  content = product('ntk,nck->ntc', content, k).reshape(B, H, T, C)
  return content + by_slot(by_distance, (q + v_bias[:, None]) * scale, at, C)


def by_slot(
  by_distance: Callable[[jax.Array], jax.Array],
  q: jax.Array,
  at: jax.Array,
  C: int,
) -> jax.Array:
  """Scores of queries [B, H, T, K] by distance, rearranged by slot.

  `by_distance` returns them as [B, H, T, W], farthest first, with W - C > 0
  columns of no meaning at the end; distance 0, in column C - 1, belongs to slot
  `at` + i for query i: column c becomes column c + at + i + 1, modulo C, of the
  result [B, H, T, C].
  """
  if q.shape[2] == 1:  # a slice of the row, written twice
    x = by_distance(q)[..., :C]
    twice = jnp.concatenate([x, x], axis=-1)
    return jax.lax.dynamic_slice_in_dim(twice, (-at - 1) % C, C, axis=3)

  def sliced(q, at):
    return _sliced(by_distance, q, at, C)

  def gathered(q, at):
    return _gathered(by_distance(q)[..., :C], at)

  return jax.lax.platform_dependent(
    q, at, cpu=sliced, tpu=sliced, default=gathered
  )


def _sliced(by_distance, q, at, C):
  """`by_slot` by three slices, for a CPU or TPU, where gathers are slow.

  In the rows of W scores one after the other, what query i needs for slot s is
  at place i W + s - at - 1 - i, plus C or 2 C if that column is negative: with
  rows of W - 1 each of the three is one slice. It begins before the first
  query's row or ends behind the last one's, in rows of zero queries; what it
  has from there is not selected.
  """
  B, H, T, _ = q.shape
  x = by_distance(jnp.pad(q, ((0, 0), (0, 0), (1, 1), (0, 0))))
  W = x.shape[-1]
  x = x.reshape(B, H, (T + 2) * W)

  def rows(further):
    start = W - at - 1 + further
    found = jax.lax.dynamic_slice_in_dim(x, start, T * (W - 1), axis=2)
    return found.reshape(B, H, T, W - 1)[..., :C]

  column = jnp.arange(C) - at - 1 - jnp.arange(T)[:, None]  # [T, C]
  wrapped = jnp.where(column >= -C, rows(C), rows(2 * C))
  return jnp.where(column >= 0, rows(0), wrapped)


def _gathered(x, at):
  """`by_slot` of x [B, H, T, C], a gather that is fused into what uses it."""
  T, C = x.shape[2:]
  source = (jnp.arange(C) - at - 1 - jnp.arange(T)[:, None]) % C  # [T, C]
  return jnp.take_along_axis(x, source[None, None], axis=-1)


def attend(scores: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """Values summed with the probabilities of their keys: [B, H, T, K].

  Unlike in `attention.attend`, heads come before queries in the result. Scores
  are [B, H, T, C], the ring of values [B H, C, K], the mask bool [B, T, C]; the
  result has the dtype of v, which is floating.
  """
  B, H, T, C = scores.shape
  weights, total = attention.exponentials(scores, mask)
  wide = attention.summed(v)
  weights = weights.astype(wide.dtype).reshape(B * H, T, C)
  out = matmul.einsum('ntc,nck->ntk', weights, wide).reshape(B, H, T, -1)
  return (out / total).astype(v.dtype)
