"""Tiles of scores on a TPU: functions common to the kernels of `tpu`.

Shapes are those of `tpu`; a tile is n x n scores, of queries I n + a and keys
J n + x.

Query i and key j are at distance d = i + M - j, which is row S - 1 - d of r.
r and p are padded in front (`Task.lead`) so that tile (I, J) needs exactly two
chunks of n rows, c = J - I + (tiles of queries) - 1 and c + 1. Row a of

  z[a, y] = q_a . r_y + p_y   of the first chunk if y >= n - a, else the second

has the position score of key x at y = (x - a) modulo n, so row a of z must be
rotated right by a. The second chunk is the first of tile (I, J + 1), which
reuses its product: each tile computes one product with positions, not two. In
the backward pass, the gradients of one chunk from its two tiles of keys are
merged before their product.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from txl_jax import attention
from txl_jax.program import target_device

# Score of a hidden key, initial row maximum, logsum of padding queries. Even if
# scaled, HIDDEN is so far below LOWEST that hidden keys have weight exactly
# 0 in tiles before a row's first visible key.
HIDDEN = -3e38
LOWEST = -1e30
_HIGHEST = 1e30


class Task(NamedTuple):
  """Static parameters of a kernel."""

  B: int
  T: int
  M: int
  H: int
  K: int
  n: int
  span: int
  rate: float
  dtype: Any
  strided: bool  # whether the device can rotate each row by its own amount
  queries: int  # tiles of queries
  keys: int  # tiles of keys

  @property
  def S(self) -> int:
    """Number of keys."""
    return self.M + self.T

  @property
  def scale(self) -> float:
    """Scale of the scores, 1 / sqrt(K)."""
    return self.K**-0.5

  @property
  def lead(self) -> int:
    """Number of zero rows in front of r."""
    return self.queries * self.n - self.T + 1

  def nearby(self, I: int) -> range:
    """The tiles of keys within the span of the queries of tile I."""
    far = max(self.M + I * self.n - self.span + 1, 0) // self.n
    near = (self.M + I * self.n + self.n - 1) // self.n
    return range(far, min(near, self.keys - 1) + 1)

  @property
  def grid(self) -> tuple[int, int, int]:
    """Heads, rows, tiles of queries."""
    return self.H, self.B, self.queries

  @property
  def steps(self) -> int:
    """How many tiles of keys a tile of queries sees at most."""
    return max(len(self.nearby(I)) for I in range(self.queries))

  def bounds(self, filled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first tile of keys, int32 [B x queries], and the last [queries]."""
    ranges = [self.nearby(I) for I in range(self.queries)]
    first = jnp.asarray([f.start for f in ranges], jnp.int32)
    last = jnp.asarray([f.stop - 1 for f in ranges], jnp.int32)
    start = lax.div(self.M - filled.astype(jnp.int32), self.n)  # [B]
    return jnp.maximum(first[None], start[:, None]).reshape(-1), last


def task(
  q: jax.Array, k: jax.Array, span: int, rate: float, interpret: Any
) -> Task:
  """The Task of queries [B, T, H, K] and keys [B, S, H, K]."""
  B, T, H, K = q.shape
  S = k.shape[1]
  n = size(T, q.dtype)
  tiles = count(T, n), count(S, n)
  own = not interpret and strided()
  return Task(B, T, S - T, H, K, n, span, rate, q.dtype, own, *tiles)


def strided() -> bool:
  """Whether the TPU can rotate each row by its own amount, as from v5 on."""
  older = 'TPU v2', 'TPU v3', 'TPU v4'
  return not target_device.device().kind.startswith(older)


def size(T: int, dtype: Any) -> int:
  """The width n of a tile, given the number of queries.

  Rotations need multiples of 128. Larger tiles have less overhead; these are
  the largest that fit.
  """
  largest = 256 if jnp.dtype(dtype) == jnp.float32 else 512
  return count(count(T, count(T, largest)), 128) * 128


