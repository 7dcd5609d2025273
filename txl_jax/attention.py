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

Key j is visible to query i iff 0 <= d < span and j >= M - filled. This one
rule covers causality, partly filled memory, and same_length.

Arrays of other shapes raise a ValueError that names the argument.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def update_memory(
  memory: jax.Array, states: jax.Array, lengths: jax.Array | None = None
) -> jax.Array:
  """The memory of one layer after a segment: the last M real states.

  Memory is [B, M, ...] before and after; the states of the segment, which the
  layer has read, are [B, T, ...]; lengths, int32 [B], says how many of the T
  are real, None if all are. No gradient flows back through the new memory.
  ValueError: an argument has another shape.
  """
  rest = 'DEFGHIJK'[: max(memory.ndim - 2, 0)]  # the axes of a state
  sizes = hold(('memory', memory, 'BM' + rest), ('states', states, 'BT' + rest))
  if lengths is not None:
    hold(('lengths', lengths, 'B'), **sizes)
  M, T = memory.shape[1], states.shape[1]
  memory, states = jax.lax.stop_gradient((memory, states.astype(memory.dtype)))
  if lengths is None:
    if T >= M:
      return states[:, T - M :]
    return jnp.concatenate([memory[:, T:], states], axis=1)
  both = jnp.concatenate([memory, states], axis=1)  # [B, M + T, ...]
  last = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=M)
  return jax.vmap(last)(both, lengths)


def hold(*arguments: tuple[str, Any, str], **sizes: int) -> dict[str, int]:
  """Checks shapes given in letters: ('q', q, 'BTHK') is q [B, T, H, K].

  A letter is one size throughout: that in `sizes`, or of the first argument
  that has it. The sizes of all letters are returned. ValueError names an
  argument of another shape, what was found and what is allowed.
  """
  for name, x, letters in arguments:
    shape = jnp.shape(x)
    found = dict(zip(letters, shape)) if len(shape) == len(letters) else None
    known = {a: sizes[a] for a in letters if a in sizes}
    if found is None or any(found[a] != n for a, n in known.items()):
      where = ', '.join(f'{a} = {n}' for a, n in known.items())
      raise ValueError(
        f'{name} is {list(shape)}; allowed: [{", ".join(letters)}]'
        f'{" with " if where else ""}{where}'
      )
    sizes |= found
  return sizes


def hold_scored(
  q: jax.Array,
  k: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  b: jax.Array | None,
) -> dict[str, int]:
  """Checks the arguments of `relative_scores`; returns their sizes."""
  sizes = hold(('q', q, 'BTHK'), ('k', k, 'BSHK'))
  S, T = sizes['S'], sizes['T']
  if S < T:
    raise ValueError(
      f'k is {list(k.shape)}; allowed: [B, S, H, K] with S at least T = {T}, '
      'the memory first'
    )
  rows = S + T - 1 if jnp.shape(r)[:1] == (S + T - 1,) else S
  table = ('r', r, 'SHK'), ('u', u, 'HK'), ('v_bias', v_bias, 'HK')
  table += () if b is None else (('b', b, 'SH'),)
  hold(*table, **(sizes | {'S': rows}))
  return sizes


def distances(
  S: int, clamp_len: int = 0, dtype: Any = jnp.float32, after: int = 0
) -> jax.Array:
  """Distances of the S = M + T rows of the position table, farthest first.

  [S + after]: S - 1, ..., 1, 0, ..., -after, the size of each at most clamp_len
  unless that is 0. Queries that see keys after them need `after` = T - 1. The
  dtype is floating; bfloat16 cannot tell distances above 256 apart, float16
  above 2,048.
  """
  d = jnp.arange(S - 1, -1 - after, -1, dtype=dtype)
  return jnp.clip(d, -clamp_len, clamp_len) if clamp_len > 0 else d


