"""Fused attention to cached keys and values for TPUs (Pallas), at test time.

A call reads several segments. Scores are computed tile by tile and never leave
the chip. The kernel also appends the new keys and values to those of the past,
in place; XLA copies those of heads narrower than 128 to its layout, and back.

Shapes
  B rows, N queries in segments of T, M past states that a segment sees, C
  cached ones, H heads, K head width; tiles of n x n scores: query I n + a, key
  J n + x.

Keys are in the order of positions: C cached ones, then N new ones. Query i is
at distance d = C + i - j from key j, which it sees if 0 <= d < span and

  j >= C + max((first query of its segment) - M, -filled).

For position scores see `tpu_tiles`: tile (I, J) needs two chunks of n rows of
the table, those that begin at distances C + (I - J + 1) n and C + (I - J) n.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_jax.ops.kernels import base, tpu
from txl_jax.ops.kernels import tpu_tiles as tiles
from txl_jax.program import target_device

UNIT = 512  # the largest n; C is a multiple of it
_LOG2_E = math.log2(math.e)


def why_not(case: base.Case, N: int) -> str:
  """Why it does not read N tokens in a call; '' if it does.

  The case has C cached states as its M.
  """
  if reason := tpu.why_not(case._replace(T=UNIT, M=0)):
    return reason
  if case.dtype != 'bfloat16':
    return f'it needs bfloat16, not {case.dtype}'
  vmem = tpu.vmem(case.device.kind)
  if _asked(N, case.M) > vmem:
    return f'{case.M} cached keys need more than {vmem >> 20} MiB of VMEM'
  return ''


class _Task(NamedTuple):
  """Static parameters of the kernel."""

  T: int
  N: int
  M: int
  C: int
  n: int
  span: int
  strided: bool  # see `tiles.Task`

  @property
  def queries(self) -> int:
    """Number of tiles of queries."""
    return tiles.count(self.N, self.n)

  def nearby(self, I: int) -> range:
    """The tiles of keys that the queries of tile I see if all are filled."""
    i = I * self.n
    far = max(i // self.T * self.T - self.M, i - self.span + 1)
    return range((self.C + far) // self.n, self.C // self.n + I + 1)


def table(r: jax.Array) -> jax.Array:
  """Lays out the position table r [C, H, K], farthest first: [H, any, K].

  Distance C is in row UNIT.
  """
  # C >= M + T, so tile (I, J) is seen for I <= J only: no chunk is before -1.
  r = jnp.pad(r, [(UNIT + 1, UNIT - 1), (0, 0), (0, 0)])
  return jnp.swapaxes(r, 0, 1)


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  old_k: jax.Array,
  old_v: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  filled: jax.Array,
  *,
  T: int,
  M: int,
  span: int | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Attention of several segments, and the cache with their keys and values.

  Args:
    q: [B, N, H, K] queries.
    k: [B, N, H, K] new keys.
    v: [B, N, H, K] new values.
    old_k: [B, H, C, K] cached keys, the newest one last; C is a multiple of
      UNIT, at least M + T.
    old_v: [B, H, C, K] cached values.
    r: [H, C + 2 UNIT, K] position table, from `table`.
    u: [H, K] content bias.
    v_bias: [H, K] position bias.
    filled: int32 [B], the number of past states of each row.
    T: the length of the segments.
    M: how many states before its segment a query sees.
    span: how many keys a query sees, itself included; None is all.

  Returns:
    [B, N, H, K], and the new old_k and old_v.
  """
  B, N, H, K = q.shape
  C = old_k.shape[2]
  interpret = target_device.device().platform == 'cpu'
  n = next(n for n in (128, 256, UNIT) if n >= N or n == UNIT)
  strided = not interpret and tiles.strided()
  t = _Task(T, N, M, C, n, span or M + T, strided)
  ranges = [t.nearby(I) for I in range(t.queries)]
  starts, ends = ([x.start for x in ranges], [x.stop for x in ranges])
  filled = filled.astype(jnp.int32)
  first = jnp.array(starts, jnp.int32), lax.div(C - filled, n)
  first = jnp.maximum(first[0], first[1][:, None]).reshape(-1)  # [B x queries]

  def biased(bias):  # weights are powers of 2
    x = (q + bias.astype(q.dtype)).astype(jnp.float32)
    return (x * (K**-0.5 * _LOG2_E)).astype(q.dtype)

  new = (tiles.heads_first(x, n) for x in (biased(u), biased(v_bias), k, v))
  all_of = lambda h, b, *_: (b, h, 0, 0)
  query = pl.BlockSpec((1, 1, n, K), lambda h, b, i, *_: (b, h, i, 0))
  of_new = pl.BlockSpec((1, 1, t.queries * n, K), all_of)
  of_old = pl.BlockSpec((1, 1, C, K), all_of)
  of_r = pl.BlockSpec((1, *r.shape[1:]), lambda h, *_: (h, 0, 0))
  keys = pltpu.VMEM((C + t.queries * n, K), q.dtype)
  out, old_k, old_v = pl.pallas_call(
    functools.partial(_kernel, t, max(map(len, ranges))),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=3,
      grid=(H, B, t.queries),
      in_specs=[query, query, of_new, of_new, of_old, of_old, of_r],
      out_specs=[query, of_old, of_old],
      scratch_shapes=[
        *(keys, keys),
        pltpu.VMEM((n, n), jnp.float32),
        pltpu.VMEM((n, K), jnp.float32),
        pltpu.VMEM((n, 1), jnp.float32),
        pltpu.VMEM((n, 1), jnp.float32),
      ],
    ),
    out_shape=[
      base.result(q, (B, H, t.queries * n, K), q.dtype),
      base.result(q, old_k.shape, old_k.dtype),
      base.result(q, old_v.shape, old_v.dtype),
    ],
    input_output_aliases={7: 1, 8: 2},  # old_k and old_v
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'arbitrary'),
      vmem_limit_bytes=_asked(N, C),
    ),
    interpret=interpret,
    name='cached_attention',
  )(first, jnp.array(ends, jnp.int32), filled, *new, old_k, old_v, r)
  return tiles.heads_last(out, N), old_k, old_v