def count(length: int, n: int) -> int:
  """Number of tiles of n in a length; the last may be partly padding."""
  return -(-length // n)


def heads_first(x: jax.Array, n: int) -> jax.Array:
  """Transposes and pads [B, T or S, H, K] to [B, H, tiles x n, K]."""
  x = jnp.swapaxes(x, 1, 2)
  padding = count(x.shape[2], n) * n - x.shape[2]
  return jnp.pad(x, [(0, 0), (0, 0), (0, padding), (0, 0)])


def heads_last(x: jax.Array, length: int) -> jax.Array:
  """The inverse of `heads_first`."""
  return jnp.swapaxes(x[:, :, :length], 1, 2)


def positions(
  r: jax.Array, p: jax.Array, t: Task
) -> tuple[jax.Array, jax.Array]:
  """Pads r to [H, chunks x n, K] and p to [H, chunks, n], for all tiles."""
  chunks = t.queries + t.keys
  rows = t.lead, chunks * t.n - t.S - t.lead
  # Rows are added where they are no part of the layout's tiles.
  r = jnp.swapaxes(jnp.pad(r, [rows, (0, 0), (0, 0)]), 0, 1)
  return r, jnp.pad(p, [(0, 0), rows]).reshape(t.H, chunks, t.n)


def by_query(logsum: jax.Array, mean: jax.Array, t: Task) -> jax.Array:
  """Packs two [B, H, T] as rows 0 and 1 of [B, H, tiles of queries, 8, n]."""
  padding = t.queries * t.n - t.T
  ends = [(0, 0), (0, 0), (0, padding)]
  # Padding queries give weight 0 to all keys.
  logsum = jnp.pad(logsum, ends, constant_values=_HIGHEST)
  both = jnp.stack([logsum, jnp.pad(mean, ends)], axis=2)
  both = both.reshape(t.B, t.H, 2, -1, t.n).swapaxes(2, 3)
  return jnp.pad(both, [(0, 0)] * 3 + [(0, 6), (0, 0)])


def dot(x: jax.Array, y: jax.Array, x_axis: int, y_axis: int) -> jax.Array:
  """Product of two tiles, contracting one axis of each, in float32."""
  full = x.dtype == jnp.float32
  return lax.dot_general(
    *(x, y, (((x_axis,), (y_axis,)), ((), ()))),
    precision=lax.Precision.HIGHEST if full else None,
    preferred_element_type=jnp.float32,
  )


def _axes(n):
  """Row and column index of each entry of a tile."""
  a, x = (lax.broadcasted_iota(jnp.int32, (n, n), i) for i in range(2))
  return a, x


def seam(
  n: int, first: jax.Array, second: jax.Array, flipped: bool = False
) -> jax.Array:
  """Merges the products with two chunks into z; rows may be `flip`ped."""
  a, y = _axes(n)
  a = a ^ 7 if flipped else a
  return jnp.where(y >= n - a, first, second)


def scores(
  t: Task, I: Any, J: Any, filled: Any, content: jax.Array, z: jax.Array
) -> jax.Array:
  """Scores of a tile; HIDDEN where a key is hidden."""
  a, x = _axes(t.n)
  column = lax.broadcasted_iota(jnp.int32, (1, t.n), 1)
  exists = column >= t.M - filled - J * t.n
  hidden = jnp.where(exists, 0, HIDDEN)
  score = (content + hidden + rotate(z, t.strided)) * t.scale
  d = (I - J) * t.n + t.M + a - x
  visible = (d >= 0) & (d < t.span) if t.span < t.S else d >= 0
  return jnp.where(visible, score, HIDDEN)


def rotate(z: jax.Array, strided: bool) -> jax.Array:
  """Rotates row a of z [n, any] to the right by a."""
  if strided:
    return pltpu.roll(z, 0, 1, stride=1, stride_axis=0)
  return _rotate_by_bits(z, lambda by: by)


def rotate_back(x: jax.Array, strided: bool) -> jax.Array:
  """The inverse of `rotate`, with its rows as `flip` leaves them.

  Row s of eight is then row 7 - s, so that one after the other rotates by one
  less to the left: by one more to the right, as devices can.
  """
  if not strided:
    return _rotate_by_bits(x, lambda by: -by)
  width = x.shape[1]

  def rolled(row, x):
    return pltpu.roll(x, -(row + 7) % width, 1, stride=1, stride_axis=0)

  return _by_eight(rolled, flip(x, strided))


def flip(x: jax.Array, strided: bool) -> jax.Array:
  """Reverses each eight rows of x, if `rotate_back` does so; its inverse."""
  if not strided:
    return x
  s = lax.broadcasted_iota(jnp.int32, (8, x.shape[1]), 0)
  take = functools.partial(
    jnp.take_along_axis, indices=7 - s, axis=0, mode='promise_in_bounds'
  )
  return _by_eight(lambda _, x: take(x), x)


def _by_eight(function, x):
  """Applies function(row, x[row : row + 8]) to each eight rows, a register."""
  rows = range(0, x.shape[0], 8)
  return jnp.concatenate([function(row, x[row : row + 8]) for row in rows])


def _rotate_by_bits(x, right):
  """Rotates row a to the right by right(a)."""
  rolled = lambda x, a: pltpu.roll(x, right(a) % x.shape[1], 1)
  a = lax.broadcasted_iota(jnp.int32, x.shape, 0)
  for bit in (1, 2, 4):
    x = jnp.where(a & bit != 0, rolled(x, bit), x)
  # Beyond that, the eight rows of a register rotate together.
  return _by_eight(lambda row, x: rolled(x, row) if row else x, x)


def keep(t: Task, h: Any, b: Any, I: Any, J: Any, bits: Any) -> jax.Array:
  """Dropout mask of a tile of probabilities (`attention.keep`)."""
  a, x = _axes(t.n)
  row = b * bits[3] + bits[2] + h
  corner = (row * t.T + I * t.n) * t.S + J * t.n

  def as_uint32(x):
    return lax.bitcast_convert_type(x, jnp.uint32)

  both: Any = [as_uint32(jnp.full([t.n, t.n], bits[i])) for i in range(2)]
  return attention.keep(as_uint32(corner + a * t.S + x), both, t.rate)
