"""Fused relative attention in Pallas on Triton: NVIDIA GPUs from Ampere on.

Shapes
  B rows, T queries, M memory slots, S = M + T keys, H heads, K head width.
  A tile is n queries by n keys.

Inside the kernels, u is part of q, scores are not scaled yet, and p is [S, H],
the order in which it is computed. Computations on tiles are in `triton_tiles`.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.ops.kernels import base, fused
from txl_jax.ops.kernels import triton_tiles as tiles

_PROGRAMS = 264  # running at once: two per multiprocessor of an H100
_BUFFER = 80 << 20  # maximum bytes of the gradients by distance
_SMALL = 16 << 20  # bytes of them that stay in the cache of a large GPU
_UNROLLED = 4  # calls of the dq kernel, at most, that need no loop
_NARROW = 4 << 20  # bytes that an H100 copies in the time of a launch
_ALIGNED = 8  # tensor cores need no padding for multiples of 8 columns


def why_not(case: base.Case) -> str:
  """See `fused`."""
  if not case.device.ampere:
    return 'it needs an NVIDIA GPU of compute capability 8.0 or above'
  return base.why_not(case)


def _forward_kernel(
  q_ref, k_ref, v_ref, r_ref, p_ref, filled_ref, bits_ref,
  out_ref, logsum_ref,
  *, problem: tiles.Problem,
):  # fmt: skip
  """Output of queries i0 to i0 + n - 1 of one row and head."""
  n, T, M = problem.n, problem.T, problem.M
  scale = problem.scale * tiles.LOG2_E
  # The last queries see the most keys, so they start first.
  i0 = (pl.num_programs(0) - 1 - pl.program_id(0)) * n
  h, b = pl.program_id(1), pl.program_id(2)
  filled = filled_ref[b]
  i = i0 + jnp.arange(n, dtype=jnp.int32)
  q = tiles.load_rows(q_ref, b, tiles.within(i, T, n), h, problem)
  positions = tiles.Positions(q, r_ref, p_ref, h, i0, problem)

  def step(J, carry):
    total, top, out, *state = carry
    j0 = J * n
    j = j0 + jnp.arange(n, dtype=jnp.int32)
    keys = tiles.within(j, problem.S, n)
    k = tiles.load_rows(k_ref, b, keys, h, problem)
    score = tiles.dot(q, k, 1, 1, problem)
    second, first, state = positions.step(J, state)
    score = score + tiles.by_key(second, first, 1, J, problem)
    score = tiles.masked(score, tiles.UNSEEN, i, j, i0, j0, filled, problem, 1)
    higher = jnp.maximum(top, jnp.max(score, axis=1))
    shrink = jnp.exp2((top - higher) * scale)
    # Makes the weights 0 as long as a query has seen no key.
    level = jnp.maximum(higher, 0.5 * tiles.UNSEEN) * scale
    weights = tiles.scaled_exp2(score, scale, level[:, None], problem)
    total = total * shrink + jnp.sum(weights, axis=1)
    if problem.rate:
      index = tiles.hash_index(b, h, i[:, None], j[None, :], bits_ref, problem)
      keep = attention.keep(index, bits_ref, problem.rate)
      weights = jnp.where(keep, weights, 0)
    v = tiles.load_rows(v_ref, b, keys, h, problem)
    out = out * shrink[:, None] + tiles.dot(
      weights.astype(v.dtype), v, 1, 0, problem
    )
    return total, higher, out, *state

  nearest = jnp.maximum(i0 + M - problem.span + 1, M - filled) // n
  last = (jnp.minimum(i0 + n, T) - 1 + M) // n
  carry = (
    jnp.zeros([n], jnp.float32),
    jnp.full([n], tiles.UNSEEN, jnp.float32),
    jnp.zeros([n, problem.width], jnp.float32),
    *positions.begin(nearest),
  )
  total, top, out, *_ = jax.lax.fori_loop(nearest, last + 1, step, carry)
  # Dividing the output is less work than dividing the kept weights.
  out = out / (total * (1 - problem.rate))[:, None]
  tiles.store_rows(out_ref, b, i, h, out.astype(out_ref.dtype), problem)
  logsum = top * problem.scale + jnp.log(total)
  plgpu.store(logsum_ref.at[b, h, i], logsum, mask=i < T)


def _dq_kernel(
  first_ref, q_ref, k_ref, v_ref, r_ref, p_ref, filled_ref, bits_ref,
  dout_ref, out_ref, logsum_ref, _, _also_overwritten,
  dq_ref, delta_ref, by_distance_ref,
  *, problem: tiles.Problem,
):  # fmt: skip
  """dq, delta and gradients of the scores by distance, of a group of queries.

  The group starts at the query in first_ref; what is of others is unchanged.
  delta is, for each query, the sum of weight x gradient of the weight.
  Columns of by_distance [H, B, rows, columns] are rows of r after -T mod n
  others, with which each tile begins at a multiple of n.
  """
  n, T, M = problem.n, problem.T, problem.M
  scale = problem.scale * tiles.LOG2_E
  tile, h, b = pl.program_id(0), pl.program_id(1), pl.program_id(2)
  local = tile * n + jnp.arange(n, dtype=jnp.int32)
  i0 = pl.multiple_of(first_ref[0], n) + tile * n
  i = i0 + jnp.arange(n, dtype=jnp.int32)
  present = jnp.minimum(i, T - 1)
  filled = filled_ref[b]
  q = tiles.load_rows(q_ref, b, present, h, problem)
  dout = tiles.load_rows(dout_ref, b, present, h, problem)
  out = tiles.load_rows(out_ref, b, present, h, problem)
  logsum = plgpu.load(logsum_ref.at[b, h, present]) * tiles.LOG2_E
  delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=1)
  plgpu.store(delta_ref.at[b, h, i], delta, mask=i < T)
  # Some tiles of a group may be all padding.
  base = jnp.maximum(pl.cdiv(T, n) * n - i0 - n, 0)
  positions = tiles.Positions(q, r_ref, p_ref, h, i0, problem)
  y, start = tiles.chunk_indices(1, problem)

  def write(J, chunk):
    """Stores the gradient [n, n] for the first chunk of tile J."""
    columns = base + J * n + jnp.arange(n, dtype=jnp.int32)
    to = by_distance_ref.at[h, b, local[:, None], columns[None, :]]
    chunk = chunk.astype(by_distance_ref.dtype)
    inside = (columns < by_distance_ref.shape[-1])[None, :]
    inside &= (local < by_distance_ref.shape[-2])[:, None]
    plgpu.store(to, chunk, mask=inside)

  def step(J, carry):
    dq, before, *state = carry
    j0 = J * n
    j = j0 + jnp.arange(n, dtype=jnp.int32)
    keys = tiles.within(j, problem.S, n)
    k = tiles.load_rows(k_ref, b, keys, h, problem)
    score = tiles.dot(q, k, 1, 1, problem)
    v = tiles.load_rows(v_ref, b, keys, h, problem)
    dweights = tiles.dot(dout, v, 1, 1, problem)
    second, first, state = positions.step(J, state)
    score = score + tiles.by_key(second, first, 1, J, problem)
    weights = tiles.scaled_exp2(score, scale, logsum[:, None], problem)
    if problem.rate:
      index = tiles.hash_index(b, h, i[:, None], j[None, :], bits_ref, problem)
      keep = attention.keep(index, bits_ref, problem.rate)
      dweights = jnp.where(keep, dweights * (1 / (1 - problem.rate)), 0)
    dscore = weights * (dweights - delta[:, None])
    dscore = tiles.masked(dscore, 0, i, j, i0, j0, filled, problem, 1)
    dq = dq + tiles.dot(dscore.astype(k.dtype), k, 1, 0, problem)
    now = tiles.by_distance(dscore, J, problem).astype(k.dtype)
    chunk = jnp.where(y < start, before, now)
    write(J, chunk)
    dq = dq + tiles.dot(chunk, positions.chunk(J), 1, 0, problem)
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
    return dq + tiles.dot(chunk, positions.chunk(J), 1, 0, problem)

  dq = jax.lax.fori_loop(last + 1, last + 2, end, dq)
  chunks = by_distance_ref.shape[-1] // n
  jax.lax.fori_loop(-(base // n), nearest, write_nothing, None)
  jax.lax.fori_loop(last + 2, chunks - base // n, write_nothing, None)
  dq = (dq * problem.scale).astype(dq_ref.dtype)
  tiles.store_rows(dq_ref, b, i, h, dq, problem)


def _dkv_kernel(
  q_ref, k_ref, v_ref, r_ref, p_ref, filled_ref, bits_ref,
  dout_ref, logsum_ref, delta_ref,
  dk_ref, dv_ref, du_ref,
  *, problem: tiles.Problem,
):  # fmt: skip
  """dk, dv and the part of du of keys j0 to j0 + n - 1 of one row and head.

  Tiles are [keys, queries] here, as required by the products with dout and q.
  """
  n, T, M, S = problem.n, problem.T, problem.M, problem.S
  scale = problem.scale * tiles.LOG2_E
  j0 = pl.program_id(0) * n
  h, b = pl.program_id(1), pl.program_id(2)
  filled = filled_ref[b]
  j = j0 + jnp.arange(n, dtype=jnp.int32)
  keys = tiles.within(j, S, n)
  k = tiles.load_rows(k_ref, b, keys, h, problem)
  v = tiles.load_rows(v_ref, b, keys, h, problem)

  def step(I, carry):
    dk, dv, by_key = carry
    i0 = I * n
    i = i0 + jnp.arange(n, dtype=jnp.int32)
    present = tiles.within(i, T, n)
    q = tiles.load_rows(q_ref, b, present, h, problem)
    products = []
    for chunk in range(2):
      rows = tiles.chunk_rows(T - i0 - n + j0 + chunk * n, problem)
      r = tiles.load_rows(r_ref, None, rows, h, problem)
      by_distance = plgpu.load(p_ref.at[rows, h])[:, None]
      products.append(tiles.dot(r, q, 1, 1, problem) + by_distance)
    first, second = products
    score = tiles.dot(k, q, 1, 1, problem)
    score = score + tiles.by_key(second, first, 0, I, problem)
    logsum = plgpu.load(logsum_ref.at[b, h, present]) * tiles.LOG2_E
    weights = tiles.scaled_exp2(score, scale, logsum[None, :], problem)
    weights = tiles.masked(weights, 0, i, j, i0, j0, filled, problem, 0)
    dout = tiles.load_rows(dout_ref, b, present, h, problem)
    dweights = tiles.dot(v, dout, 1, 1, problem)
    kept = weights
    if problem.rate:
      index = tiles.hash_index(b, h, i[None, :], j[:, None], bits_ref, problem)
      keep = attention.keep(index, bits_ref, problem.rate)
      kept = jnp.where(keep, weights, 0)
      dweights = jnp.where(keep, dweights * (1 / (1 - problem.rate)), 0)
    dv = dv + tiles.dot(kept.astype(dout.dtype), dout, 1, 0, problem)
    delta = plgpu.load(delta_ref.at[b, h, present])
    dscore = weights * (dweights - delta[None, :])
    dk = dk + tiles.dot(dscore.astype(q.dtype), q, 1, 0, problem)
    return dk, dv, by_key + jnp.sum(dscore, axis=1)

  nearest = jnp.maximum(j0 - M, 0) // n
  last = jnp.minimum(j0 + n - 1 + problem.span - 1 - M, T - 1) // n
  last = jnp.where(j0 + n <= M - filled, -1, last)
  zeros = jnp.zeros([n, problem.width], jnp.float32)
  dk, dv, by_key = jax.lax.fori_loop(
    nearest, last + 1, step, (zeros, zeros, jnp.zeros([n], jnp.float32))
  )
  dk = (dk * problem.scale).astype(dk_ref.dtype)
  dv = (dv * (1 / (1 - problem.rate))).astype(dv_ref.dtype)
  tiles.store_rows(dk_ref, b, j, h, dk, problem)
  tiles.store_rows(dv_ref, b, j, h, dv, problem)
  # Keys that do not exist have the gradient 0.
  du = jnp.sum(by_key[:, None] * k.astype(jnp.float32), axis=0)
  columns = jnp.arange(problem.width, dtype=jnp.int32)
  place = du_ref.at[b, pl.program_id(0), h, columns]
  plgpu.store(place, du * problem.scale, mask=columns < problem.K)


def forward(
  *arrays: jax.Array, span: int, rate: float, interpret: bool | None = None
) -> tuple[jax.Array, jax.Array]:
  """See `fused`; `interpret` runs it as plain JAX, by default only on a CPU."""
  q, k, v, r, u, p, filled, bits = arrays
  tiling = tiles.tiling_for('forward', q)
  problem = tiles.problem_of(q, k, span, rate, tiling, interpret)
  B, T, H, _ = q.shape
  results = [(q.shape, q.dtype), ((B, H, T), jnp.float32)]
  q, k, v, r = tiles.padded(problem, fused.biased(q, u), k, v, r)
  return tiles.call(
    _forward_kernel,
    problem,
    (pl.cdiv(T, tiling.n), H, B),
    results,
    *(q, k, v, r, p.T, filled, bits),
  )


def backward(
  *arrays: jax.Array, span: int, rate: float, interpret: bool | None = None
) -> tuple[jax.Array, ...]:
  """See `fused`; dr is float32, a sum over the rows of the batch."""
  q, k, v, r, u, p, filled, bits, out, logsum, dout = arrays
  by_query, by_key = (tiles.tiling_for(name, q) for name in ('dq', 'dkv'))
  first = tiles.problem_of(q, k, span, rate, by_query, interpret)
  problem = tiles.problem_of(q, k, span, rate, by_key, interpret)
  B, S, H, K = k.shape
  parts = pl.cdiv(S, by_key.n)
  results = [(k.shape, k.dtype), (v.shape, v.dtype)]
  results += [((B, parts, H, K), jnp.float32)]
  states = fused.biased(q, u), k, v, r
  if dout.nbytes > _NARROW:  # else a copy costs more than short loads
    *states, dout = tiles.padded(problem, *states, dout)
  else:
    states = tiles.padded(problem, *states)
  q, k, v, r = states
  dq, delta, dr, dp = _distance_gradients(
    q, k, v, r, p, filled, bits, dout, out, logsum, first
  )
  dk, dv, du = tiles.call(
    _dkv_kernel,
    problem,
    (parts, H, B),
    results,
    *(q, k, v, r, p.T, filled, bits, dout, logsum, delta),
  )
  return dq, dk, dv, dr, jnp.sum(du, axis=(0, 1)), dp


def _distance_gradients(
  q, k, v, r, p, filled, bits, dout, out, logsum, problem
):
  """Computes dq, delta [B, H, T] (see `_dq_kernel`), dr and dp.

  For one group of queries at a time, the gradients of the scores by distance
  are stored and multiplied by the queries as matrices.
  """
  B, T, H, _ = q.shape
  S, K, n = problem.S, problem.K, problem.n
  before = -T % n
  columns = pl.cdiv(before + S, n) * n
  size = n * columns * q.dtype.itemsize
  group = n * _tiles_at_once(pl.cdiv(T, n), B * H, size)
  count = pl.cdiv(T, group)
  # Groups are multiples of the tile. Fewer rows need no copy of q, but XLA may
  # pad, so copy, what is stored for a product in bfloat16.
  exact = q.dtype == jnp.float32 or B * T % _ALIGNED == 0
  rows = T if count == 1 and exact else group
  # Heads come first, and rows and queries share one axis, so products need no
  # copy of large arrays. The first column of ones gives dp as that of dr.
  queries = q
  if q.shape[-1] == K:  # else `padded` has added ones
    ones = jnp.ones([B, T, H, _ALIGNED], q.dtype)
    queries = jnp.concatenate([q, ones], axis=-1)
  queries = jnp.pad(queries, [(0, 0), (0, count * rows - T), (0, 0), (0, 0)])
  queries = queries.reshape(B, count, rows, H, -1).transpose(1, 3, 0, 2, 4)
  queries = queries.reshape(count, H, B * rows, -1)

  def step(carry, x):
    (dq, delta, sums), (first, q_of_group) = carry, x
    dq, delta, by_distance = tiles.call(
      _dq_kernel,
      problem,
      (pl.cdiv(rows, n), H, B),
      [((H, B, rows, columns), q.dtype)],
      *(first, q, k, v, r, p.T, filled, bits, dout, out, logsum),
      over=[dq, delta],
    )
    sums += jnp.einsum(
      'hns,hnk->hsk',
      by_distance.reshape(H, B * rows, columns),
      q_of_group,
      precision='highest' if q.dtype == jnp.float32 else None,
      preferred_element_type=jnp.float32,
    )
    return (dq, delta, sums), None

  carry = (
    jax.lax.empty((B, T, H, K), q.dtype),
    jax.lax.empty((B, H, T), jnp.float32),
    jnp.zeros([H, columns, queries.shape[-1]], jnp.float32),
  )
  carry = matmul.varying_alike(carry, q)
  firsts = jnp.arange(count, dtype=jnp.int32)[:, None] * group
  # A loop keeps a training step from being one CUDA graph.
  unroll = count <= _UNROLLED
  carry, _ = jax.lax.scan(step, carry, (firsts, queries), unroll=unroll)
  dq, delta, sums = carry
  sums = sums[:, before : before + S]
  # In this order, XLA transposes the gradients of all layers in one kernel.
  dr = jnp.swapaxes(sums, 0, 1)[..., :K] * problem.scale
  return dq, delta, dr, sums[..., K] * problem.scale


def _tiles_at_once(wanted, programs, size):
  """Number of query tiles per call of the dq kernel, at most `wanted`.

  `programs` is rows x heads, `size` the buffer bytes per tile and program. The
  number returned minimises the time in which multiprocessors of a large GPU
  idle at the end of each call. Small problems are launched once.
  """
  if wanted * programs * size <= _SMALL:
    return wanted
  best, most = 1, 0.0
  for count in range(1, wanted + 1):
    if count > 1 and count * programs * size > _BUFFER:
      break
    calls, waves = pl.cdiv(wanted, count), pl.cdiv(count * programs, _PROGRAMS)
    busy = wanted * programs / (calls * waves * _PROGRAMS)
    if busy > most:
      best, most = count, busy
  return best