def frequencies(D: int, single: bool = False) -> tuple[float, ...]:
  """w_k = 10000^(-2k/D), k = 0 .. D/2 - 1, of `sinusoid`.

  With `single`, as the published code computes them in float32, which rounds
  the exponent, the power and its inverse: at distances in the thousands an
  error in the last place changes the fourth digit of a sine. They are not
  computed on the device, since powers differ between devices.
  """
  if not single:
    return tuple(10000.0 ** (-2 * k / D) for k in range(D // 2))
  powers = (_single(10000.0 ** _single(2 * k / D)) for k in range(D // 2))
  return tuple(_single(1 / x) for x in powers)


def _single(x):
  """A float rounded to float32."""
  return struct.unpack('f', struct.pack('f', x))[0]


def sinusoid(d: jax.Array, D: int) -> jax.Array:
  """Sinusoidal position encoding, sines first, not interleaved.

  concat(sin(d w), cos(d w)) with w_k = 10000^(-2k/D), k = 0 .. D/2 - 1, for
  distances d [S]; the result is [S, D] in the dtype of d, or JAX's default
  float if they are integers. ValueError if D is odd.
  """
  if D % 2:
    raise ValueError(f'sinusoid needs an even width, got {D}')
  d = jnp.asarray(d) * 1.0  # frequencies are no integers
  w = jnp.array(frequencies(D, d.dtype == jnp.float32), d.dtype)
  angle = d[:, None] * w  # [S, D / 2]
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def relative_shift(x: jax.Array) -> jax.Array:
  """Moves row i of x left by T - 1 - i: from distances to key positions.

  Column c of the input belongs to distance S - 1 - c, whatever the row.
  Column j of the output belongs to key j, at distance i + S - T - j from
  query i (paper, Appendix B). Padding one column and reading the rows at a
  stride of S instead of S + 1 does this without a gather. Entries with
  j > i + S - T wrap around and are meaningless; no visibility rule shows them.
  x is [..., T, S] with T <= S, and so is the output.
  """
  if x.ndim < 2 or x.shape[-2] > x.shape[-1]:
    raise ValueError(f'x is {list(x.shape)}; allowed: [..., T, S] with T <= S')
  *lead, T, S = x.shape
  x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, 0), (1, 0)])  # [..., T, S + 1]
  x = x.reshape(*lead, T * (S + 1))[..., T:]
  return x.reshape(*lead, T, S)


def visibility(
  T: int, M: int, filled: jax.Array | None = None, span: int | None = None
) -> jax.Array:
  """Which keys each query may look at: 0 <= d < span and j >= M - filled.

  `filled`, int [B], is how many memory slots of each row, counted from the
  last, hold real states; None if all do. -n hides all of them and the first n
  of the segment, its padding. A query sees at most `span` keys, itself
  included: None is all M + T; M or M + 1 gives every query the same span. The
  result is bool [B, T, S], or [1, T, S] if filled is None.
  ValueError: filled has another shape.
  """
  if filled is not None:
    hold(('filled', filled, 'B'))
  i = jnp.arange(T)[:, None]
  j = jnp.arange(M + T)[None, :]
  d = i + M - j  # [T, S]
  visible = (d >= 0) & (d < (M + T if span is None else span))
  if filled is None:
    return visible[None]
  return visible[None] & (j >= M - filled[:, None, None])


def content_scores(
  q: jax.Array, k: jax.Array, einsum: Callable[..., Any] = jnp.einsum
) -> jax.Array:
  """q_i . k_j / sqrt(K), attention without positions (Vaswani et al. 2017).

  Queries are [B, T, H, K], keys [B, S, H, K], the scores [B, H, T, S], float32
  or wider: a bfloat16 score of 10 would be off by up to 0.03, which the
  exponential turns into an error of 3 %. `einsum` computes the product.
  """
  hold(('q', q, 'BTHK'), ('k', k, 'BSHK'))
  wide = jnp.promote_types(q.dtype, jnp.float32)
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
) -> jax.Array:
  """Attention scores by content and by distance, scaled by 1 / sqrt(K).

  Args:
    q: [B, T, H, K] queries.
    k: [B, S, H, K] keys, memory first.
    r: [S, H, K] projected position table, farthest first (`distances`); or
      [S + T - 1, H, K] with those of keys after a query, down to 1 - T.
    u: [H, K] content bias.
    v_bias: [H, K] position bias (the paper's v).
    b: [S, H], or like r, added to the score of each distance before it is
      scaled; None adds nothing.
    einsum: computes the two products.

  Returns:
    [B, H, T, S], float32 or wider, like those of `content_scores`. Where r has
    S rows, the scores of keys after a query mean nothing, and are to be hidden.

  Raises:
    ValueError: an argument has another shape.
  """
  hold_scored(q, k, r, u, v_bias, b)
  # With heads in front the products over T and S are plain matrix products.
  q, k = jnp.swapaxes(q, 1, 2), jnp.swapaxes(k, 1, 2)  # [B, H, T or S, K]
  r = jnp.swapaxes(r, 0, 1)  # [H, S, K]
  # The scale goes into the queries: T K multiplications instead of T S.
  scale = q.shape[-1] ** -0.5
  wide = jnp.promote_types(q.dtype, jnp.float32)
  product = functools.partial(
    einsum, 'bhtk,bhsk->bhts', preferred_element_type=wide
  )
  content = product((q + u[:, None]) * scale, k)
  # A copy of the small table for each row of the batch keeps B in front of
  # the product: no transposition of the large [B, H, T, S] scores.
  r = jnp.broadcast_to(r, (q.shape[0], *r.shape))
  position = product((q + v_bias[:, None]) * scale, r)
  if b is not None:
    position += (b.T * scale)[:, None].astype(wide)  # [H, 1, S]
  return content + relative_shift(position)[..., : k.shape[2]]


