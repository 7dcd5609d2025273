"""Adaptive softmax and embedding (Grave et al. 2017; Baevski and Auli 2019).

Pure functions on plain arrays; this file imports jax alone, so that any JAX
model can lift it. The vocabulary is sorted by frequency and cut into bins: a
head of frequent words and tails of ever rarer ones, which may be narrower.

Shapes
  N tokens, D model width, V vocabulary; bin i has V_i words of width d_i,
  bin 0 is the head, I is the number of tails.

With h_i = P_i h, the head has one logit for each of its words and one for
each tail; a word w of tail i has

  log p(w) = log p_head(tail i) + log softmax(W_i h_i + b_i)_w

Shapes are static and no token is ever dropped: each tail visits the tokens
that lie in it, however many, a chunk at a time, forward and backward. So the
cost is that of the tokens present, and no array is [N, V].

  >>> import jax, jax.numpy as jnp
  >>> from txl_jax import softmax
  >>> keys = iter(jax.random.split(jax.random.key(0), 9))
  >>> normal = lambda *shape: 0.3 * jax.random.normal(next(keys), shape)
  >>> D = 8  # a head of 10 words, tails of 20 and 70 of half the width
  >>> weights = [normal(10, 8), normal(20, 4), normal(70, 4)]
  >>> projections = [None, normal(4, D), normal(4, D)]
  >>> output = softmax.Output(
  ...     weights, [jnp.zeros(len(w)) for w in weights], projections,
  ...     normal(2, D), jnp.zeros(2))
  >>> h, targets = normal(5, D), jnp.array([3, 99, 0, 15, -1])
  >>> softmax.nll(h, targets, output).shape
  (5,)
  >>> softmax.log_probs(h, output).shape
  (5, 100)
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

TAIL_ORDERS = ('ascending', 'descending')

# Logits that one chunk of a tail holds at most, and the fewest chunks that
# all tokens would make: few enough to stay in cache, many enough that the
# last, partly empty one costs little.
_CHUNK_LOGITS = 2**23
_CHUNKS = 16


class Output(NamedTuple):
  """Weights of an adaptive softmax.

  Attributes:
    weights: for each bin [V_i, d_i].
    biases: for each bin [V_i].
    projections: for each bin [d_i, D], or None for the identity.
    tail_weights: [I, d_0], of the logits that stand for the tails.
    tail_biases: [I].
  """

  weights: Any
  biases: Any
  projections: Any
  tail_weights: Any
  tail_biases: Any


@jax.custom_vjp
def cross_entropy(logits, targets):
  """-log softmax(logits) at the targets.

  Of what is as large as the logits, the backward pass keeps them alone and
  makes their gradient in one go; autodiff would keep the exponentials too.

  Args:
    logits: [..., V], float32 or wider.
    targets: int32 [...], from 0 to V - 1.

  Returns:
    [...] in the dtype of logits.
  """
  return _cross_entropy(logits, targets)[0]


def _cross_entropy(logits, targets):
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  total = jax.nn.logsumexp(logits, axis=-1)
  return total - chosen, (logits, targets, total)


def _cross_entropy_backward(kept, cotangent):
  logits, targets, total = kept
  V = logits.shape[-1]
  probs = jnp.exp(logits - total[..., None])
  hot = targets[..., None] == jnp.arange(V, dtype=targets.dtype)
  return jnp.where(hot, probs - 1, probs) * cotangent[..., None], None


cross_entropy.defvjp(_cross_entropy, _cross_entropy_backward)


def starts(sizes):
  """The first token id of each bin, and V: [0, V_0, V_0 + V_1, ...]."""
  ids = [0]
  for size in sizes:
    ids.append(ids[-1] + size)
  return ids


def nll(h, targets, output, *, tail_order='ascending', dtype=None):
  """-log p(target) in nats.

  Args:
    h: [N, D].
    targets: int32 [N]; a target of -1 is not scored.
    output: an Output.
    tail_order: ascending, logit V_0 + i of the head stands for tail i (TF
      original, Hugging Face); descending, it stands for the tail that comes
      i-th from the end (PyTorch original).
    dtype: of the products, default that of h; sums, softmax and result are
      float32 or wider.

  Returns:
    [N] in the order of the tokens, 0 where the target is -1.

  Raises:
    ValueError: the tail order is none of TAIL_ORDERS.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  first = starts([len(w) for w in output.weights])
  at = jnp.maximum(targets, 0)
  head = _head_logits(h, output, dtype)  # [N, V_0 + I]
  column = at
  for i in range(1, len(output.weights)):
    column = jnp.where(at >= first[i], _column(output, i, tail_order), column)
  total = cross_entropy(head, column)
  for i in range(1, len(output.weights)):
    rows = (at >= first[i]) & (at < first[i + 1])
    total += on_rows(
      functools.partial(_tail_nll, dtype),
      _bin(output, i),
      h,
      at - first[i],
      rows,
      chunk=_chunk(len(at), first[i + 1] - first[i]),
    )
  return jnp.where(targets >= 0, total, 0)


