"""Tiles of scores in Pallas on Triton: functions of the kernels in `triton`.

Shapes
  T queries, M memory slots, S = M + T keys, H heads, K head width.
  A tile is n queries i0 + a by n keys j0 + x; n is a power of two.

Query i and key j are at distance d = i + M - j, and r is farthest first, so a
tile needs rows T - i0 - n + j0 + (n - 1 - a) + x of r. They lie in two chunks
of n rows, the first starting at row T - i0 - n + j0; for rows that r does not
have, which no query sees, any other row will do. Query a needs the n rows
that start at row n - 1 - a of the first chunk. The queries are multiplied by
both chunks. Row a takes columns y >= n - 1 - a from the first product and
columns y < n - 1 - a from the second, and is rotated left by n - 1 - a. The
next tile of keys starts one chunk later, so each step along the keys computes
one product with positions and reuses the other.
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
UNSEEN = -1e30  # score of a hidden key; finite, so differences are never NaN


class Tiling(NamedTuple):
  """Tile size and resources of a kernel."""

  n: int  # queries and keys of a tile
  warps: int
  stages: int  # pipeline stages, whose loads are in shared memory
  direct: bool = False  # r is loaded into registers, to save shared memory


class Problem(NamedTuple):
  """Static parameters of a kernel."""

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
    """Number of queries, and of keys, of a tile."""
    return self.tiling.n

  @property
  def M(self) -> int:
    """Number of memory slots."""
    return self.S - self.T

  @property
  def width(self) -> int:
    """Columns of a tile of states: K padded to a power of two."""
    return max(16, pl.next_power_of_2(self.K))

  @property
  def scale(self) -> float:
    """Scale of the scores, 1 / sqrt(K)."""
    return self.K**-0.5


def scaled_exp2(
  x: jax.Array, scale: float, offset: jax.Array, problem: Problem
) -> jax.Array:
  """2^(x scale - offset), for an offset that broadcasts to x.

  The assembly avoids rounding the product and handling subnormals.
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


