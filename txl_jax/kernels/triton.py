"""Fused relative attention in Pallas on Triton: NVIDIA GPUs from Ampere on.

Shapes
  B rows, T queries, M memory slots, S = M + T keys, H heads, K head width.
  A tile is n queries i0 + a by n keys j0 + x; n is a power of two.

Query i and key j are at distance d = i + M - j, and r is farthest first, so a
tile needs rows T - i0 - n + j0 + (n - 1 - a) + x of r: two chunks of n rows
from T - i0 - n + j0 on, of which query a needs n neighbours that begin n - 1 -
a rows into the first. Both are multiplied as they are; the columns from n - 1
- a on of one product and those before of the other are merged, and what
remains of the skew is a rotation of row a by n - 1 - a. The next tile of keys
begins one chunk further: a step along the keys makes one product with
positions and keeps the other.

Inside the kernels scores are products before the scale; c, p and r come with
c and p divided by it and r and p padded, see `_operands`.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from txl_jax import attention, target
from txl_jax.kernels import base

_LOG2_E = math.log2(math.e)
_UNSEEN = -1e30  # a score: finite, so that no difference of two is NaN
_PROGRAMS = 264  # at a time: two to each multiprocessor of an H100
_BUFFER = 80 << 20  # bytes, of the gradients by distance
# Columns of a product that the tensor cores take without padding.
_ALIGNED = 8


def why_not(case: base.Case) -> str:
  """See `base`."""
  if case.device.platform != 'gpu' or case.device.capability < 80:
    return 'it needs an NVIDIA GPU of compute capability 8.0 or above'
  if case.dtype not in ('float32', 'bfloat16'):
    return f'it needs float32 or bfloat16, not {case.dtype}'
  if case.K > 128:
    return f'heads of width {case.K}: it needs 128 or less'
  return ''


class Tiling(NamedTuple):
  """How a kernel is cut.

  The n of its tiles; warps; for how many steps of a loop shared memory holds
  the loads; and whether those of r go through registers, for want of it.
  """

  n: int
  warps: int
  stages: int
  direct: bool = False


class _Problem(NamedTuple):
  """What a kernel knows when it is compiled."""

  T: int
  S: int
  H: int
  K: int
  span: int
  rate: float
  tiling: Tiling
  interpret: bool

  @property
  def n(self):
    return self.tiling.n

  @property
  def M(self):
    return self.S - self.T

  @property
  def width(self):
    """Columns of a tile of states, a power of two: K and zeros."""
    return max(16, pl.next_power_of_2(self.K))

  @property
  def scale(self):
    return self.K**-0.5


def _power(x, scale, offset, problem):
  """2^(x scale - offset), for an offset that broadcasts to x.

  Triton alone would round the product and guard against subnormal results.
  """
  if problem.interpret:
    return jnp.exp2(x * scale - offset)
  args = (
    x,
    jnp.full(x.shape, scale, x.dtype),
    jnp.broadcast_to(-offset, x.shape),
  )
  [result] = plgpu.elementwise_inline_asm(
    '{ .reg .f32 t; fma.rn.f32 t, $1, $2, $3; ex2.approx.ftz.f32 $0, t; }',
    args=args,
    constraints='=f,f,f,f',
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
  )
  return result


def _turn(x, to, axis, loop, problem):
  """Moves the elements of float32 x [n, n] along an axis, to places `to`.

  Triton cannot gather from registers: the elements go through shared memory
  that the assembly declares for itself, whatever the layout they are in. One
  instance holds all elements of a thread, and the barriers keep the reads of
  the last call, the writes and the reads apart. `loop` is the index of the
  loop around: addresses that did not depend on it would all be kept in
  registers from step to step.
  """
  n, warps = problem.n, problem.tiling.warps
  if problem.interpret:
    moved = jnp.zeros_like(x)
    return jnp.put_along_axis(moved, to, x, axis=axis, inplace=False)
  if n < 16 * warps:
    # Some warps would hold the same elements, in several instances.
    raise ValueError(f'{warps} warps do not share out {n} rows')
  row = jax.lax.broadcasted_iota(jnp.int32, (n, n), 0)
  column = jax.lax.broadcasted_iota(jnp.int32, (n, n), 1)
  pitch = n + 3  # of all residues, the fewest bank conflicts
  stride = 4 if axis else 4 * pitch
  read = ((row + (loop >> 30)) * pitch + column) * 4
  write = read + (to - (column if axis else row)) * stride
  count = n * n // (32 * warps)
  lines = [
    '{',
    # What Triton has in shared memory comes after it, and must stay aligned.
    f'.shared .align 1024 .b8 tile[{pl.cdiv(n * pitch * 4, 1024) * 1024}];',
    '.reg .b32 base, place;',
    'mov.u32 base, tile;',
    'bar.sync 0;',
  ]
  for e in range(count):
    lines.append(f'add.u32 place, base, ${2 * count + e};')
    lines.append(f'st.shared.f32 [place], ${count + e};')
  lines.append('bar.sync 0;')
  for e in range(count):
    lines.append(f'add.u32 place, base, ${3 * count + e};')
    lines.append(f'ld.shared.f32 ${e}, [place];')
  lines.append('}')
  constraints = ['=&f'] * count + ['f'] * count + ['r'] * (2 * count)
  [moved] = plgpu.elementwise_inline_asm(
    '\n'.join(lines),
    args=[x, write, read],
    constraints=','.join(constraints),
    pack=count,
    result_shape_dtypes=[jax.ShapeDtypeStruct((n, n), jnp.float32)],
  )
  return moved


def _places(axis, problem):
  """Where rows of r are in a chunk, and where query a begins: int32 [n, n].

  Chunks are along the axis, queries along the other.
  """
  n = problem.n
  y = jax.lax.broadcasted_iota(jnp.int32, (n, n), axis)
  return y, n - 1 - jax.lax.broadcasted_iota(jnp.int32, (n, n), 1 - axis)


def _by_key(late, early, axis, loop, problem):
  """Merges two products with chunks of r, and moves them to their keys.

  Both are float32 [n, n], of one chunk and the chunk before it.
  """
  y, start = _places(axis, problem)
  merged = jnp.where(y < start, late, early)
  to = y - start + jnp.where(y < start, problem.n, 0)
  return _turn(merged, to, axis, loop, problem)


def _by_distance(x, loop, problem):
  """Moves x [n, n] of queries and keys to where their rows of r are.

  What of row a is before its start belongs to the later of the two chunks.
  """
  y, start = _places(1, problem)
  to = y + start - jnp.where(y + start < problem.n, 0, problem.n)
  return _turn(x, to, 1, loop, problem)


def _dot(x, y, axis_x, axis_y, problem):
  """A product of tiles over one axis of each, accumulated in float32.

  float32 tiles go to the tensor cores in three parts, which leaves about the
  rounding of float32; products one by one would spill most of the registers.
  """
  precision = None
  if x.dtype == jnp.float32:
    precision = jax.lax.Precision.HIGHEST
    if not problem.interpret:
      precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
  return jax.lax.dot_general(
    x,
    y,
    (((axis_x,), (axis_y,)), ((), ())),
    precision=precision,
    preferred_element_type=jnp.float32,
  )


def _rows(ref, b, rows, h, problem):
  """States [n, width] of ref [B, rows, H, width], or [rows, H, width] (b None).

  rows is int32 [n], all of them in the array.
  """
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = (rows[:, None], h, columns[None, :])
  return plgpu.load(ref.at[place if b is None else (b, *place)])


def _store_rows(ref, b, rows, h, x, problem):
  """Stores states [n, width] in ref [B, rows, H, width], where it has them."""
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = ref.at[b, rows[:, None], h, columns[None, :]]
  mask = jnp.broadcast_to((rows < ref.shape[1])[:, None], x.shape)
  plgpu.store(place, x, mask=mask)


def _within(rows, size, tile):
  """Rows [n] from a multiple of the tile on, none of them past the last."""
  return rows if size % tile == 0 else jnp.minimum(rows, size - 1)


def _masked(x, unseen, i, j, i0, j0, filled, problem, axis):
  """x, and `unseen` where the query does not see the key.

  x is a tile [n, n] of queries i, int32 [n] from i0 on, and keys j, int32 [n]
  from j0 on along the axis. Most tiles are seen as a whole.
  """
  M, span = problem.M, problem.span

  def mask(x):
    first = jnp.maximum(i + M - span + 1, M - filled)
    more = jnp.maximum(i + M - first, 0).astype(jnp.uint32)
    # A query that is not there sees no key.
    first = jnp.where(i < problem.T, first, problem.S + problem.n)
    first, more, keys = (
      jnp.expand_dims(x, axis if n < 2 else 1 - axis)
      for n, x in enumerate((first, more, j))
    )
    # 0 <= j - first <= more.
    return jnp.where((keys - first).astype(jnp.uint32) <= more, x, unseen)

  last = i0 + problem.n - 1
  whole = (
    (j0 + problem.n - 1 <= i0 + M)
    & (j0 > last + M - span)
    & (j0 >= M - filled)
    & (last < problem.T)
  )
  return jax.lax.cond(whole, lambda x: x, mask, x)


def _index(b, h, i, j, words_ref, problem):
  """The index of each weight that dropout hashes, uint32; see `fused`."""
  b, h, i, j = (x.astype(jnp.uint32) for x in (b, h, i, j))
  row = b * words_ref[3] + words_ref[2] + h
  return (row * problem.T + i) * problem.S + j


class _Positions:
  """Products of a query tile with r, a chunk at a time.

  The state is the product with the chunk that the next tile of keys begins in,
  and with `direct` the rows of the chunk after it.
  """

  def __init__(self, q, r_ref, p_ref, h, base, problem):
    self.q, self.r_ref, self.p_ref = q, r_ref, p_ref
    self.h, self.base, self.problem = h, base, problem

  def begin(self, J):
    """The state for the tile of keys J."""

    # A loop, since Triton keeps what a product read until the loop after it.
    def step(J, _):
      return self._product(J, self.chunk(J))

    nothing = jnp.zeros([self.problem.n, self.problem.n], jnp.float32)
    early = jax.lax.fori_loop(J, J + 1, step, nothing)
    return (
      (early, self.chunk(J + 1)) if self.problem.tiling.direct else (early,)
    )

  def step(self, J, state):
    """The products for tile J, later chunk first, and the next state."""
    early, *r = state
    late = self._product(J + 1, r[0] if r else self.chunk(J + 1))
    return late, early, (late, self.chunk(J + 2)) if r else (late,)

  def _rows(self, J):
    """The rows of the chunk that tile J begins in: int32 [n]."""
    first = self.base + J * self.problem.n
    return first + jnp.arange(self.problem.n, dtype=jnp.int32)

  def chunk(self, J):
    """The rows of r [n, width] that tile J begins in."""
    return _rows(self.r_ref, None, self._rows(J), self.h, self.problem)

  def _product(self, J, r):
    bias = plgpu.load(self.p_ref.at[self.h, self._rows(J)])
    return _dot(self.q, r, 1, 1, self.problem) + bias


def _forward_kernel(
  q_ref, k_ref, v_ref, r_ref, c_ref, p_ref, filled_ref, words_ref,
  out_ref, logsum_ref,
  *, problem: _Problem,
):  # fmt: skip
  """Queries from i0 on of one row and head, over the keys they see."""
  n, T, M = problem.n, problem.T, problem.M
  scale = problem.scale * _LOG2_E
  # The last queries see the most keys: they start first.
  i0 = (pl.num_programs(0) - 1 - pl.program_id(0)) * n
  h, b = pl.program_id(1), pl.program_id(2)
  filled = filled_ref[b]
  i = i0 + jnp.arange(n, dtype=jnp.int32)
  q = _rows(q_ref, b, _within(i, T, n), h, problem)
  base = pl.cdiv(T, n) * n - i0 - n
  positions = _Positions(q, r_ref, p_ref, h, base, problem)

  def step(J, carry):
    total, top, out, *state = carry
    j0 = J * n
    j = j0 + jnp.arange(n, dtype=jnp.int32)
    there = _within(j, problem.S, n)
    k = _rows(k_ref, b, there, h, problem)
    score = _dot(q, k, 1, 1, problem)
    late, early, state = positions.step(J, state)
    of_positions = _by_key(late, early, 1, J, problem)
    score = score + (of_positions + plgpu.load(c_ref.at[b, h, there]))
    score = _masked(score, _UNSEEN, i, j, i0, j0, filled, problem, 1)
    higher = jnp.maximum(top, jnp.max(score, axis=1))
    shrink = jnp.exp2((top - higher) * scale)
    # Where a query has seen nothing yet, the power is 0.
    level = jnp.maximum(higher, 0.5 * _UNSEEN) * scale
    weights = _power(score, scale, level[:, None], problem)
    total = total * shrink + jnp.sum(weights, axis=1)
    if problem.rate:
      index = _index(b, h, i[:, None], j[None, :], words_ref, problem)
      keep = attention.keep(index, words_ref, problem.rate)
      weights = jnp.where(keep, weights, 0)
    v = _rows(v_ref, b, there, h, problem)
    out = out * shrink[:, None] + _dot(
      weights.astype(v.dtype), v, 1, 0, problem
    )
    return total, higher, out, *state

  nearest = jnp.maximum(i0 + M - problem.span + 1, M - filled) // n
  last = (jnp.minimum(i0 + n, T) - 1 + M) // n
  carry = (
    jnp.zeros([n], jnp.float32),
    jnp.full([n], _UNSEEN, jnp.float32),
    jnp.zeros([n, problem.width], jnp.float32),
    *positions.begin(nearest),
  )
  total, top, out, *_ = jax.lax.fori_loop(nearest, last + 1, step, carry)
  # The plain path divides the weights that dropout keeps; this is less work.
  out = out / (total * (1 - problem.rate))[:, None]
  _store_rows(out_ref, b, i, h, out.astype(out_ref.dtype), problem)
  logsum = top * problem.scale + jnp.log(total)
  plgpu.store(logsum_ref.at[b, h, i], logsum, mask=i < T)


def _dq_kernel(
  first_ref, q_ref, k_ref, v_ref, r_ref, c_ref, p_ref, filled_ref, words_ref,
  dout_ref, logsum_ref, delta_ref, _,
  dq_ref, by_distance_ref,
  *, problem: _Problem,
):  # fmt: skip
  """dq, and the gradients of the scores by distance, of a group of queries.

  The first query is in first_ref. dq is of all, what it was for the others. The
  columns of by_distance [H, B, group, columns] are the rows of r as the kernel
  has it.
  """
  n, T, M = problem.n, problem.T, problem.M
  scale = problem.scale * _LOG2_E
  tile, h, b = pl.program_id(0), pl.program_id(1), pl.program_id(2)
  local = tile * n + jnp.arange(n, dtype=jnp.int32)
  i0 = pl.multiple_of(first_ref[0], n) + tile * n
  i = i0 + jnp.arange(n, dtype=jnp.int32)
  present = jnp.minimum(i, T - 1)
  filled = filled_ref[b]
  q = _rows(q_ref, b, present, h, problem)
  dout = _rows(dout_ref, b, present, h, problem)
  logsum = plgpu.load(logsum_ref.at[b, h, present]) * _LOG2_E
  delta = plgpu.load(delta_ref.at[b, h, present])
  # A group may have tiles that no query is in: any row of r will do.
  base = jnp.maximum(pl.cdiv(T, n) * n - i0 - n, 0)
  positions = _Positions(q, r_ref, p_ref, h, base, problem)
  y, start = _places(1, problem)

  def write(J, chunk):
    """Stores [n, n], what the chunk has that the tile of keys J begins in."""
    columns = base + J * n + jnp.arange(n, dtype=jnp.int32)
    to = by_distance_ref.at[h, b, local[:, None], columns[None, :]]
    chunk = chunk.astype(by_distance_ref.dtype)
    inside = columns < by_distance_ref.shape[-1]
    plgpu.store(to, chunk, mask=jnp.broadcast_to(inside[None, :], chunk.shape))

  def step(J, carry):
    dq, before, *state = carry
    j0 = J * n
    j = j0 + jnp.arange(n, dtype=jnp.int32)
    there = _within(j, problem.S, n)
    k = _rows(k_ref, b, there, h, problem)
    score = _dot(q, k, 1, 1, problem)
    v = _rows(v_ref, b, there, h, problem)
    dweights = _dot(dout, v, 1, 1, problem)
    late, early, state = positions.step(J, state)
    of_positions = _by_key(late, early, 1, J, problem)
    score = score + (of_positions + plgpu.load(c_ref.at[b, h, there]))
    weights = _power(score, scale, logsum[:, None], problem)
    if problem.rate:
      index = _index(b, h, i[:, None], j[None, :], words_ref, problem)
      keep = attention.keep(index, words_ref, problem.rate)
      dweights = jnp.where(keep, dweights * (1 / (1 - problem.rate)), 0)
    dscore = weights * (dweights - delta[:, None])
    dscore = _masked(dscore, 0, i, j, i0, j0, filled, problem, 1)
    dq = dq + _dot(dscore.astype(k.dtype), k, 1, 0, problem)
    now = _by_distance(dscore, J, problem).astype(k.dtype)
    chunk = jnp.where(y < start, before, now)
    write(J, chunk)
    dq = dq + _dot(chunk, positions.chunk(J), 1, 0, problem)
    return dq, now, *state

  last = (jnp.minimum(i0 + n, T) - 1 + M) // n
  nearest = jnp.maximum(i0 + M - problem.span + 1, M - filled) // n
  nearest = jnp.minimum(nearest, last + 1)
  nothing = jnp.zeros([n, n], k_ref.dtype)

  def write_nothing(J, _):
    write(J, nothing)

  dq, before, *_ = jax.lax.fori_loop(
    nearest,
    last + 1,
    step,
    (
      jnp.zeros([n, problem.width], jnp.float32),
      nothing,
      *positions.begin(jnp.minimum(nearest, last)),
    ),
  )

  def end(J, dq):
    chunk = jnp.where(y < start, before, nothing)
    write(J, chunk)
    return dq + _dot(chunk, positions.chunk(J), 1, 0, problem)

  dq = jax.lax.fori_loop(last + 1, last + 2, end, dq)
  chunks = by_distance_ref.shape[-1] // n
  jax.lax.fori_loop(-(base // n), nearest, write_nothing, None)
  jax.lax.fori_loop(last + 2, chunks - base // n, write_nothing, None)
  dq = (dq * problem.scale).astype(dq_ref.dtype)
  _store_rows(dq_ref, b, i, h, dq, problem)


def _dkv_kernel(
  q_ref, k_ref, v_ref, r_ref, c_ref, p_ref, filled_ref, words_ref,
  dout_ref, logsum_ref, delta_ref,
  dk_ref, dv_ref, dc_ref,
  *, problem: _Problem,
):  # fmt: skip
  """Keys from j0 on of one row and head, over the queries that see them.

  Tiles are [n, n] here, ready for the products with dout and q.
  """
  n, T, M, S = problem.n, problem.T, problem.M, problem.S
  scale = problem.scale * _LOG2_E
  j0 = pl.program_id(0) * n
  h, b = pl.program_id(1), pl.program_id(2)
  filled = filled_ref[b]
  j = j0 + jnp.arange(n, dtype=jnp.int32)
  there = _within(j, S, n)
  k = _rows(k_ref, b, there, h, problem)
  v = _rows(v_ref, b, there, h, problem)
  bias = plgpu.load(c_ref.at[b, h, there])

  def step(I, carry):
    dk, dv, dc = carry
    i0 = I * n
    i = i0 + jnp.arange(n, dtype=jnp.int32)
    present = _within(i, T, n)
    q = _rows(q_ref, b, present, h, problem)
    base = pl.cdiv(T, n) * n - i0 - n + j0
    products = []
    for chunk in range(2):
      rows = base + chunk * n + jnp.arange(n, dtype=jnp.int32)
      r = _rows(r_ref, None, rows, h, problem)
      by_distance = plgpu.load(p_ref.at[h, rows])[:, None]
      products.append(_dot(r, q, 1, 1, problem) + by_distance)
    early, late = products
    score = _by_key(late, early, 0, I, problem)
    score = _dot(k, q, 1, 1, problem) + (score + bias[:, None])
    logsum = plgpu.load(logsum_ref.at[b, h, present]) * _LOG2_E
    weights = _power(score, scale, logsum[None, :], problem)
    weights = _masked(weights, 0, i, j, i0, j0, filled, problem, 0)
    dout = _rows(dout_ref, b, present, h, problem)
    dweights = _dot(v, dout, 1, 1, problem)
    kept = weights
    if problem.rate:
      index = _index(b, h, i[None, :], j[:, None], words_ref, problem)
      keep = attention.keep(index, words_ref, problem.rate)
      kept = jnp.where(keep, weights, 0)
      dweights = jnp.where(keep, dweights * (1 / (1 - problem.rate)), 0)
    dv = dv + _dot(kept.astype(dout.dtype), dout, 1, 0, problem)
    delta = plgpu.load(delta_ref.at[b, h, present])
    dscore = weights * (dweights - delta[None, :])
    dk = dk + _dot(dscore.astype(q.dtype), q, 1, 0, problem)
    return dk, dv, dc + jnp.sum(dscore, axis=1)

  nearest = jnp.maximum(j0 - M, 0) // n
  last = jnp.minimum(j0 + n - 1 + problem.span - 1 - M, T - 1) // n
  last = jnp.where(j0 + n <= M - filled, -1, last)
  zeros = jnp.zeros([n, problem.width], jnp.float32)
  dk, dv, dc = jax.lax.fori_loop(
    nearest, last + 1, step, (zeros, zeros, jnp.zeros([n], jnp.float32))
  )
  dk = (dk * problem.scale).astype(dk_ref.dtype)
  dv = (dv * (1 / (1 - problem.rate))).astype(dv_ref.dtype)
  _store_rows(dk_ref, b, j, h, dk, problem)
  _store_rows(dv_ref, b, j, h, dv, problem)
  plgpu.store(dc_ref.at[b, h, j], dc, mask=j < S)


def _operands(r, c, p, problem):
  """r, c and p as the kernels have them.

  c and p without the scale that the whole score is multiplied by; r and p with
  the rows that tiles at the edges touch besides: T is brought up to a multiple
  of n before row 0, and a tile and a chunk follow the last.
  """
  ends = -problem.T % problem.n, 4 * problem.n
  r = jnp.pad(r, [ends, (0, 0), (0, 0)])
  p = jnp.pad(p / problem.scale, [(0, 0), ends])
  return r, c / problem.scale, p


def _problem(q, k, span, rate, tiling, interpret):
  if interpret is None:
    interpret = target.device().platform == 'cpu'
  _, T, H, K = q.shape
  S = k.shape[1]
  return _Problem(T, S, H, K, span, rate, tiling, interpret)


def _padded(problem, *states):
  """States with their last axis brought up to a power of two.

  Copies cost less than loads of less than 16 bytes.
  """
  return [
    jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, problem.width - problem.K)])
    for x in states
  ]


def _call(kernel, problem, grid, results, *args, over=()):
  """A kernel over a grid, its arrays whole.

  The first results take the places of the arrays `over`, its last arguments.
  """
  over = list(over)
  shapes = [(x.shape, x.dtype) for x in over] + results
  return pl.pallas_call(
    functools.partial(kernel, problem=problem),
    grid=grid,
    out_shape=[jax.ShapeDtypeStruct(*shape) for shape in shapes],
    input_output_aliases={len(args) + n: n for n in range(len(over))},
    compiler_params=plgpu.CompilerParams(
      num_warps=problem.tiling.warps, num_stages=problem.tiling.stages
    ),
    interpret=problem.interpret,
    name='txl' + kernel.__name__.removesuffix('_kernel'),
  )(*args, *over)


def _tiling(name, q):
  """The tiling that was fastest on an H100 for a kernel with such states."""
  wide = q.shape[-1] > 64
  if q.dtype == jnp.float32:
    return Tiling(16, 1, 1) if wide else Tiling(32, 2, 1)
  # Shared memory is for two programs to a multiprocessor; what does not fit
  # twice goes through registers, or is loaded when it is needed.
  if not wide:
    return Tiling(64, 4, 2, direct=name == 'dq')
  return (
    Tiling(64, 4, 2, direct=True) if name == 'forward' else Tiling(64, 4, 1)
  )


def forward(
  q, k, v, r, c, p, filled, words, *, span, rate, interpret=None, tiling=None
):
  """Attention and the logarithm of each query's sum of exponentials.

  q is [B, T, H, K], k and v [B, S, H, K], r [S, H, K], c float32 [B, H, S],
  p float32 [H, S], filled int32 [B], words uint32 [4]. Returns
  (out [B, T, H, K], logsum float32 [B, H, T]). interpret None: on a CPU.
  """
  tiling = tiling or _tiling('forward', q)
  problem = _problem(q, k, span, rate, tiling, interpret)
  B, T, H, K = q.shape
  q, k, v, r = _padded(problem, q, k, v, r)
  out, logsum = _call(
    _forward_kernel,
    problem,
    (pl.cdiv(T, tiling.n), H, B),
    [(q.shape, q.dtype), ((B, H, T), jnp.float32)],
    *(q, k, v, *_operands(r, c, p, problem), filled, words),
  )
  return out[..., :K], logsum


def backward(
  q, k, v, r, c, p, filled, words, out, logsum, dout,
  *, span, rate, interpret=None, tilings=None,
):  # fmt: skip
  """The gradients (dq, dk, dv, dr, dc, dp) of `forward`, for out's dout.

  The arguments are those of `forward`, its results, and dout [B, T, H, K]. dr
  is float32, a sum over the rows of the batch.
  """
  by_query, by_key = tilings or (_tiling('dq', q), _tiling('dkv', q))
  delta = jnp.einsum(
    'bthk,bthk->bht', dout, out, preferred_element_type=jnp.float32
  )
  first = _problem(q, k, span, rate, by_query, interpret)
  problem = _problem(q, k, span, rate, by_key, interpret)
  B, S, H, K = k.shape
  q, k, v, r, dout = _padded(problem, q, k, v, r, dout)
  dq, dr, dp = _distance_gradients(
    q, k, v, r, c, p, filled, words, logsum, delta, dout, first
  )
  dk, dv, dc = _call(
    _dkv_kernel,
    problem,
    (pl.cdiv(S, by_key.n), H, B),
    [(k.shape, k.dtype), (v.shape, v.dtype), (c.shape, jnp.float32)],
    *(q, k, v, *_operands(r, c, p, problem), filled, words),
    *(dout, logsum, delta),
  )
  dq, dk, dv, dr = (x[..., :K] for x in (dq, dk, dv, dr))
  return dq, dk, dv, dr, dc, dp


def _distance_gradients(
  q, k, v, r, c, p, filled, words, logsum, delta, dout, problem
):
  """dq, dr and dp.

  The gradients of the scores by distance are stored, for a group of queries at
  a time, and multiplied by the queries as matrices.
  """
  B, T, H, K = q.shape
  S, n = problem.S, problem.n
  before = -T % n
  columns = pl.cdiv(before + S, n) * n
  tiles = pl.cdiv(T, n)
  group = n * _tiles_at_once(tiles, B * H, n * columns * q.dtype.itemsize)
  count = pl.cdiv(T, group)
  operands = _operands(r, c, p, problem)
  # Heads in front, rows and queries as one: plain products, no copy of what is
  # large. The sum for dp is one more column of that for dr.
  with_ones = jnp.pad(
    jnp.concatenate([q, jnp.ones([B, T, H, _ALIGNED], q.dtype)], axis=-1),
    [(0, 0), (0, count * group - T), (0, 0), (0, 0)],
  )
  with_ones = with_ones.reshape(B, count, group, H, K + _ALIGNED)
  with_ones = with_ones.transpose(1, 3, 0, 2, 4)
  with_ones = with_ones.reshape(count, H, B * group, K + _ALIGNED)

  def step(carry, x):
    (dq, sums), (first, q_of_group) = carry, x
    dq, by_distance = _call(
      _dq_kernel,
      problem,
      (group // n, H, B),
      [((H, B, group, columns), q.dtype)],
      *(first, q, k, v, *operands, filled, words, dout, logsum, delta),
      over=[dq],
    )
    sums += jnp.einsum(
      'hns,hnk->hsk',
      by_distance.reshape(H, B * group, columns),
      q_of_group,
      precision='highest' if q.dtype == jnp.float32 else None,
      preferred_element_type=jnp.float32,
    )
    return (dq, sums), None

  zeros = jnp.zeros([H, columns, K + _ALIGNED], jnp.float32)
  firsts = jnp.arange(count, dtype=jnp.int32)[:, None] * group
  carry = jax.lax.empty(q.shape, q.dtype), zeros
  (dq, sums), _ = jax.lax.scan(step, carry, (firsts, with_ones))
  sums = sums[:, before : before + S]
  dr = jnp.swapaxes(sums[..., :K], 0, 1) * problem.scale
  return dq, dr, sums[..., K]


def _tiles_at_once(tiles, programs, size):
  """How many tiles of queries a call of the kernel for dq takes.

  All rows and heads have `programs` of each, and a buffer of so many bytes. The
  multiprocessors of a large GPU should be busy to the end of each call.
  """
  best, most = 1, 0.0
  for count in range(1, tiles + 1):
    if count > 1 and count * programs * size > _BUFFER:
      break
    calls, waves = pl.cdiv(tiles, count), pl.cdiv(count * programs, _PROGRAMS)
    busy = tiles * programs / (calls * waves * _PROGRAMS)
    if busy > most:
      best, most = count, busy
  return best
