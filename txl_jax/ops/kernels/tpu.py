"""Fused relative attention for TPUs (Pallas).

Scores are computed tile by tile and never leave the chip; memory use grows as
T + M. The grid of a TPU runs in order, so sums over several steps stay in
VMEM, without atomics, and are bitwise deterministic.

Shapes
  B rows, T queries, M memory slots, S = M + T keys, H heads, K head width;
  tiles of n x n scores: query i = I n + a, key j = J n + x.

Computations on tiles are in `tpu_tiles`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_jax.ops.kernels import base
from txl_jax.ops.kernels import tpu_tiles as tiles
from txl_jax.program import target_device

# MiB of VMEM by device_kind; the others, v5p and newer, have 64 or more.
_VMEM = {'TPU v4': 16, 'TPU v5 lite': 128, 'TPU v6 lite': 128}
_OTHERS = 64
_DEFAULT = 15  # MiB that a kernel may use of those that XLA gives it unasked


def why_not(case: base.Case) -> str:
  """See `fused`."""
  kind = case.device.kind
  if case.device.platform != 'tpu' or kind.startswith(('TPU v2', 'TPU v3')):
    return 'it needs a TPU v4 or newer'
  if reason := base.why_not(case):
    return reason
  S = case.T + case.M
  limit = vmem(kind)
  if _asked(case.T, S, case.dtype) > limit:
    size = f'{limit >> 20} MiB of VMEM'
    return f'{case.T} queries and {S} keys need more than {size}'
  return ''


def vmem(kind: str) -> int:
  """Bytes of VMEM of a device_kind."""
  return _VMEM.get(kind, _OTHERS) * 2**20


def _asked(T, S, dtype):
  """Bytes of VMEM that the kernels ask for; 0 if they need not.

  So many needs the backward one. Whatever the grid reads or writes is there
  twice.
  """
  n = tiles.size(T, dtype)
  wide = jnp.dtype(dtype).itemsize
  K = 128
  queries, keys = (tiles.count(x, n) * n for x in (T, S))
  of_tile = 8 * n * n + (2 * 3 * wide + 2 * 4 + 2 * wide) * n * K
  of_keys = (2 * 4 * wide + 2 * 4) * keys * K  # k, v, dk, dv; sums of these
  of_chunks = (2 * wide + 2 * 4) * (queries + keys) * K  # r and dr
  need = of_tile + of_keys + of_chunks
  # What registers do not hold: some seven tiles of scores, ten in float32, as
  # compiled for a v4; the others compile with a third more.
  temporaries = (16 + 6 * wide) * n * n
  if need + temporaries <= _DEFAULT * 2**20:
    return 0
  return max(need + temporaries, need * 4 // 3)


def forward(
  *arrays: jax.Array, span: int, rate: float, interpret: bool | None = None
) -> tuple[jax.Array, jax.Array]:
  """See `fused`; `interpret` runs it as plain JAX, by default only on a CPU."""
  return _run(_forward, arrays, span, rate, interpret)


def backward(
  *arrays: jax.Array, span: int, rate: float, interpret: bool | None = None
) -> tuple[jax.Array, ...]:
  """See `fused`; the gradients of r, u and p are float32."""
  return _run(_backward, arrays, span, rate, interpret)


def _run(run, arrays, span, rate, interpret):
  # The scalar core has no unsigned integers.
  arrays = [
    lax.bitcast_convert_type(x, jnp.int32) if x.dtype == jnp.uint32 else x
    for x in arrays
  ]
  if interpret is None:
    interpret = target_device.device().platform == 'cpu'
  return run(*arrays, span=span, rate=rate, interpret=interpret)


def _forward(q, k, v, r, u, p, filled, bits, *, span, rate, interpret):
  t = tiles.task(q, k, span, rate, interpret)
  n = t.n
  r, p = tiles.positions(r, p, t)
  # By its estimates, XLA writes projections faster if heads do not come first.
  k, v = lax.optimization_barrier((k, v))
  q, k, v = (tiles.heads_first(x, t.n) for x in (q, k, v))
  b = _blocks(t)
  out, logsum = pl.pallas_call(
    functools.partial(_forward_kernel, t),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=t.grid,
      in_specs=[b.query, b.keys, b.keys, b.r, b.u, b.p],
      out_specs=[b.query, b.of_query(1)],
      scratch_shapes=[
        pltpu.VMEM((n, n), jnp.float32),
        pltpu.VMEM((n, t.K), jnp.float32),
        pltpu.VMEM((n, 1), jnp.float32),
        pltpu.VMEM((n, 1), jnp.float32),
        pltpu.VMEM((n, t.K), t.dtype),
      ],
    ),
    out_shape=[
      base.result(q, q.shape, q.dtype),
      base.result(q, (t.B, t.H, t.queries, 1, n), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'parallel'),
      vmem_limit_bytes=_asked(t.T, t.S, t.dtype) or None,
    ),
    interpret=interpret,
    name='relative_attention',
  )(*t.bounds(filled), filled, bits, q, k, v, r, u[:, None], p)
  logsum = logsum.reshape(t.B, t.H, -1)[..., : t.T]
  return tiles.heads_last(out, t.T), logsum


class _Blocks(NamedTuple):
  """What a grid step (h, b, i) reads or writes: of a tile of queries."""

  query: pl.BlockSpec  # of [B, H, n x queries, K]
  of_query: Callable[[int], pl.BlockSpec]  # of [B, H, queries, any, n]
  # All of a head, or of a row and head. They stay where they are for all i.
  keys: pl.BlockSpec  # of [B, H, n x keys, K]
  r: pl.BlockSpec  # of [H, n x chunks, K]
  p: pl.BlockSpec  # of [H, chunks, n]
  u: pl.BlockSpec  # of [H, 1, K], as one row is a block


def _blocks(t):
  n, K, keys = t.n, t.K, t.keys
  chunks = t.queries + keys
  both = lambda h, b, *_: (b, h, 0, 0)
  head = lambda h, *_: (h, 0, 0)
  return _Blocks(
    pl.BlockSpec((1, 1, n, K), lambda h, b, i, *_: (b, h, i, 0)),
    lambda m: pl.BlockSpec(
      (1, 1, 1, m, n), lambda h, b, i, *_: (b, h, i, 0, 0)
    ),
    pl.BlockSpec((1, 1, keys * n, K), both),
    pl.BlockSpec((1, chunks * n, K), head),
    pl.BlockSpec((1, chunks, n), head),
    pl.BlockSpec((1, 1, K), head),
  )


class _Rows(NamedTuple):
  """Where the rows of a tile of keys, or of a chunk of positions, are."""

  many: Any  # of an array of rows
  one: Any  # of one that has a tile in each row


def _rows(t, index):
  start = pl.multiple_of(index * t.n, t.n)
  return _Rows(pl.ds(start, t.n), pl.ds(index, 1))


def _biased(q, u):
  """A tile of queries with u, in float32."""
  return q[0, 0].astype(jnp.float32) + u[0]


def _positions(t, chunk, query, r, p):
  """Product of queries with a chunk; J - i is the first one of tile (i, J)."""
  rows = _rows(t, chunk + t.queries - 1)
  return tiles.dot(query[...], r[0, rows.many], 1, 1) + p[0, rows.one]


def _scores(t, i, J, filled, query, k, r, p, ahead):
  """Scores of tile (i, J); `ahead` becomes that of the next."""
  second = _positions(t, J - i + 1, query, r, p)
  z = tiles.seam(t.n, ahead[...], second)
  ahead[...] = second
  content = tiles.dot(query[...], k[0, 0, _rows(t, J).many], 1, 1)
  return tiles.scores(t, i, J, filled, content, z)


def _forward_kernel(
  t, first, last, filled, bits, q, k, v, r, u, p, out, logsum,
  ahead, total, top, mass, query,
):  # fmt: skip
  """A tile of queries with the tiles of keys that they see.

  Scratch: product with the second chunk (the next tile's first); weighted sum
  of values; running maximum of the scores; sum of weights; queries with u.
  """
  h, b, i = (pl.program_id(axis) for axis in range(3))
  begin = first[b * t.queries + i]

  query[...] = _biased(q, u).astype(t.dtype)
  ahead[...] = _positions(t, begin - i, query, r, p)
  total[...] = jnp.zeros_like(total)
  top[...] = jnp.full_like(top, tiles.LOWEST)
  mass[...] = jnp.zeros_like(mass)

  @pl.loop(0, t.steps)
  def tile(step):
    J = begin + step

    @pl.when(last[i] >= J)
    def seen():
      keys = _rows(t, J)
      score = _scores(t, i, J, filled[b], query, k, r, p, ahead)
      highest = jnp.maximum(top[...], jnp.max(score, axis=1, keepdims=True))
      weight = jnp.exp(score - highest)
      shrink = jnp.exp(top[...] - highest)
      top[...] = highest
      mass[...] = mass[...] * shrink + jnp.sum(weight, axis=1, keepdims=True)
      if t.rate:
        weight = jnp.where(tiles.keep(t, h, b, i, J, bits), weight, 0)
      values = tiles.dot(weight.astype(t.dtype), v[0, 0, keys.many], 1, 0)
      total[...] = total[...] * shrink + values

  # Padding queries in the last tile may see no key.
  seen = jnp.maximum(mass[...], jnp.finfo(jnp.float32).tiny)
  out[0, 0] = (total[...] / (seen * (1 - t.rate))).astype(out.dtype)
  column = jnp.broadcast_to(top[...] + jnp.log(seen), (t.n, 128))
  logsum[0, 0, 0] = column.T[:1]


def _backward(
  q, k, v, r, u, p, filled, bits, out, logsum, dout, *, span, rate, interpret
):
  t = tiles.task(q, k, span, rate, interpret)
  # For each query: the sum of weight x gradient of the weight over its keys.
  wide = (x.astype(jnp.float32) for x in (out, dout))
  mean = jnp.einsum('bthk,bthk->bht', *wide)
  rows = tiles.by_query(logsum, mean, t)
  r, p = tiles.positions(r, p, t)
  q, k, v, dout = (tiles.heads_first(x, t.n) for x in (q, k, v, dout))
  dq, dk, dv, dr, du, dp = _gradients(
    *(t, filled, bits, q, k, v, dout, rows, r, u[:, None], p),
    interpret=interpret,
  )
  dq = tiles.heads_last(dq, t.T)
  dk, dv = (tiles.heads_last(x, t.S) for x in (dk, dv))
  dr = dr.swapaxes(0, 1)[t.lead : t.lead + t.S] * t.scale
  dp = dp.reshape(t.H, -1)[:, t.lead : t.lead + t.S] * t.scale
  return dq, dk, dv, dr, du[:, 0], dp


def _gradients(t, filled, bits, q, k, v, dout, rows, r, u, p, *, interpret):
  """Calls the backward kernel.

  Returns dq [B, H, n x queries, K], dk and dv [B, H, n x keys, K]; in float32
  dr [H, n x chunks, K], du [H, 1, K] and dp [H, chunks, n].
  """
  n, K = t.n, t.K
  b = _blocks(t)
  of_keys = base.result(q, (t.B, t.H, t.keys * n, K), t.dtype)
  return pl.pallas_call(
    functools.partial(_backward_kernel, t),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=t.grid,
      in_specs=[
        *(b.query, b.keys, b.keys, b.query, b.of_query(8), b.r, b.u, b.p),
      ],
      out_specs=[b.query, b.keys, b.keys, b.r, b.u, b.p],
      scratch_shapes=[
        pltpu.VMEM((n, n), jnp.float32),
        pltpu.VMEM((n, n), jnp.float32),
        pltpu.VMEM((n, 8), jnp.float32),
        pltpu.VMEM((n, K), jnp.float32),
        pltpu.VMEM((n, K), jnp.float32),
        pltpu.VMEM((t.keys * n, K), jnp.float32),
        pltpu.VMEM((t.keys * n, K), jnp.float32),
        pltpu.VMEM((n, K), t.dtype),
        pltpu.VMEM((n, K), t.dtype),
      ],
    ),
    out_shape=[
      base.result(q, q.shape, t.dtype),
      *(of_keys, of_keys),
      base.result(q, r.shape, jnp.float32),
      base.result(q, u.shape, jnp.float32),
      base.result(q, p.shape, jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary', 'arbitrary'),
      vmem_limit_bytes=_asked(t.T, t.S, t.dtype) or None,
    ),
    interpret=interpret,
    name='relative_attention_gradient',
  )(*t.bounds(filled), filled, bits, q, k, v, dout, rows, r, u, p)


def _backward_kernel(
  t, first, last, filled, bits, q, k, v, dout, rows, r, u, p,
  dq, dk, dv, dr, du, dp, ahead, behind, columns, q_sum, z_sum, k_sum, v_sum,
  query, flipped,
):  # fmt: skip
  """The backward pass of a tile of queries.

  Scratch: `ahead` as in the forward kernel; `behind`, the previous tile's
  gradient for this tile's first chunk; `columns`, the transpose of `rows`;
  float32 sums for dq, of keys and of positions, dk and dv; queries with u, and
  these `flipped`: their rows, and those of what comes of positions, are as
  `tiles.rotate_back` leaves them.
  """
  h, b, i = (pl.program_id(axis) for axis in range(3))
  begin = first[b * t.queries + i]

  @pl.when((b == 0) & (i == 0))
  def start_head():
    dr[...] = jnp.zeros_like(dr)
    du[...] = jnp.zeros_like(du)
    dp[...] = jnp.zeros_like(dp)

  @pl.when(i == 0)
  def start_row():
    k_sum[...] = jnp.zeros_like(k_sum)
    v_sum[...] = jnp.zeros_like(v_sum)

  def add(chunk, grad):
    rows = _rows(t, chunk + t.queries - 1)
    rounded = grad.astype(t.dtype)
    z_sum[...] += tiles.dot(rounded, r[0, rows.many], 1, 0)
    dr[0, rows.many] += tiles.dot(rounded, flipped[...], 0, 0)
    dp[0, rows.one] += jnp.sum(grad, axis=0, keepdims=True)

  biased = _biased(q, u)
  query[...] = biased.astype(t.dtype)
  flipped[...] = tiles.flip(biased, t.strided).astype(t.dtype)
  ahead[...] = _positions(t, begin - i, query, r, p)
  behind[...] = jnp.zeros_like(behind)
  columns[...] = rows[0, 0, 0].T
  q_sum[...] = jnp.zeros_like(q_sum)
  z_sum[...] = jnp.zeros_like(z_sum)

  @pl.loop(0, t.steps)
  def tile(step):
    J = begin + step

    @pl.when(last[i] >= J)
    def seen():
      keys = _rows(t, J)
      score = _scores(t, i, J, filled[b], query, k, r, p, ahead)
      weight = jnp.exp(score - columns[:, 0:1])
      dweight = tiles.dot(dout[0, 0], v[0, 0, keys.many], 1, 1)
      dropped = weight
      if t.rate:
        # One number for both: masks have few registers.
        keep = tiles.keep(t, h, b, i, J, bits)
        kept = jnp.where(keep, 1 / (1 - t.rate), 0)
        dropped = weight * kept
        dweight = dweight * kept
      dscore = weight * (dweight - columns[:, 1:2])
      v_sum[keys.many] += tiles.dot(dropped.astype(t.dtype), dout[0, 0], 0, 0)
      rounded = dscore.astype(t.dtype)
      k_sum[keys.many] += tiles.dot(rounded, query[...], 0, 0)
      q_sum[...] += tiles.dot(rounded, k[0, 0, keys.many], 1, 0)
      dz = tiles.rotate_back(dscore, t.strided)
      add(J - i, tiles.seam(t.n, dz, behind[...], t.strided))
      behind[...] = dz

  none = jnp.zeros_like(behind)
  add(last[i] - i + 1, tiles.seam(t.n, none, behind[...], t.strided))
  du[0] += jnp.sum(q_sum[...], axis=0, keepdims=True) * t.scale
  total = q_sum[...] + tiles.flip(z_sum[...], t.strided)
  dq[0, 0] = (total * t.scale).astype(dq.dtype)

  @pl.when(i == t.queries - 1)
  def finish_row():
    dk[0, 0] = (k_sum[...] * t.scale).astype(dk.dtype)
    dv[0, 0] = v_sum[...].astype(dv.dtype)
