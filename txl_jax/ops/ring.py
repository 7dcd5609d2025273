"""Relative attention with a key-value cache in a ring buffer, for inference.

Pure functions on plain arrays that compute the scores of `txl_jax.attention`.
While the weights do not change, the memory can hold projected keys and values
instead of states, so nothing is projected twice.

Shapes
  B rows, T queries (the current segment), M maximum number of past states seen,
  C slots of the ring, H heads, K head width.

A ring is [B H, C, K]: rows and heads share one axis, for batched matrix
products. Each state is written to the next slot, wrapping around at the end;
all rows write to the same slots. Once T states have been written, starting at
slot `at`, slot s is at distance

  d = (at + i - s) mod C

from query i. It is visible iff d <= i + filled and d < span, where
filled <= M is the number of past states of a row. With C >= M + T, this also
hides states that are too old and states after the query.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.program import target_device

_COLUMNS = 64  # table widths are multiples of this, for faster products


def write(ring: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
  """Writes new [B, H, T, K] into the ring [B H, C, K] from slot `at` on."""
  if ring.dtype == jnp.bfloat16 and target_device.device().platform == 'cpu':
    # XLA would update a float32 copy of the whole ring.
    bits = functools.partial(jax.lax.bitcast_convert_type, new_dtype=jnp.uint16)
    written = write(bits(ring), bits(new.astype(ring.dtype)), at)
    return jax.lax.bitcast_convert_type(written, ring.dtype)
  B, H, T, K = new.shape
  new = new.reshape(B * H, T, K).astype(ring.dtype)
  C = ring.shape[1]
  put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
  if T == 1:
    # In a loop over tokens, the compiler for TPUs would order rings by slot and
    # reorder them for every product.
    on_tpu = target_device.device().platform == 'tpu'
    return matmul.in_order(put(ring, new, at), on_tpu)
  # Two slices of T slots are updated: one before the wrap-around and one that
  # starts at slot 0. Slots without a new state keep their content.
  for first, start in (at, jnp.minimum(at, C - T)), (at - C, 0):
    i = start + jnp.arange(T) - first  # index of the new state for each slot
    old = jax.lax.dynamic_slice_in_dim(ring, start, T, axis=1)
    # Unlike a roll, which copies, XLA fuses a gather into the update.
    moved = jnp.take(new, i, axis=1, mode='clip')
    piece = jnp.where(((i >= 0) & (i < T))[None, :, None], moved, old)
    ring = put(ring, piece, start)
  return ring


def rewind(
  rings: Any, at: jax.Array, counts: jax.Array
) -> tuple[Any, jax.Array]:
  """Removes the last counts[b] states of each row b; returns rings and `at`.

  `counts` is int32 [B]. States that were overwritten are not restored.
  """
  least = jnp.min(counts)
  excess = counts - least
  # Rows that lose more states are rolled, so that all end at the same slot.
  rings = jax.lax.cond(
    jnp.any(excess > 0), lambda x: rolled(x, excess), lambda x: x, rings
  )
  (C,) = {ring.shape[1] for ring in jax.tree.leaves(rings)}
  return rings, (at - least) % C


def rolled(rings: Any, counts: jax.Array) -> Any:
  """Moves the states of each row by its counts[b] slots."""

  def roll(ring):
    heads = ring.shape[0] // len(counts)
    return jax.vmap(lambda x, n: jnp.roll(x, n, axis=0))(
      ring, jnp.repeat(counts, heads)
    )

  return jax.tree.map(roll, rings)


def visibility(
  at: jax.Array, T: int, C: int, filled: jax.Array, span: int | None = None
) -> jax.Array:
  """Mask of the slots that each query sees, bool [B, T, C]; see above.

  `filled`, int [B], is the number of past states of each row, at most M. A
  query sees at most `span` keys, including itself; None means all.
  """
  i = jnp.arange(T)[:, None]
  d = (at + i - jnp.arange(C)[None])[None] % C  # [1, T, C]
  visible = d <= i[None] + filled[:, None, None]  # [B, T, C]
  return visible if span is None else visible & (d < span)


def table(r: jax.Array, clamp_len: int = 0) -> jax.Array:
  """Lays out the position table r [C, H, K] for `scores`: [H, K, W].

  Its columns are distances, farthest first, then zeros, padding that `by_slot`
  needs. With clamp_len, equal columns of distances beyond it are left out.
  """
  C = len(r)
  same = max(C - clamp_len - 1, 0) // _COLUMNS * _COLUMNS
  same = same if clamp_len > 0 else 0
  pad = (0, 0), (0, 0), (0, _width(C) - C)
  return jnp.pad(jnp.transpose(r[same:], (1, 2, 0)), pad)


def _width(C):
  """The columns of a table with all distances."""
  return (C // _COLUMNS + 1) * _COLUMNS


def scores(
  q: jax.Array,
  k: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  at: jax.Array,
  b: jax.Array | None = None,
  to_slots: Callable[..., jax.Array] | None = None,
) -> jax.Array:
  """The scores of `attention.relative_scores`, for the slots of a ring.

  Args:
    q: [B, H, T, K] queries, the first of them at slot `at`.
    k: [B H, C, K] ring of keys, including those of the segment.
    r: [H, K, any] projected position table, from `table`.
    u: [H, K] content bias.
    v_bias: [H, K] position bias.
    at: int32 [], the slot of the first query.
    b: [C, H], farthest first, a bias added to the score of each distance before
      scaling; None adds nothing.
    to_slots: a kernel for `by_slot`, see `kernels.tpu_shift`.

  Returns:
    [B, H, T, C], float32 or wider.
  """
  B, H, T, K = q.shape
  C = k.shape[1]
  scale = K**-0.5
  W = _width(C)
  wide = attention.widened(q.dtype)

  def product(form, *operands):
    return matmul.einsum(form, *operands, preferred_element_type=wide)

  def by_distance(q):  # [B, H, T, K] -> [B, H, T, W]
    # The table has no batch axis, so B and T are merged. With few queries, a
    # CPU reads the table faster with W last.
    flat = jnp.swapaxes(q, 0, 1).reshape(H, -1, K)
    x = product('hnk,hkc->hnc', flat, r)
    if same := W - r.shape[2]:  # distances beyond clamp_len
      far = jnp.broadcast_to(x[..., :1], (*x.shape[:2], same))
      x = jnp.concatenate([far, x], axis=-1)
    x = x.reshape(H, B, -1, W)
    if b is not None:
      added = jnp.pad((b.T * scale).astype(wide), ((0, 0), (0, W - C)))
      x += added[:, None, None]
    return jnp.swapaxes(x, 0, 1)

  content = ((q + u[None, :, None]) * scale).reshape(B * H, T, K)
  content = product('ntk,nck->ntc', content, k).reshape(B, H, T, C)
  positioned = (q + v_bias[None, :, None]) * scale
  if to_slots and T > 1 and C % 128 == 0:
    return content + to_slots(by_distance(positioned), at, C)
  return content + by_slot(by_distance, positioned, at, C)


def by_slot(
  by_distance: Callable[[jax.Array], jax.Array],
  q: jax.Array,
  at: jax.Array,
  C: int,
) -> jax.Array:
  """Rearranges scores of queries [B, H, T, K] from distances to slots.

  `by_distance(q)` gives them as [B, H, T, W], farthest first, with W - C > 0
  columns of padding at the end. Distance 0, in column C - 1, belongs to slot
  `at` + i for query i; so column c moves to column (c + at + i + 1) mod C of
  the result [B, H, T, C].
  """
  if q.shape[2] == 1:  # a slice of two copies of the row
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
  """`by_slot` with three slices, for CPUs and TPUs, where gathers are slow.

  In the flattened rows of W scores, the score of query i for slot s has index
  i W + c with column c = s - at - 1 - i, plus C or 2 C while c is negative.
  Read as rows of W - 1, each of the three cases is one slice. A slice may begin
  before the first row or end after the last one, in padding from zero queries;
  these entries are never selected.
  """
  B, H, T, _ = q.shape
  x = by_distance(jnp.pad(q, ((0, 0), (0, 0), (1, 1), (0, 0))))
  W = x.shape[-1]
  x = x.reshape(B, H, (T + 2) * W)

  def rows(further):
    start = W - at - 1 + further
    flat = jax.lax.dynamic_slice_in_dim(x, start, T * (W - 1), axis=2)
    return flat.reshape(B, H, T, W - 1)[..., :C]

  column = (jnp.arange(C)[None] - at - 1 - jnp.arange(T)[:, None])[None, None]
  wrapped = jnp.where(column >= -C, rows(C), rows(2 * C))
  return jnp.where(column >= 0, rows(0), wrapped)


def _gathered(x, at):
  """`by_slot` of x [B, H, T, C] with a gather, which XLA fuses on GPUs."""
  T, C = x.shape[2:]
  source = jnp.arange(C)[None] - at - 1 - jnp.arange(T)[:, None]  # [T, C]
  return jnp.take_along_axis(x, source[None, None] % C, axis=-1)


def attend(scores: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """Sum of the values, weighted by softmax(scores): [B, H, T, K].

  Unlike in `attention.attend`, heads precede queries in the result. Scores are
  [B, H, T, C], the ring of values [B H, C, K], the mask bool [B, T, C]; the
  result has the floating dtype of v.
  """
  B, H, T, C = scores.shape
  weights, total = attention.exponentials(scores, mask)
  wide = attention.summable(v)
  weights = weights.astype(wide.dtype).reshape(B * H, T, C)
  out = matmul.einsum('ntc,nck->ntk', weights, wide).reshape(B, H, T, -1)
  return (out.astype(total.dtype) / total).astype(v.dtype)