def dropout(
  x: jax.Array,
  rate: float,
  key: jax.Array | None,
  shared: tuple[int, ...] = (),
) -> jax.Array:
  """Inverted dropout: zeroes an entry with probability rate, scales the rest.

  The mask depends only on the key and on an entry's position in the array, not
  on how jax.jit divides the array among devices (the array of a jax.shard_map
  is that of a shard: fold the shard's index into the key). It is computed where
  it is used, and again in the backward pass, never stored.

  Args:
    x: any shape, floating.
    rate: a Python float in [0, 1), or a ValueError; accurate to 2^-32. 0
      returns x itself.
    key: a PRNG key, or its `dropout_words`; may be None if rate is 0.
    shared: axes along which all entries share one draw: (1,) for a [B, T, D]
      drops a feature at every position of a row or at none.
  """
  if threshold(rate) == 0:
    return x

  def drop(x, words):
    shape = [1 if axis in shared else n for axis, n in enumerate(x.shape)]
    index = jnp.zeros(shape, jnp.uint32)
    for axis, n in enumerate(shape):
      index = index * n + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    # bfloat16 has too few digits for the scale itself.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scaled = (wide / (1 - rate)).astype(x.dtype)
    return jnp.where(keep(index, words, rate), scaled, 0)

  # The backward pass computes the mask again from the words.
  return jax.checkpoint(drop, prevent_cse=False)(x, dropout_words(key))


def dropout_words(key: Any) -> jax.Array:
  """The words that `keep` takes, drawn from a PRNG key: uint32 [2].

  Words are returned as they are, since many may have been drawn at once. So is
  a threefry key from `jax.random.PRNGKey`, which has the same form. Anything
  else, such as its rbg key of four words, raises a ValueError.
  """
  kind: Any = getattr(key, 'dtype', None)
  shape = getattr(key, 'shape', None)
  if kind == jnp.uint32 and shape == (2,):
    return key
  if shape != () or not jnp.issubdtype(kind, jax.dtypes.prng_key):
    found = f'{key!s:.80}' if kind is None else f'{kind} {list(shape or ())}'
    allowed = 'one jax.random.key, or uint32 [2]'
    raise ValueError(f'dropout_key is {found}; allowed: {allowed}')
  return jax.random.bits(key, [2], jnp.uint32)