def log_probs(h, output, *, tail_order='ascending', dtype=None):
  """Log-probabilities of the whole vocabulary, for generation.

  Args:
    h: [N, D].
    output: an Output.
    tail_order: as for `nll`.
    dtype: as for `nll`.

  Returns:
    [N, V], float32 or wider.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  head = jax.nn.log_softmax(_head_logits(h, output, dtype), axis=-1)
  parts = [head[:, : len(output.weights[0])]]
  for i in range(1, len(output.weights)):
    tail = jax.nn.log_softmax(_logits(dtype, _bin(output, i), h), axis=-1)
    parts.append(head[:, _column(output, i, tail_order), None] + tail)
  return jnp.concatenate(parts, axis=-1)


def sampled_nll(h, targets, weights, bias, samples, key):
  """An estimate of -log p(target) from a few words instead of all V.

  n words are drawn, the same ones for all tokens, with replacement from the
  log-uniform distribution, which is near that of words sorted by frequency:

    q(k) = log((k + 2) / (k + 1)) / log(V + 1)

  Each that is not the target adds exp(score) / (n q) to the sum over all
  other words that it stands for, so the sum is unbiased and the estimate
  tends to the exact nll (importance sampling, Bengio and Senecal 2003).

  Args:
    h: [N, D]; products are in its dtype.
    targets: int32 [N]; a target of -1 is not scored.
    weights: [V, D].
    bias: [V].
    samples: n.
    key: PRNG key.

  Returns:
    [N], float32 or wider, 0 where the target is -1.
  """
  V = len(weights)
  wide = jnp.promote_types(h.dtype, jnp.float32)
  u = jax.random.uniform(key, [samples], wide)
  drawn = jnp.exp(u * jnp.log(V + 1.0)).astype(jnp.int32) - 1
  drawn = jnp.clip(drawn, 0, V - 1)
  q = jnp.log1p(1 / (drawn + 1).astype(wide)) / jnp.log(V + 1.0)
  at = jnp.maximum(targets, 0)

  own = jnp.sum(h * weights[at].astype(h.dtype), axis=-1, dtype=wide)
  own += bias[at]  # [N]
  others = jnp.einsum(
    'nd,sd->ns', h, weights[drawn].astype(h.dtype), preferred_element_type=wide
  )
  others += bias[drawn] - jnp.log(samples * q)  # [N, samples]
  others = jnp.where(drawn == at[:, None], jnp.finfo(wide).min, others)
  total = jnp.logaddexp(own, jax.nn.logsumexp(others, axis=-1))
  return jnp.where(targets >= 0, total - own, 0)


def embed(tokens, tables, projections, dtype):
  """Embeddings of tokens whose bins have widths of their own, not scaled.

  Args:
    tokens: int32 [N].
    tables: for each bin [V_i, d_i].
    projections: for each bin [d_i, D]; a single one for bins of one width;
      none where that is the model's.
    dtype: of the products and the result.

  Returns:
    [N, D].
  """
  first = starts([len(table) for table in tables])
  rows, found = [], []
  for i, table in enumerate(tables):
    rows.append((tokens >= first[i]) & (tokens < first[i + 1]))
    local = jnp.where(rows[i], tokens - first[i], 0)
    x = jnp.take(table, local, axis=0).astype(dtype)
    found.append(jnp.where(rows[i][:, None], x, 0))  # [N, d_i]
  if len(projections) <= 1:
    x = sum(found[1:], found[0])
    return x @ projections[0].astype(dtype) if projections else x
  # Most tokens are in the head; each tail projects its own tokens alone.
  x = found[0] @ projections[0].astype(dtype)
  for i in range(1, len(tables)):
    x += on_rows(
      functools.partial(_project, dtype),
      projections[i],
      found[i],
      tokens,
      rows[i],
      chunk=_chunk(len(tokens), 1),
    )
  return x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def _on_rows(f, params, x, ids, rows, chunk):
  """See `on_rows`."""
  out = jax.eval_shape(f, params, x[:chunk], ids[:chunk])
  out = jnp.zeros((len(x), *out.shape[1:]), out.dtype)
  index, chunks = _positions(rows, chunk)

  def body(k, out):
    at = jax.lax.dynamic_slice(index, [k * chunk], [chunk])
    return out.at[at].set(f(params, _take(x, at), _take(ids, at)), mode='drop')

  return jax.lax.fori_loop(0, chunks, body, out)


def _on_rows_forward(f, params, x, ids, rows, chunk):
  return _on_rows(f, params, x, ids, rows, chunk), (params, x, ids, rows)


def _on_rows_backward(f, chunk, kept, cotangent):
  params, x, ids, rows = kept
  index, chunks = _positions(rows, chunk)

  def body(k, sums):
    at = jax.lax.dynamic_slice(index, [k * chunk], [chunk])
    near = _take(ids, at)
    _, back = jax.vjp(lambda p, y: f(p, y, near), params, _take(x, at))
    # Slots behind the last row take a cotangent of 0: they add nothing.
    more, dx = back(_take(cotangent, at))
    dparams = jax.tree.map(jnp.add, sums[0], more)
    return dparams, sums[1].at[at].set(dx, mode='drop')

  zeros = jax.tree.map(jnp.zeros_like, (params, x))
  dparams, dx = jax.lax.fori_loop(0, chunks, body, zeros)
  return dparams, dx, None, None


_on_rows.defvjp(_on_rows_forward, _on_rows_backward)


def on_rows(f, params, x, ids, rows, *, chunk):
  """f of some rows, a chunk of them at a time; 0 at the others.

  The number of chunks is that of the rows, known when it runs; shapes are
  static. The backward pass computes f again, chunk by chunk.

  Args:
    f: function (params, x [C, ...], ids [C]) -> [C, ...], row by row.
    params: pytree of floating arrays, differentiable.
    x: floating [N, ...], differentiable.
    ids: int32 [N].
    rows: bool [N], the rows to compute.
    chunk: C.

  Returns:
    [N, ...].
  """
  out: Any = _on_rows(f, params, x, ids, rows, min(chunk, len(rows)))
  return out


def _positions(rows, chunk):
  """Where rows is true, padded with N to whole chunks; and their number."""
  n = len(rows)
  padded = -(-n // chunk) * chunk
  index = jnp.nonzero(rows, size=padded, fill_value=n)[0]
  return index, (jnp.sum(rows, dtype=jnp.int32) + chunk - 1) // chunk


def _take(x, at):
  return jnp.take(x, at, axis=0, mode='fill', fill_value=0)


def _chunk(n, width):
  """Rows of a chunk: a power of two."""
  most = min(_CHUNK_LOGITS // width, -(-n // _CHUNKS))
  return 1 << max(most, 1).bit_length() - 1


def _bin(output, i):
  return output.weights[i], output.biases[i], output.projections[i]


def _column(output, i, tail_order):
  """The logit of the head that stands for tail i."""
  if tail_order not in TAIL_ORDERS:
    raise ValueError(f'tail_order {tail_order!r}: one of {TAIL_ORDERS}')
  tails = len(output.weights) - 1
  place = i - 1 if tail_order == 'ascending' else tails - i
  return len(output.weights[0]) + place


def _project(dtype, projection, x, ids):
  del ids
  return x @ projection.astype(dtype)


def _logits(dtype, params, h):
  """[N, D] -> [N, V_i], float32 or wider."""
  weights, bias, projection = params
  h = h.astype(dtype)
  if projection is not None:
    h = h @ projection.astype(dtype).T
  wide = jnp.promote_types(dtype, jnp.float32)
  scores = jnp.einsum(
    'nd,vd->nv', h, weights.astype(dtype), preferred_element_type=wide
  )
  return scores + bias


def _head_logits(h, output, dtype):
  weights, bias, projection = _bin(output, 0)
  weights = jnp.concatenate([weights, output.tail_weights])
  bias = jnp.concatenate([bias, output.tail_biases])
  return _logits(dtype, (weights, bias, projection), h)


def _tail_nll(dtype, params, h, targets):
  """[C, D], [C] -> [C]; targets count from the start of the tail."""
  logits = _logits(dtype, params, h)
  # A slot without a token may hold any number here.
  return cross_entropy(logits, jnp.clip(targets, 0, logits.shape[-1] - 1))
