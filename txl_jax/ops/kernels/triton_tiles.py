"""Tiles of scores in Pallas on Triton: what the kernels of `triton` share.

Shapes
  T queries, M memory slots, S = M + T keys, H heads, K head width.
  A tile is n queries i0 + a by n keys j0 + x; n is a power of two.

Query i and key j are at distance d = i + M - j, and r is farthest first, so a
tile needs rows T - i0 - n + j0 + (n - 1 - a) + x of r: two chunks of n rows
from T - i0 - n + j0 on, of which query a needs n neighbours that begin n - 1 -
a rows into the first. Both are multiplied as they are; the columns from n - 1
- a on of one product and those before of the other are merged, and what
remains of the skew is a rotation of row a by n - 1 - a. The next tile of keys
begins one chunk further: a step along the keys makes one product with
positions and keeps the other.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from txl_jax.ops.kernels import base
from txl_jax.program import target_device

LOG2_E = math.log2(math.e)
UNSEEN = -1e30  # a score: finite, so that no difference of two is NaN


class Tiling(NamedTuple):
  """How a kernel is cut.

  The n of its tiles; warps; for how many steps of a loop shared memory holds
  the loads; and whether those of r go through registers, for want of it.
  """

  n: int
  warps: int
  stages: int
  direct: bool = False


class Problem(NamedTuple):
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
  def n(self) -> int:
    """Queries and keys of a tile."""
    return self.tiling.n

  @property
  def M(self) -> int:
    """Memory slots."""
    return self.S - self.T

  @property
  def width(self) -> int:
    """Columns of a tile of states, a power of two: K and zeros."""
    return max(16, pl.next_power_of_2(self.K))

  @property
  def scale(self) -> float:
    """Of scores, 1 / sqrt(K)."""
    return self.K**-0.5


def power(
  x: jax.Array, scale: float, offset: jax.Array, problem: Problem
) -> jax.Array:
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


def places(axis: int, problem: Problem) -> tuple[jax.Array, jax.Array]:
  """Where rows of r are in a chunk, and where query a begins: int32 [n, n].

  Chunks are along the axis, queries along the other.
  """
  n = problem.n
  y = jax.lax.broadcasted_iota(jnp.int32, (n, n), axis)
  return y, n - 1 - jax.lax.broadcasted_iota(jnp.int32, (n, n), 1 - axis)


def by_key(
  late: jax.Array, early: jax.Array, axis: int, loop: Any, problem: Problem
) -> jax.Array:
  """Merges two products with chunks of r, and moves them to their keys.

  Both are float32 [n, n], of one chunk and the chunk before it.
  """
  y, start = places(axis, problem)
  merged = jnp.where(y < start, late, early)
  to = y - start + jnp.where(y < start, problem.n, 0)
  return _turn(merged, to, axis, loop, problem)


def by_distance(x: jax.Array, loop: Any, problem: Problem) -> jax.Array:
  """Moves x [n, n] of queries and keys to where their rows of r are.

  What of row a is before its start belongs to the later of the two chunks.
  """
  y, start = places(1, problem)
  to = y + start - jnp.where(y + start < problem.n, 0, problem.n)
  return _turn(x, to, 1, loop, problem)


def dot(
  x: jax.Array, y: jax.Array, axis_x: int, axis_y: int, problem: Problem
) -> jax.Array:
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


def load_rows(
  ref: Any, b: Any, rows: jax.Array, h: Any, problem: Problem
) -> jax.Array:
  """States [n, width] of ref [B, rows, H, width], or [rows, H, width] (b None).

  rows is int32 [n], all of them in the array.
  """
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = (rows[:, None], h, columns[None, :])
  return plgpu.load(ref.at[place if b is None else (b, *place)])


def store_rows(
  ref: Any, b: Any, rows: jax.Array, h: Any, x: jax.Array, problem: Problem
) -> None:
  """Stores states [n, width] in ref [B, rows, H, width], where it has them."""
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = ref.at[b, rows[:, None], h, columns[None, :]]
  mask = jnp.broadcast_to((rows < ref.shape[1])[:, None], x.shape)
  plgpu.store(place, x, mask=mask)


def within(rows: jax.Array, size: int, tile: int) -> jax.Array:
  """Rows [n] from a multiple of the tile on, none of them past the last."""
  return rows if size % tile == 0 else jnp.minimum(rows, size - 1)


def masked(
  x: jax.Array,
  unseen: float,
  i: jax.Array,
  j: jax.Array,
  i0: Any,
  j0: Any,
  filled: Any,
  problem: Problem,
  axis: int,
) -> jax.Array:
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


def hash_index(
  b: Any, h: Any, i: Any, j: Any, bits_ref: Any, problem: Problem
) -> jax.Array:
  """The index of each weight that dropout hashes, uint32; see `fused`."""
  b, h, i, j = (x.astype(jnp.uint32) for x in (b, h, i, j))
  row = b * bits_ref[3] + bits_ref[2] + h
  return (row * problem.T + i) * problem.S + j


class Positions:
  """Products of a query tile with r, a chunk at a time.

  The state is the product with the chunk that the next tile of keys begins in,
  and with `direct` the rows of the chunk after it.
  """

  def __init__(self, q, r_ref, p_ref, h, base, problem):
    self.q, self.r_ref, self.p_ref = q, r_ref, p_ref
    self.h, self.base, self.problem = h, base, problem

  def begin(self, J: Any) -> tuple[jax.Array, ...]:
    """The state for the tile of keys J."""

    # A loop, since Triton keeps what a product read until the loop after it.
    def step(J, _):
      return self._product(J, self.chunk(J))

    nothing = jnp.zeros([self.problem.n, self.problem.n], jnp.float32)
    early = jax.lax.fori_loop(J, J + 1, step, nothing)
    return (
      (early, self.chunk(J + 1)) if self.problem.tiling.direct else (early,)
    )

  def step(
    self, J: Any, state: Sequence[jax.Array]
  ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """The products for tile J, later chunk first, and the next state."""
    early, *r = state
    late = self._product(J + 1, r[0] if r else self.chunk(J + 1))
    return late, early, (late, self.chunk(J + 2)) if r else (late,)

  def _its_rows(self, J):
    """The rows of the chunk that tile J begins in: int32 [n]."""
    first = self.base + J * self.problem.n
    return first + jnp.arange(self.problem.n, dtype=jnp.int32)

  def chunk(self, J: Any) -> jax.Array:
    """The rows of r [n, width] that tile J begins in."""
    return load_rows(self.r_ref, None, self._its_rows(J), self.h, self.problem)

  def _product(self, J, r):
    bias = plgpu.load(self.p_ref.at[self.h, self._its_rows(J)])
    return dot(self.q, r, 1, 1, self.problem) + bias


def operands(
  r: jax.Array, c: jax.Array, p: jax.Array, problem: Problem
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """r, c and p as the kernels have them.

  c and p without the scale that the whole score is multiplied by; r and p with
  the rows that tiles at the edges touch besides: T is brought up to a multiple
  of n before row 0, and a tile and a chunk follow the last.
  """
  ends = -problem.T % problem.n, 4 * problem.n
  r = jnp.pad(r, [ends, (0, 0), (0, 0)])
  p = jnp.pad(p / problem.scale, [(0, 0), ends])
  return r, c / problem.scale, p


def problem_of(
  q: jax.Array,
  k: jax.Array,
  span: int,
  rate: float,
  tiling: Tiling,
  interpret: bool | None,
) -> Problem:
  """The Problem of queries [B, T, H, K] and keys [B, S, H, K]."""
  if interpret is None:
    interpret = target_device.device().platform == 'cpu'
  _, T, H, K = q.shape
  S = k.shape[1]
  return Problem(T, S, H, K, span, rate, tiling, interpret)


def padded(problem: Problem, *states: jax.Array) -> list[jax.Array]:
  """States with their last axis brought up to a power of two.

  Copies cost less than loads of less than 16 bytes.
  """
  return [
    jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, problem.width - problem.K)])
    for x in states
  ]


def call(
  kernel: Callable[..., None],
  problem: Problem,
  grid: tuple[int, ...],
  results: list[Any],
  *args: jax.Array,
  over: Sequence[jax.Array] = (),
) -> Any:
  """A kernel over a grid, its arrays whole.

  The first results take the places of the arrays `over`, its last arguments.
  """
  over = list(over)
  shapes = [(x.shape, x.dtype) for x in over] + results
  return pl.pallas_call(
    functools.partial(kernel, problem=problem),
    grid=grid,
    out_shape=[base.result(args[0], *shape) for shape in shapes],
    input_output_aliases={len(args) + n: n for n in range(len(over))},
    compiler_params=plgpu.CompilerParams(
      num_warps=problem.tiling.warps, num_stages=problem.tiling.stages
    ),
    interpret=problem.interpret,
    name='txl' + kernel.__name__.removesuffix('_kernel'),
  )(*args, *over)


def tiling_for(name: str, q: jax.Array) -> Tiling:
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
