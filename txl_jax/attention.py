"""Relative attention with memory (Dai et al. 2019, Section 3.3, Appendix B).

Pure functions on plain arrays; this file imports only jax, so that it can be
copied into any JAX project.

Shapes
  B batch, T queries (the current segment), M memory slots, S = M + T keys,
  H heads, K head width, D model width.

Query i of the segment and key j of concat(memory, segment) are at distance
d = i + M - j. With q, k, v the projected states, r_d = W_r sinusoid(d), and
the two global biases u and v_bias (the paper's u and v),

  score(i, j) = ((q_i + u) . k_j + (q_i + v_bias) . r_d) / sqrt(K)
  out_i       = sum_j softmax_j(score(i, j)) v_j   over the visible j.

Key j is visible to query i iff 0 <= d < span and j >= M - filled. This rule
covers causality, partly filled memory and same_length.

Arguments of the wrong kind or shape raise a ValueError that names them. Nothing
depends on implicit promotion of ranks or dtypes, which a program may forbid.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import core


def update_memory(
  memory: jax.Array, states: jax.Array, lengths: jax.Array | None = None
) -> jax.Array:
  """The memory of one layer after a segment: its last M states.

  Memory is [B, M, ...] before and after; `states`, the layer's input for the
  segment, is [B, T, ...]. lengths, int [B], is the number of real states in
  each row; None means no padding. No gradient flows through the result. Raises
  ValueError for other shapes, or a memory of integers for states of floats.
  """
  check_kind('memory', memory)
  rest = 'DEFGHIJK'[: max(memory.ndim - 2, 0)]  # letters for a state's axes
  sizes = hold(('memory', memory, 'BM' + rest), ('states', states, 'BT' + rest))
  for kind in 'complexfloating', 'inexact', 'number':
    if jnp.issubdtype(states.dtype, getattr(jnp, kind)):
      check_kind('memory', memory, kind)
  if lengths is not None:
    hold(('lengths', lengths, 'B'), kind='integer', **sizes)
  M, T = memory.shape[1], states.shape[1]
  memory, states = jax.lax.stop_gradient((memory, states.astype(memory.dtype)))
  if lengths is None:
    if T >= M:
      return states[:, T - M :]
    return jnp.concatenate([memory[:, T:], states], axis=1)
  both = jnp.concatenate([memory, states], axis=1)  # [B, M + T, ...]
  last = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=M)
  return jax.vmap(last)(both, lengths)


def check_kind(name: str, x: Any, kind: str = '') -> None:
  """ValueError unless x is an array, of a kind such as 'floating' or 'bool'."""
  try:
    fits = jnp.issubdtype(x.dtype, getattr(jnp, kind or 'generic'))
  except (AttributeError, TypeError):  # a list, or an array of another library
    raise ValueError(f'{name} is {type(x)}; allowed: an array') from None
  if not fits:
    raise ValueError(f'{name} is {x.dtype}; allowed: {kind}')


def check_int(name: str, n: Any, least: int = 0) -> int:
  """Returns n; ValueError unless it is an int from `least` on, not traced."""
  try:
    found = least - 1 if isinstance(n, bool) else n.__index__()
  except (AttributeError, TypeError):
    found = least - 1
  if found < least:
    raise ValueError(f'{name} is {n!s:.80}; allowed: an int, at least {least}')
  return found


def hold(*arguments: Any, kind: str = '', **sizes: int) -> dict[str, int]:
  """Checks kinds and shapes: ('q', q, 'BTHK') requires q to be [B, T, H, K].

  A letter stands for one size throughout: the one in `sizes`, else that of the
  first argument that uses it. Returns the sizes of all letters. Raises a
  ValueError with the name, the shape and the allowed shape of an argument.
  """
  for name, x, letters in arguments:
    check_kind(name, x, kind)
    shape = jnp.shape(x)
    axes = dict(zip(letters, shape)) if len(shape) == len(letters) else None
    known = {a: sizes[a] for a in letters if a in sizes}
    if axes is None or any(axes[a] != n for a, n in known.items()):
      where = ', '.join(f'{a} = {n}' for a, n in known.items())
      raise ValueError(
        f'{name} is {list(shape)}; allowed: [{", ".join(letters)}]'
        f'{" with " if where else ""}{where}'
      )
    sizes |= axes
  return sizes


def hold_scored(
  q: Any, k: Any, r: Any, u: Any, v_bias: Any, b: Any
) -> dict[str, Any]:
  """Checks the arguments of `relative_scores`; returns their sizes."""
  sizes = hold(('q', q, 'BTHK'), ('k', k, 'BSHK'), kind='floating')
  S, T = sizes['S'], sizes['T']
  if S < T:
    raise ValueError(
      f'k is {list(k.shape)}; allowed: [B, S, H, K] with S at least T = {T}, '
      'the memory first'
    )
  rows = S + T - 1 if getattr(r, 'shape', ())[:1] == (S + T - 1,) else S
  table = ('r', r, 'SHK'), ('u', u, 'HK'), ('v_bias', v_bias, 'HK')
  table += () if b is None else (('b', b, 'SH'),)
  hold(*table, kind='floating', **(sizes | {'S': rows}))
  return sizes


def widened(dtype: Any) -> jnp.dtype:
  """Float32, or a wider floating dtype itself."""
  return jnp.dtype(dtype if jnp.finfo(dtype).bits > 32 else jnp.float32)


def distances(
  S: int, clamp_len: int = 0, dtype: Any = jnp.float32, after: int = 0
) -> jax.Array:
  """Distances of the rows of the position table, farthest first.

  Returns S - 1, ..., 1, 0, ..., -after, [S + after], with S = M + T; absolute
  values are clipped to clamp_len unless it is 0. Queries that see later keys
  need `after` = T - 1. The dtype is floating; bfloat16 cannot represent all
  distances above 256, float16 above 2,048. ValueError for counts not integers.
  """
  S, after = check_int('S', S), check_int('after', after)
  check_int('clamp_len', clamp_len, least=-1)
  d = jnp.arange(S - 1, -1 - after, -1, dtype=dtype)
  return jnp.clip(d, -clamp_len, clamp_len) if clamp_len > 0 else d


def frequencies(D: int, single: bool = False) -> tuple[float, ...]:
  """Frequencies w_k = 10000^(-2k/D), k = 0 .. D/2 - 1, of `sinusoid`.

  With `single` they match the float32 arithmetic of the published code, which
  rounds the exponent, the power and its inverse: at distances in the thousands,
  an error in the last place changes the fourth digit of a sine. They are
  computed on the host, because powers differ between devices.
  """
  if not single:
    return tuple(10000.0 ** (-2 * k / D) for k in range(D // 2))
  powers = (_single(10000.0 ** _single(2 * k / D)) for k in range(D // 2))
  return tuple(_single(1 / x) for x in powers)


def _single(x):
  """Rounds a float to float32."""
  return struct.unpack('f', struct.pack('f', x))[0]


def sinusoid(d: jax.Array, D: int) -> jax.Array:
  """Sinusoidal position encoding, sines first, not interleaved.

  Returns concat(sin(d w), cos(d w)), [S, D], for distances d [S] and
  w_k = 10000^(-2k/D), k = 0 .. D/2 - 1, in the dtype of d, or JAX's default
  float for integers. Raises ValueError if D is odd or no int, or d is not [S].
  """
  if check_int('D', D) % 2:
    raise ValueError(f'sinusoid needs an even width, got {D}')
  d = jnp.asarray(d) if isinstance(d, list | tuple) else d
  hold(('d', d, 'S'))
  exact = jnp.issubdtype(d.dtype, jnp.integer)
  check_kind('d', d, 'integer' if exact else 'floating')
  d = jnp.asarray(d, float if exact else None)
  w = jnp.array(frequencies(D, d.dtype == jnp.float32), d.dtype)
  angle = d[:, None] * w[None]  # [S, D / 2]
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def relative_shift(x: jax.Array) -> jax.Array:
  """Shifts row i of x left by T - 1 - i: from distances to key positions.

  x and the result are [..., T, S] with T <= S. Column c of x belongs to
  distance S - 1 - c in every row; column j of the result belongs to key j, at
  distance i + S - T - j from query i (paper, Appendix B). Padding one column
  and reading the rows at a stride of S instead of S + 1 avoids a gather.
  Entries with j > i + S - T wrap around and are always masked.
  """
  check_kind('x', x)
  if x.ndim < 2 or x.shape[-2] > x.shape[-1]:
    raise ValueError(f'x is {list(x.shape)}; allowed: [..., T, S] with T <= S')
  *lead, T, S = x.shape
  x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])  # [..., T, S + 1]
  x = x.reshape(*lead, T * (S + 1))[..., T:]
  return x.reshape(*lead, T, S)


def visibility(
  T: int, M: int, filled: jax.Array | None = None, span: int | None = None
) -> jax.Array:
  """Attention mask: query i sees key j iff 0 <= d < span and j >= M - filled.

  `filled`, int [B], is the number of filled memory slots of each row (always
  the last slots); None means all. A negative value -n hides the memory and the
  first n tokens of the segment (left padding). A query sees at most `span`
  keys, including itself: None means all M + T; with M or M + 1, every query
  sees equally many (same_length). Returns bool [B, T, S], or [1, T, S] if
  filled is None. Raises ValueError for counts that are not integers.
  """
  T, M = check_int('T', T), check_int('M', M)
  if span is not None and not isinstance(span, core.Tracer):
    check_int('span', span)
  i = jnp.arange(T)[:, None]
  j = jnp.arange(M + T)[None]
  d = i + M - j  # [T, S]
  visible = (d >= 0) & (d < (M + T if span is None else span))
  if filled is None:
    return visible[None]
  hold(('filled', filled, 'B'), kind='integer')
  filled = filled.astype(j.dtype)[:, None, None]  # in int8, 200 - 3 is -59
  return visible[None] & (j[None] >= M - filled)


def content_scores(
  q: jax.Array, k: jax.Array, einsum: Callable[..., Any] = jnp.einsum
) -> jax.Array:
  """Scores q_i . k_j / sqrt(K), without positions (Vaswani et al. 2017).

  Queries are [B, T, H, K], keys [B, S, H, K], scores [B, H, T, S]. Scores are
  float32 or wider: rounding a score of 10 to bfloat16 changes it by up to 0.03,
  and its exponential by 3 %. `einsum` computes the product.
  """
  hold(('q', q, 'BTHK'), ('k', k, 'BSHK'), kind='floating')
  wide = widened(q.dtype)
  scaled = q * q.shape[-1] ** -0.5
  product = functools.partial(einsum, preferred_element_type=wide)
  return product('bthk,bshk->bhts', scaled, k)


def relative_scores(
  q: jax.Array,
  k: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  b: jax.Array | None = None,
  einsum: Callable[..., Any] = jnp.einsum,
  shift: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
  """Attention scores by content and by distance, scaled by 1 / sqrt(K).

  Args:
    q: [B, T, H, K] queries.
    k: [B, S, H, K] keys, memory first.
    r: [S, H, K] projected position table, farthest first (`distances`); or
      [S + T - 1, H, K], with distances down to 1 - T for keys after a query.
    u: [H, K] content bias.
    v_bias: [H, K] position bias (the paper's v).
    b: [S, H], or [S + T - 1, H] like r: a bias added to the score of each
      distance before scaling; None adds nothing.
    einsum: computes the two products.
    shift: computes `relative_shift`; entries that it wraps around may differ.

  Returns:
    [B, H, T, S], float32 or wider, as from `content_scores`. If r has S rows,
    scores of keys after a query are meaningless and must be masked.

  Raises:
    ValueError: an argument has the wrong shape, or is not floating.
  """
  hold_scored(q, k, r, u, v_bias, b)
  # With heads before positions, the products are batched matrix products.
  q, k = jnp.swapaxes(q, 1, 2), jnp.swapaxes(k, 1, 2)  # [B, H, T or S, K]
  r = jnp.swapaxes(r, 0, 1)  # [H, S, K]
  # Scaling the queries takes T K multiplications instead of T S.
  scale = q.shape[-1] ** -0.5
  wide = widened(q.dtype)
  product = functools.partial(
    einsum, 'bhtk,bhsk->bhts', preferred_element_type=wide
  )
  content = product((q + u[None, :, None]) * scale, k)
  # Broadcasting the small table over the batch keeps B the first axis of the
  # product, which avoids a transpose of the large scores [B, H, T, S].
  r = jnp.broadcast_to(r, (q.shape[0], *r.shape))
  position = product((q + v_bias[None, :, None]) * scale, r)
  if b is not None:
    position += (b.T * scale)[None, :, None].astype(wide)  # [1, H, 1, S]
  shifted = (shift or relative_shift)(position)
  return content + shifted[..., : k.shape[2]]


def dropout(
  x: jax.Array,
  rate: float,
  key: jax.Array | None,
  shared: tuple[int, ...] = (),
) -> jax.Array:
  """Inverted dropout: zeroes an entry with probability rate, scales the rest.

  The mask depends only on the key and on an entry's index in the array, not on
  its sharding under jax.jit. (Under jax.shard_map the array is one shard: fold
  the shard's index into the key.) The mask is never stored: the backward pass
  recomputes it.

  Args:
    x: any shape, floating, else a ValueError.
    rate: a Python float in [0, 1), else a ValueError; accurate to 2^-32. 0
      returns x itself.
    key: a PRNG key, or its `dropout_bits`; may be None if rate is 0.
    shared: axes along which entries share one mask: (1,) for [B, T, D] drops a
      feature at all positions of a row or at none.
  """
  check_kind('x', x, 'floating')
  if threshold(rate) == 0:
    return x

  def drop(x, bits):
    shape = [1 if axis in shared else n for axis, n in enumerate(x.shape)]
    index = jnp.zeros(shape, jnp.uint32)
    for axis, n in enumerate(shape):
      index = index * n + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    # bfloat16 has too few digits for the scale itself.
    wide = x.astype(widened(x.dtype))
    scaled = (wide / (1 - rate)).astype(x.dtype)
    return jnp.where(keep(index, bits, rate), scaled, 0)

  # The backward pass recomputes the mask from the bits.
  return jax.checkpoint(drop, prevent_cse=False)(x, dropout_bits(key))


def dropout_bits(key: Any) -> jax.Array:
  """Random bits for `keep`, drawn from a PRNG key: uint32 [2].

  An array uint32 [2] is returned unchanged, so bits for many calls can be drawn
  at once; a raw threefry key from `jax.random.PRNGKey` also has this form.
  Other arrays, such as a raw rbg key, uint32 [4], raise a ValueError.
  """
  kind: Any = getattr(key, 'dtype', None)
  shape = getattr(key, 'shape', None)
  if kind == jnp.uint32 and shape == (2,):
    return key
  if shape != () or not jnp.issubdtype(kind, jax.dtypes.prng_key):
    shown = f'{key!s:.80}' if kind is None else f'{kind} {list(shape or ())}'
    allowed = 'one jax.random.key, or uint32 [2]'
    raise ValueError(f'dropout_key is {shown}; allowed: {allowed}')
  return jax.random.bits(key, [2], jnp.uint32)


def keep(index: jax.Array, bits: jax.Array, rate: float) -> jax.Array:
  """Dropout mask for uint32 indices of any shape: True where kept.

  Each index is hashed with `bits`, uint32 [2]. The hash is triple32
  (C. Wellons, hash-prospector), with bits[0] added before the first round and
  bits[1] mixed in after it. Compared with a mask from `jax.random`, this takes
  no memory and a tenth of the time: the compiler, or a kernel, fuses it into
  the operation that uses it. Raises ValueError for indices of another dtype.
  """
  check_kind('index', index, 'uint32')
  x = index + bits[0]
  x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB) ^ bits[1]
  x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
  x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
  x = x ^ (x >> 14)
  return x >= jnp.uint32(threshold(rate))


def threshold(rate: float) -> int:
  """The uint32 threshold: an entry whose hash is below it is dropped.

  Raises ValueError if the rate is not in [0, 1), or is traced.
  """
  try:
    limit = -1 if isinstance(rate, str | bytes) else round(float(rate) * 2**32)
  except (TypeError, ValueError, OverflowError):  # traced, or not a number
    limit = -1
  if not 0 <= limit < 2**32:
    raise ValueError(f'dropout rate is {rate}; allowed: a float in [0, 1)')
  return limit


def probabilities(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Softmax over the visible keys, [B, H, T, S]; 0 if no key is visible.

  Scores [B, H, T, S] and the mask, bool [B or 1, T, S], are as for `attend`.
  """
  weights, total = exponentials(scores, mask)
  return weights / total


def exponentials(
  scores: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Numerator exp(score - row maximum) and denominator of the softmax.

  Their shapes are [B, H, T, S] and [B, H, T, 1]. If no key is visible, the
  exponentials are 0 and the denominator is 1. ValueError for other arguments.
  """
  sizes = hold(('scores', scores, 'BHTS'), kind='floating')
  rows = 1 if getattr(mask, 'shape', ())[:1] == (1,) else sizes['B']
  hold(('mask', mask, 'BTS'), kind='bool', **(sizes | {'B': rows}))
  return softmax_terms(jnp.where(mask[:, None], scores, -jnp.inf))


def softmax_terms(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
  """`exponentials` of scores [..., T, S] that are -inf where hidden."""
  least = jnp.finfo(scores.dtype).min  # finite: -inf - (-inf) would be NaN
  top = jnp.max(scores, axis=-1, keepdims=True, initial=least)
  weights = jnp.exp(scores - jax.lax.stop_gradient(top))
  total = jnp.sum(weights, axis=-1, keepdims=True)
  return weights, jnp.where(total == 0, 1, total)


def attend(
  scores: jax.Array,
  v: jax.Array,
  mask: jax.Array,
  *,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  einsum: Callable[..., Any] = jnp.einsum,
) -> jax.Array:
  """Sum of the values, weighted by softmax(scores): [B, T, H, K].

  Scores are [B, H, T, S], values [B, S, H, K], the mask bool [B or 1, T, S]
  from `visibility`. Dropout needs a key. The result has the floating dtype of
  v and is 0 for a query that sees no key. Hidden keys have no effect, but their
  values (and, for gradients, the keys too) must be finite, since 0 times NaN is
  NaN. `einsum` computes the product.
  """
  hold(('scores', scores, 'BHTS'), ('v', v, 'BSHK'), kind='floating')
  weights, total = exponentials(scores, mask)
  return weighted_sum(weights, total, v, dropout_rate, dropout_key, einsum)


def summable(v: jax.Array) -> jax.Array:
  """Casts float16 values to float32 for summing; ValueError for integers."""
  check_kind('v', v, 'floating')
  narrow = jnp.finfo(v.dtype).max < jnp.finfo(jnp.bfloat16).max
  return v.astype(jnp.float32) if narrow else v


def weighted_sum(
  weights: jax.Array,
  total: jax.Array,
  v: jax.Array,
  rate: float,
  key: jax.Array | None,
  einsum: Callable[..., Any] = jnp.einsum,
) -> jax.Array:
  """`attend`, given the results of `exponentials`."""
  wide = summable(v)
  weights = dropout(weights.astype(wide.dtype), rate, key)
  out = einsum('bhts,bhsk->bhtk', weights, jnp.swapaxes(wide, 1, 2))
  # Normalising the output takes T K divisions; the weights would take T S.
  out = out.astype(widened(out.dtype)) / total
  return jnp.swapaxes(out.astype(v.dtype), 1, 2)


def relative_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  mask: jax.Array,
  b: jax.Array | None = None,
  *,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Multi-head relative attention over concat(memory, segment).

  q, k, r, u, v_bias and b are as for `relative_scores`; v, the mask, the
  dropout options and the result (before the output projection) as for `attend`.
  If the mask shows keys after a query, r must have S + T - 1 rows. The caller
  must stop gradients into the states in memory. Raises ValueError for a wrong
  shape or kind, or a rate not in [0, 1).
  """
  hold(('v', v, 'BSHK'), **hold_scored(q, k, r, u, v_bias, b))
  scores = relative_scores(q, k, r, u, v_bias, b)
  return attend(
    scores, v, mask, dropout_rate=dropout_rate, dropout_key=dropout_key
  )
