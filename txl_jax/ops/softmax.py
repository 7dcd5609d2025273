"""Adaptive softmax and embedding (Grave et al. 2017; Baevski and Auli 2019).

Pure functions on plain arrays; besides jax this file needs only matmul.py,
selected_rows.py, shards.py and target_device.py, so that they can be copied
into any JAX project. The vocabulary is sorted by frequency and cut into bins: a
head of frequent words and tails of ever rarer ones, which may be narrower.

Shapes
  N tokens, D model width, V vocabulary; bin i has V_i words of width d_i,
  bin 0 is the head, I is the number of tails. The last tails may be empty: they
  have no words, only their logits in the head.

With h_i = P_i h, the head has one logit for each of its words and one for
each tail; a word w of tail i has

  log p(w) = log p_head(tail i) + log softmax(W_i h_i + b_i)_w

Shapes are static and no token is ever dropped: each tail visits the tokens
that lie in it, however many, a chunk at a time, forward and backward. So only
tokens that are present cost anything, and no array is [N, V].
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax.ops import matmul, shards
from txl_jax.ops.selected_rows import on_rows
from txl_jax.program import target_device

TAIL_ORDERS = {
  'ascending': 'the first logit for the first tail (TensorFlow original, '
  'Hugging Face)',
  'descending': 'the first logit for the last tail (PyTorch original)',
}

# The most logits in one chunk of a tail, and the fewest chunks that all tokens
# would make: on a CPU few enough logits to stay in cache, elsewhere enough to
# fill the device, which waits for the host between chunks; and enough chunks
# that the last, partly empty one costs little.
_CPU_LOGITS, _CHUNK_LOGITS = 2**23, 2**26
_CHUNKS = 16


class Output(NamedTuple):
  """Weights of an adaptive softmax; the first three are lists over bins."""

  weights: Any  # [V_i, d_i]
  biases: Any  # [V_i]
  projections: Any  # [d_i, D], or None for the identity
  tail_weights: Any  # [I, d_0], of the logits that stand for the tails
  tail_biases: Any  # [I]


@jax.custom_vjp
def normaliser(
  logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """log sum exp of the logits, and the logits of the targets.

  Takes logits [..., V], float32 or wider, and targets, int32 [...]; returns
  two [...] in the dtype of logits; the second is 0 for targets outside [0, V).

  The only array of the size of the logits kept for the backward pass is the
  logits, whose gradient is one expression; autodiff would also keep the
  exponentials.
  """
  return _normaliser(logits, targets)[0]


def _normaliser(logits, targets):
  V = logits.shape[-1]
  at = jnp.clip(targets, 0, V - 1)[..., None]
  chosen = jnp.take_along_axis(logits, at, axis=-1)[..., 0]
  chosen = jnp.where((targets >= 0) & (targets < V), chosen, 0)
  total = jax.nn.logsumexp(logits, axis=-1)
  return (total, chosen), (logits, targets, total)


def _normaliser_backward(kept, cotangents):
  logits, targets, total = kept
  of_total, of_chosen = (c[..., None] for c in cotangents)
  words = jnp.arange(logits.shape[-1], dtype=targets.dtype)
  grads = jnp.exp(logits - total[..., None]) * of_total
  hot = targets[..., None] == words
  return jnp.where(hot, grads + of_chosen, grads), None


normaliser.defvjp(_normaliser, _normaliser_backward)


class Bin:
  """A bin of the vocabulary whose words are all on this device.

  `parallel.vocab_parallel` has bins whose words lie on several devices.
  """

  def __init__(self, words: int):
    self.words = words

  def normaliser(
    self, f: Any, h: jax.Array, ids: jax.Array, rows: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """The `normaliser` over all words of the bin, two [N].

    f(h, ids, rows) is the normaliser over the words here, given h [N, D],
    targets within the bin, int32 [N], and bool [N], which tokens have their
    target in the bin.
    """
    return f(h, ids, rows)

  def look_up(
    self, table: jax.Array, ids: jax.Array, inside: jax.Array
  ) -> jax.Array:
    """Embeddings: [N, d], 0 where a token is not inside the bin."""
    # A row that does not exist: nothing is read, and no gradient is added,
    # whereas row 0 would have to take it from most tokens.
    at = jnp.where(inside, ids, len(table))
    return jnp.take(table, at, axis=0, mode='fill', fill_value=0)


def nll(
  h: jax.Array,
  targets: jax.Array,
  output: Output,
  *,
  tail_order: str = 'ascending',
  dtype: Any = None,
  bins: Sequence[Bin] | None = None,
) -> jax.Array:
  """-log p(target) in nats, [N] in the order of the tokens.

  h is [N, D], targets int32 [N]; at a target of -1, which is not scored, the
  result is 0. Products are computed in dtype, by default that of h; sums,
  softmax and result are float32 or wider. `bins` says where the words of each
  bin are; None means here.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  bins = bins or [Bin(len(w)) for w in output.weights]
  first, inside = _inside(targets, bins)
  tails = range(1, len(bins))

  def both(params, h, ids):
    return jnp.stack(normaliser(_logits(dtype, params, h), ids), axis=-1)

  def of_head(h, ids, _):
    return normaliser(_logits(dtype, _weights(output, 0), h), ids)

  def of_tail(i, h, ids, rows):
    chunk = _chunk(len(ids), len(output.weights[i]))
    alike = shards.varying_alike((_weights(output, i), h, ids, rows))
    found: Any = on_rows(both, *alike, chunk)
    return found[:, 0], found[:, 1]

  total, chosen = bins[0].normaliser(of_head, h, targets, inside[0])
  if tails:
    column = jnp.full_like(targets, -1)
    for i in tails:
      column = jnp.where(inside[i], _column(output, i, tail_order), column)
    every, share = normaliser(_tail_logits(dtype, output, h), column)
    total, chosen = jnp.logaddexp(total, every), chosen + share
  loss = total - chosen
  for i in tails:
    f, ids = functools.partial(of_tail, i), targets - first[i]
    total, chosen = bins[i].normaliser(f, h, ids, inside[i])
    loss += jnp.where(inside[i], total - chosen, 0)
  return jnp.where(targets >= 0, loss, 0)