def keep(index: jax.Array, words: jax.Array, rate: float) -> jax.Array:
  """Which entries dropout keeps: bool, in the shape of their index, uint32.

  Each index is hashed with the words. The hash is triple32 (C. Wellons,
  hash-prospector), with one word added before it and the other mixed in after
  its first round. Unlike the bits of `jax.random`, these take no memory and a
  tenth of the time: the compiler, or a kernel, computes them inside the
  operation that uses them.
  """
  x = index + words[0]
  x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB) ^ words[1]
  x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
  x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
  x = x ^ (x >> 14)
  return x >= jnp.uint32(threshold(rate))


def threshold(rate: float) -> int:
  """The threshold below which a word of 32 bits drops its entry.

  ValueError: the rate is not in [0, 1), or traced.
  """
  try:
    found = round(float(rate) * 2**32)
  except (TypeError, ValueError, OverflowError):  # traced, or no number
    found = -1
  if not 0 <= found < 2**32:
    raise ValueError(f'dropout rate is {rate}; allowed: a float in [0, 1)')
  return found


def probabilities(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Softmax over the visible keys: [B, H, T, S], each row sums to 1, or to 0.

  Scores [B, H, T, S] and the mask, bool [B or 1, T, S], are as for `attend`.
  """
  weights, total = exponentials(scores, mask)
  return weights / total


def exponentials(
  scores: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """exp(score - the row's largest), and the sums of rows [B, H, T, 1].

  `probabilities` are their quotient. If no key is visible, the exponentials
  are 0 and the sum is 1.
  """
  scores = jnp.where(mask[:, None], scores, -jnp.inf)
  least = jnp.finfo(scores.dtype).min  # -inf - -inf is NaN
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
  """Values summed with the probabilities of their keys: [B, T, H, K].

  Scores are [B, H, T, S], values [B, S, H, K], the mask bool [B or 1, T, S]
  from `visibility`. Dropping probabilities needs a key. The result has the
  dtype of v, which is floating; it is 0 for a query that sees no key. Values
  and scores of hidden keys have no effect, but values must be finite, as must
  keys for gradients: 0 times NaN is NaN. `einsum` computes the product.
  """
  sizes = hold(('scores', scores, 'BHTS'), ('v', v, 'BSHK'))
  rows = 1 if jnp.shape(mask)[:1] == (1,) else sizes['B']
  hold(('mask', mask, 'BTS'), **(sizes | {'B': rows}))
  if not jnp.issubdtype(kind := jnp.result_type(mask), jnp.bool):
    raise ValueError(f'mask is {kind}; allowed: bool')
  weights, total = exponentials(scores, mask)
  return weighted_sum(weights, total, v, dropout_rate, dropout_key, einsum)


def summed(v: jax.Array) -> jax.Array:
  """Values as they are summed, float16 in float32; ValueError if integers."""
  if not jnp.issubdtype(v.dtype, jnp.floating):
    raise ValueError(f'v is {v.dtype}; allowed: floating')
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
  """`attend`, given the `exponentials`."""
  wide = summed(v)
  weights = dropout(weights.astype(wide.dtype), rate, key)
  out = einsum('bhts,bhsk->bhtk', weights, jnp.swapaxes(wide, 1, 2))
  # Dividing here instead of in the weights touches T K numbers, not T S.
  return jnp.swapaxes((out / total).astype(v.dtype), 1, 2)


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
  options and the result, before the output projection, as for `attend`. A mask
  that shows keys after a query needs an r of S + T - 1 rows. Stop gradients at
  the memory part of k and v beforehand. ValueError: an argument has another
  shape, the rate is no float in [0, 1), or values are not floating.
  """
  hold(('v', v, 'BSHK'), **hold_scored(q, k, r, u, v_bias, b))
  scores = relative_scores(q, k, r, u, v_bias, b)
  dropped: Any = dict(dropout_rate=dropout_rate, dropout_key=dropout_key)
  return attend(scores, v, mask, **dropped)