def _scatter(x, to, axis, loop, problem):
  """Moves the elements of float32 x [n, n] along an axis to indices `to`.

  Triton cannot permute registers, so elements go through shared memory, which
  the assembly declares. One asm block handles all elements of a thread; its
  first barrier lets the reads of the previous call finish, its second the
  writes. Addresses depend on the index `loop` of the enclosing loop: otherwise
  Triton would keep all of them in registers between steps.
  """
  n = problem.n
  warps = problem.tiling.warps
  if problem.interpret:
    moved = jnp.zeros_like(x)
    return jnp.put_along_axis(moved, to, x, axis=axis, inplace=False)
  if n < 16 * warps:
    # Several warps would hold copies of the same elements.
    raise ValueError(f'{n} rows cannot be divided over {warps} warps')
  row = jax.lax.broadcasted_iota(jnp.int32, (n, n), 0)
  column = jax.lax.broadcasted_iota(jnp.int32, (n, n), 1)
  pitch = n + 3  # has the fewest bank conflicts
  stride = 4 if axis else 4 * pitch
  read = ((row + (loop >> 30)) * pitch + column) * 4
  write = read + (to - (column if axis else row)) * stride
  count = n * n // (32 * warps)
  lines = [
    '{',
    # Triton's own shared memory follows and must stay aligned.
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


def chunk_indices(axis: int, problem: Problem) -> tuple[jax.Array, jax.Array]:
  """Index y in a chunk, and first index of query a: int32 [n, n] each.

  Chunks are along `axis`, queries along the other axis.
  """
  n = problem.n
  y = jax.lax.broadcasted_iota(jnp.int32, (n, n), axis)
  return y, n - 1 - jax.lax.broadcasted_iota(jnp.int32, (n, n), 1 - axis)


def by_key(
  second: jax.Array, first: jax.Array, axis: int, loop: Any, problem: Problem
) -> jax.Array:
  """Merges the products with two chunks of r, and moves scores to their keys.

  `second` is the product with the chunk after that of `first`, float32 [n, n].
  """
  y, start = chunk_indices(axis, problem)
  merged = jnp.where(y < start, second, first)
  to = y - start + jnp.where(y < start, problem.n, 0)
  return _scatter(merged, to, axis, loop, problem)


def by_distance(x: jax.Array, loop: Any, problem: Problem) -> jax.Array:
  """Moves x [n, n] of queries and keys to the indices of their rows of r.

  In row a, entries left of column n - 1 - a belong to the second chunk.
  """
  y, start = chunk_indices(1, problem)
  to = y + start - jnp.where(y + start < problem.n, 0, problem.n)
  return _scatter(x, to, 1, loop, problem)


def dot(
  x: jax.Array, y: jax.Array, axis_x: int, axis_y: int, problem: Problem
) -> jax.Array:
  """Product of two tiles, contracting one axis of each, in float32.

  float32 tiles use three TF32 products on tensor cores, with about float32
  accuracy; without tensor cores, most registers would spill.
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
  """Loads [n, width] from ref [B, rows, H, any]; no axis B if b is None.

  `rows`, int32 [n], must be within bounds. Columns that ref lacks are 0.
  """
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = (rows[:, None], h, columns[None, :])
  place = ref.at[place if b is None else (b, *place)]
  if ref.shape[-1] == problem.width:
    return plgpu.load(place)
  mask = jnp.broadcast_to(columns < ref.shape[-1], (len(rows), len(columns)))
  return plgpu.load(place, mask=mask, other=0)


def store_rows(
  ref: Any, b: Any, rows: jax.Array, h: Any, x: jax.Array, problem: Problem
) -> None:
  """Stores [n, width] in ref [B, rows, H, any]; skips what is out of bounds."""
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = ref.at[b, rows[:, None], h, columns[None, :]]
  mask = jnp.broadcast_to((rows < ref.shape[1])[:, None], x.shape)
  if ref.shape[-1] < problem.width:
    mask &= (columns < ref.shape[-1])[None, :]
  plgpu.store(place, x, mask=mask)


def within(rows: jax.Array, size: int, tile: int) -> jax.Array:
  """Clips rows [n], which start at a multiple of `tile`, to the last row."""
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
  """Replaces x by `unseen` where the query does not see the key.

  x is a tile [n, n] of queries i, int32 [n] from i0 on, and keys j, int32 [n]
  from j0 on; keys are along `axis`. Most tiles are entirely visible.
  """
  M, span = problem.M, problem.span

  def mask(x):
    first = jnp.maximum(i + M - span + 1, M - filled)
    reach = jnp.maximum(i + M - first, 0).astype(jnp.uint32)
    # A padding query sees no key.
    first = jnp.where(i < problem.T, first, problem.S + problem.n)
    first, reach, keys = (
      jnp.expand_dims(x, axis if n < 2 else 1 - axis)
      for n, x in enumerate((first, reach, j))
    )
    # 0 <= j - first <= reach.
    return jnp.where((keys - first).astype(jnp.uint32) <= reach, x, unseen)

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
  """Index of each weight for the dropout hash, uint32; see `fused`."""
  b, h, i, j = (x.astype(jnp.uint32) for x in (b, h, i, j))
  row = b * bits_ref[3] + bits_ref[2] + h
  return (row * problem.T + i) * problem.S + j


def chunk_rows(first: Any, problem: Problem) -> jax.Array:
  """Rows of r of the chunk that begins at row `first`: int32 [n]."""
  rows = first + jnp.arange(problem.n, dtype=jnp.int32)
  return jnp.clip(rows, 0, problem.S - 1)


class Positions:
  """Products of a query tile with r, chunk by chunk.

  The state is the product with the first chunk of the next tile of keys, and
  with `direct` also the rows of the second chunk.
  """

  def __init__(self, q, r_ref, p_ref, h, i0, problem):
    self.q, self.r_ref, self.p_ref = q, r_ref, p_ref
    self.h, self.problem = h, problem
    self.first = problem.T - i0 - problem.n

  def begin(self, J: Any) -> tuple[jax.Array, ...]:
    """The initial state, for the tile of keys J."""

    # In a loop, because Triton keeps a product's operands until the next loop.
    def step(J, _):
      return self._product(J, self.chunk(J))

    nothing = jnp.zeros([self.problem.n, self.problem.n], jnp.float32)
    first = jax.lax.fori_loop(J, J + 1, step, nothing)
    return (
      (first, self.chunk(J + 1)) if self.problem.tiling.direct else (first,)
    )

  def step(
    self, J: Any, state: Sequence[jax.Array]
  ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Products of tile J with its second and first chunk, and the new state."""
    first, *r = state
    second = self._product(J + 1, r[0] if r else self.chunk(J + 1))
    return second, first, (second, self.chunk(J + 2)) if r else (second,)

  def _its_rows(self, J):
    """Row indices of the first chunk of tile J: int32 [n]."""
    return chunk_rows(self.first + J * self.problem.n, self.problem)

  def chunk(self, J: Any) -> jax.Array:
    """Rows of r of the first chunk of tile J: [n, width]."""
    return load_rows(self.r_ref, None, self._its_rows(J), self.h, self.problem)

  def _product(self, J, r):
    bias = plgpu.load(self.p_ref.at[self._its_rows(J), self.h])
    return dot(self.q, r, 1, 1, self.problem) + bias[None, :]


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


def padded(
  problem: Problem, q: jax.Array, *others: jax.Array
) -> list[jax.Array]:
  """Pads the last axis of states to a power of two: q with ones, others with 0.

  Scores have no trace of the ones; of gradients, columns from K on are not used
  (but see `triton._distance_gradients`). The copies cost less than loads of
  less than 16 bytes would. XLA makes one kernel of those of one shape, as they
  read the same array of more than one element.
  """
  if problem.width == problem.K:
    return [q, *others]
  fill = jax.lax.optimization_barrier(jnp.arange(2, dtype=q.dtype))
  columns = 0, problem.width - problem.K, 0
  return [
    jax.lax.pad(x, fill[int(x is q)], [(0, 0, 0)] * (x.ndim - 1) + [columns])
    for x in (q, *others)
  ]


def call(
  kernel: Callable[..., None],
  problem: Problem,
  grid: tuple[int, ...],
  results: list[Any],
  *args: jax.Array,
  over: Sequence[jax.Array] = (),
) -> Any:
  """Calls a kernel over a grid, with unblocked arrays.

  The arrays `over` are its last arguments; the first results overwrite them.
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
  """The fastest tiling of a kernel on an H100 for states like q."""
  wide = q.shape[-1] > 64
  if q.dtype == jnp.float32:
    return Tiling(16, 1, 1) if wide else Tiling(32, 2, 1)
  # Two programs share the shared memory of a multiprocessor; where it does not
  # suffice, r is kept in registers, or there is only one pipeline stage.
  if not wide:
    return Tiling(64, 4, 2, direct=name == 'dq')
  return (
    Tiling(64, 4, 2, direct=True) if name == 'forward' else Tiling(64, 4, 1)
  )