def logits(
  h: jax.Array,
  output: Output,
  *,
  tail_order: str = 'ascending',
  dtype: Any = None,
) -> jax.Array:
  """Logits of the whole vocabulary, for generation; arguments as for `nll`.

  [N, V], float32 or wider; with tails they are log-probabilities.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  words = _logits(dtype, _weights(output, 0), h)
  if len(output.weights) == 1:
    return words
  head = jnp.concatenate([words, _tail_logits(dtype, output, h)], axis=-1)
  head, V_0 = jax.nn.log_softmax(head, axis=-1), words.shape[1]
  parts = [head[:, :V_0]]
  for i in range(1, len(output.weights)):
    tail = jax.nn.log_softmax(_logits(dtype, _weights(output, i), h), axis=-1)
    parts.append(head[:, V_0 + _column(output, i, tail_order), None] + tail)
  return jnp.concatenate(parts, axis=-1)


def embed(
  tokens: jax.Array,
  tables: Sequence[jax.Array],
  projections: Sequence[jax.Array],
  dtype: Any,
  bins: Sequence[Bin] | None = None,
) -> jax.Array:
  """Embeddings of tokens whose bins may have different widths, not scaled.

  Tokens are int32 [N], the result is [N, D] in dtype, that of the products.
  Each bin has a table [V_i, d_i] and a projection [d_i, D]; bins of equal
  width share one, or have none if that is the model's width. `bins` is as for
  `nll`.
  """
  bins = bins or [Bin(len(table)) for table in tables]
  first, inside = _inside(tokens, bins)
  found = [
    bins[i].look_up(table, tokens - first[i], inside[i]).astype(dtype)
    for i, table in enumerate(tables)
  ]  # [N, d_i]

  def project(projection, x, _):
    return matmul.einsum('nd,de->ne', x, projection, dtype=dtype)

  if len(projections) <= 1:
    x = sum(found[1:], found[0])
    return project(projections[0], x, tokens) if projections else x

  # Most tokens are in the head; each tail projects only its own tokens.
  x = project(projections[0], found[0], tokens)
  chunk = _chunk(len(tokens), 1)
  for i in range(1, len(tables)):
    rows = found[i], tokens, inside[i]
    alike = shards.varying_alike((projections[i], *rows))
    tail: Any = on_rows(project, *alike, chunk)
    x += tail
  return x


def _inside(ids, bins):
  """For each bin, its first token id and which of the ids [N] are in it."""
  first = [0, *itertools.accumulate(b.words for b in bins)]
  edges = itertools.pairwise(first)
  return first, [(ids >= a) & (ids < b) for a, b in edges]


def _chunk(n, width):
  """Rows of a chunk: a power of two."""
  on_cpu = target_device.device().platform == 'cpu'
  logits = _CPU_LOGITS if on_cpu else _CHUNK_LOGITS
  most = min(logits // width, -(-n // _CHUNKS))
  return 1 << max(most, 1).bit_length() - 1


def _weights(output, i):
  return output.weights[i], output.biases[i], output.projections[i]


def _column(output, i, tail_order):
  """The index of the tail logit that stands for tail i."""
  return i - 1 if tail_order == 'ascending' else len(output.tail_biases) - i


def _logits(dtype, params, h):
  """[N, D] -> [N, V_i], float32 or wider."""
  weights, bias, projection = params
  product = functools.partial(matmul.einsum, dtype=dtype)
  if projection is not None:
    h = product('nd,ed->ne', h, projection)
  wide = jnp.promote_types(dtype, jnp.float32)
  scores = product('nd,vd->nv', h, weights, preferred_element_type=wide)
  return scores + bias


def _tail_logits(dtype, output, h):
  """The logits of the head that stand for the tails, [N, I]."""
  params = output.tail_weights, output.tail_biases, output.projections[0]
  return _logits(dtype, params, h)