def _asked(N, C):
  """Bytes of VMEM that the kernel asks for.

  Whatever the grid reads or writes is there twice: of a head, old keys and
  values before and after, new ones, and the table; then both together.
  """
  rows = 2 * (2 * 2 * C + 2 * N + C + 5 * UNIT) + 2 * (C + N)
  return 2 * 128 * rows + 48 * UNIT**2


def _kernel(
  t, steps, first, end, filled, content, position, new_k, new_v, old_k, old_v,
  r, out, next_k, next_v, k, v, ahead, total, top, mass,
):  # fmt: skip
  """A tile of queries with the tiles of keys that they see.

  Scratch: keys and values, old and new; then as in the kernel of `tpu`.
  """
  b, I = pl.program_id(1), pl.program_id(2)
  begin = first[b * t.queries + I]

  @pl.when(I == 0)
  def append():
    states = (old_k, new_k, k, next_k), (old_v, new_v, v, next_v)
    for old, new, both, kept in states:
      both[: t.C] = old[0, 0]
      both[t.C :] = new[0, 0]
      kept[0, 0] = both[t.N : t.N + t.C]

  def positions(chunk):
    rows = _rows(t, chunk + UNIT // t.n)
    return tiles.dot(position[0, 0], r[0, rows], 1, 1)

  query = I * t.n + lax.broadcasted_iota(jnp.int32, (t.n, 1), 0)
  # TPUs have no division of integers; the half makes it exact.
  segment = jnp.floor((query.astype(jnp.float32) + 0.5) / t.T)
  far = jnp.maximum(segment.astype(jnp.int32) * t.T - t.M, query - t.span + 1)
  far = t.C + jnp.maximum(far, -filled[b])

  ahead[...] = positions(begin - I - 1)
  total[...] = jnp.zeros_like(total)
  top[...] = jnp.full_like(top, tiles.LOWEST)
  mass[...] = jnp.zeros_like(mass)

  @pl.loop(0, steps)
  def tile(step):
    J = begin + step

    @pl.when(end[I] > J)
    def seen():
      second = positions(J - I)
      z = tiles.seam(t.n, ahead[...], second)
      ahead[...] = second
      score = tiles.dot(content[0, 0], k[_rows(t, J)], 1, 1)
      score += tiles.rotate(z, t.strided)
      key = J * t.n + lax.broadcasted_iota(jnp.int32, (t.n, t.n), 1)
      visible = (key >= far) & (key <= t.C + query)
      score = jnp.where(visible, score, tiles.HIDDEN)
      highest = jnp.maximum(top[...], jnp.max(score, axis=1, keepdims=True))
      weight = jnp.exp2(score - highest)
      shrink = jnp.exp2(top[...] - highest)
      top[...] = highest
      mass[...] = mass[...] * shrink + jnp.sum(weight, axis=1, keepdims=True)
      values = tiles.dot(weight.astype(v.dtype), v[_rows(t, J)], 1, 0)
      total[...] = total[...] * shrink + values

  out[0, 0] = (total[...] / mass[...]).astype(out.dtype)


def _rows(t, index):
  return pl.ds(pl.multiple_of(index * t.n, t.n), t.n)
