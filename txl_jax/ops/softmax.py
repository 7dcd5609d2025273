"""Adaptive softmax and embedding (Grave et al. 2017; Baevski and Auli 2019).

Pure functions on plain arrays; besides jax this file needs only attention.py,
matmul.py and target_device.py, so the four can be copied into any JAX project.
The vocabulary is sorted by frequency and split at
cutoffs into bins: a head of frequent words and tails of rarer words, whose
widths may be smaller.

Shapes
  N tokens, D model width, V vocabulary; bin i has V_i words of width d_i,
  bin 0 is the head, I is the number of tails. The last tails may have no words:
  each has a logit in the head, but no bin.

With h_i = P_i h, the head has one logit for each of its words and one for
each tail. A word w of tail i has

  log p(w) = log p_head(tail i) + log softmax(W_i h_i + b_i)_w

Shapes are static and no token is dropped: each tail processes all of its
tokens, chunk by chunk, forward and backward. So the cost of a tail depends on
its number of tokens, and with tails no array is [N, V].
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.ops import matmul
from txl_jax.program import target_device

TAIL_ORDERS = {
  'ascending': 'the first logit for the first tail (TensorFlow original, '
  'Hugging Face)',
  'descending': 'the first logit for the last tail (PyTorch original)',
}

# Bounds on a tail's chunk size, in logits: small enough for a CPU's cache; on
# accelerators large enough to fill the device, which waits for the host between
# chunks. All tokens together fill at least _CHUNKS chunks, so that padding the
# last chunk costs little.
_CPU_LOGITS, _CHUNK_LOGITS = 2**23, 2**26
_CHUNKS = 16


class Output(NamedTuple):
  """Weights of an adaptive softmax; the first three are lists over bins."""

  weights: Any  # [V_i, d_i]
  biases: Any  # [V_i]
  projections: Any  # [d_i, D], or None for the identity
  tail_weights: Any  # [I, d_0], for the tail logits in the head
  tail_biases: Any  # [I]


@jax.custom_vjp
def normaliser(
  logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns logsumexp of the logits, and the logits of the targets.

  Logits are [..., V], float32 or wider, targets int32 [...]. Both results are
  [...] in the dtype of logits; the second is 0 for targets outside [0, V).

  Only the logits are saved for the backward pass; autodiff would also save the
  exponentials.
  """
  return _normaliser(logits, targets)[0]


def _normaliser(logits, targets):
  V = logits.shape[-1]
  ids = jnp.clip(targets, 0, V - 1)[..., None]
  chosen = jnp.take_along_axis(logits, ids, axis=-1)[..., 0]
  chosen = jnp.where((targets >= 0) & (targets < V), chosen, 0)
  total = jax.nn.logsumexp(logits, axis=-1)
  return (total, chosen), (logits, targets, total)


def _normaliser_backward(kept, cotangents):
  logits, targets, total = kept
  dtotal, dchosen = (c[..., None] for c in cotangents)
  ids = jax.lax.broadcasted_iota(targets.dtype, logits.shape, targets.ndim)
  grads = jnp.exp(logits - total[..., None]) * dtotal
  is_target = targets[..., None] == ids
  return jnp.where(is_target, grads + dchosen, grads), None


normaliser.defvjp(_normaliser, _normaliser_backward)


class Bin:
  """A bin of the vocabulary whose words are all on this device.

  In `parallel.vocab_parallel` the words of a bin are sharded over devices.
  """

  def __init__(self, words: int):
    self.words = words

  def normaliser(
    self, f: Any, h: jax.Array, ids: jax.Array, in_bin: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """The `normaliser` over all words of the bin: two arrays [N].

    f(h, ids, in_bin) computes it over the words on this device. h is [N, D];
    ids, int32 [N], are targets relative to the bin's first word; in_bin, bool
    [N], marks tokens whose target is in the bin.
    """
    return f(h, ids, in_bin)

  def look_up(
    self, table: jax.Array, ids: jax.Array, in_bin: jax.Array
  ) -> jax.Array:
    """Embeddings, [N, d]; 0 for tokens outside the bin."""
    # Out-of-bounds ids read no row and add no gradient. If they read row 0, the
    # zero gradients of most tokens would be added to it.
    at = jnp.where(in_bin, ids, len(table))
    return jnp.take(table, at, axis=0, mode='fill', fill_value=0)


def nll(
  h: jax.Array,
  targets: jax.Array,
  output: Output,
  *,
  tail_order: str = 'ascending',
  dtype: jax.typing.DTypeLike | None = None,
  bins: Sequence[Bin] | None = None,
) -> jax.Array:
  """-log p(target) in nats, [N] in the order of the tokens.

  h is [N, D], targets int32 [N]; a target of -1 is not scored and has nll 0.
  Products are computed in dtype, by default that of h; sums, softmax and result
  are float32 or wider. By default, all `bins` are on this device.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  bins = bins or [Bin(len(w)) for w in output.weights]
  first, in_bin = _in_bin(targets, bins)
  tails = range(1, len(bins))

  def both(params, h, ids):
    return jnp.stack(normaliser(_logits(dtype, params, h), ids), axis=-1)

  def of_head(h, ids, _):
    return normaliser(_logits(dtype, _weights(output, 0), h), ids)

  def of_tail(i, h, ids, in_bin):
    chunk = _chunk(len(ids), len(output.weights[i]))
    alike = matmul.varying_alike((_weights(output, i), h, ids, in_bin))
    stacked: Any = on_rows(both, *alike, chunk)
    return stacked[:, 0], stacked[:, 1]

  total, chosen = bins[0].normaliser(of_head, h, targets, in_bin[0])
  if tails:
    column = jnp.full_like(targets, -1)
    for i in tails:
      column = jnp.where(in_bin[i], _column(output, i, tail_order), column)
    tail_total, tail_logit = normaliser(_tail_logits(dtype, output, h), column)
    total = jnp.logaddexp(total, tail_total)
    chosen += tail_logit
  loss = total - chosen
  for i in tails:
    f = functools.partial(of_tail, i)
    ids = targets - first[i]
    total, chosen = bins[i].normaliser(f, h, ids, in_bin[i])
    loss += jnp.where(in_bin[i], total - chosen, 0)
  return jnp.where(targets >= 0, loss, 0)


def logits(
  h: jax.Array,
  output: Output,
  *,
  tail_order: str = 'ascending',
  dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
  """Logits of the whole vocabulary, for generation; arguments as for `nll`.

  Returns [N, V], float32 or wider; with tails these are log-probabilities.
  """
  dtype = jnp.dtype(dtype or h.dtype)
  words = _logits(dtype, _weights(output, 0), h)
  if len(output.weights) == 1:
    return words
  head = jnp.concatenate([words, _tail_logits(dtype, output, h)], axis=-1)
  head = jax.nn.log_softmax(head, axis=-1)
  V_0 = words.shape[1]
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
  """Adaptive embedding of tokens, without scaling.

  Tokens are int32 [N]; the result, [N, D], and the products have dtype `dtype`.
  Each bin has a table [V_i, d_i] and a projection [d_i, D]. If all bins have
  the same width, they share one projection (none if that width is D). `bins`
  are as for `nll`.
  """
  bins = bins or [Bin(len(table)) for table in tables]
  first, in_bin = _in_bin(tokens, bins)
  embedded = [
    bins[i].look_up(table, tokens - first[i], in_bin[i]).astype(dtype)
    for i, table in enumerate(tables)
  ]  # [N, d_i]

  def project(projection, x, _):
    return matmul.einsum('nd,de->ne', x, projection, dtype=dtype)

  if len(projections) <= 1:
    x = sum(embedded[1:], embedded[0])
    return project(projections[0], x, tokens) if projections else x

  # Most tokens are in the head; each tail projects only its own tokens.
  x = project(projections[0], embedded[0], tokens)
  chunk = _chunk(len(tokens), 1)
  for i in range(1, len(tables)):
    rows = embedded[i], tokens, in_bin[i]
    alike = matmul.varying_alike((projections[i], *rows))
    tail: Any = on_rows(project, *alike, chunk)
    x += tail
  return x


def _in_bin(ids, bins):
  """First token id of each bin, and for each bin a mask of its ids, [N]."""
  first = [0, *itertools.accumulate(b.words for b in bins)]
  edges = itertools.pairwise(first)
  return first, [(ids >= a) & (ids < b) for a, b in edges]


def _chunk(n, width):
  """Chunk size for n tokens and `width` logits per token, a power of two."""
  on_cpu = target_device.device().platform == 'cpu'
  logits = _CPU_LOGITS if on_cpu else _CHUNK_LOGITS
  limit = min(logits // width, -(-n // _CHUNKS))
  return 1 << max(limit, 1).bit_length() - 1


def _weights(output, i):
  return output.weights[i], output.biases[i], output.projections[i]


def _column(output, i, tail_order):
  """The index of the tail logit of tail i."""
  return i - 1 if tail_order == 'ascending' else len(output.tail_biases) - i


def _logits(dtype, params, h):
  """Logits [N, V_i] of h [N, D], float32 or wider."""
  weights, bias, projection = params
  product = functools.partial(matmul.einsum, dtype=dtype)
  if projection is not None:
    h = product('nd,ed->ne', h, projection)
  wide = attention.widened(dtype)
  scores = product('nd,vd->nv', h, weights, preferred_element_type=wide)
  return scores + bias[None]


def _tail_logits(dtype, output, h):
  """The tail logits in the head, [N, I]."""
  params = output.tail_weights, output.tail_biases, output.projections[0]
  return _logits(dtype, params, h)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def on_rows(
  f: Callable[..., jax.Array],
  params: Any,
  x: jax.Array,
  ids: jax.Array,
  selected: jax.Array,
  chunk: int,
) -> jax.Array:
  """Applies f, chunk by chunk, to selected rows; other result rows are 0.

  N rows, C in a chunk. Shapes are static, but the number of chunks is found at
  run time, from the selected rows. The backward pass recomputes f in chunks.

  Args:
    f: function (params, x [C, ...], ids [C]) -> [C, ...], row by row.
    params: pytree of floating arrays; gradients flow to params and to x.
    x: floating [N, ...]; the result is also [N, ...].
    ids: int32 [N].
    selected: bool [N].
    chunk: C.
  """
  out = jax.eval_shape(f, params, x[:chunk], ids[:chunk])
  out = jnp.zeros((len(x), *out.shape[1:]), out.dtype)
  out = matmul.varying_alike(out, params, x, ids, selected)
  index, chunks = _chunks(selected, chunk)

  def body(k, out):
    at = index[k]
    return out.at[at].set(f(params, _take(x, at), _take(ids, at)), mode='drop')

  return jax.lax.fori_loop(0, chunks, body, out)


def _rows_forward(f, params, x, ids, selected, chunk):
  return on_rows(f, params, x, ids, selected, chunk), (params, x, ids, selected)


def _rows_backward(f, chunk, kept, cotangent):
  params, x, ids, selected = kept
  index, chunks = _chunks(selected, chunk)

  def body(k, sums):
    at = index[k]
    chunk_ids = _take(ids, at)
    _, vjp = jax.vjp(lambda p, y: f(p, y, chunk_ids), params, _take(x, at))
    # Padding of the last chunk has a cotangent of 0 and adds nothing.
    dchunk, dx = vjp(_take(cotangent, at))
    dparams = jax.tree.map(jnp.add, sums[0], dchunk)
    return dparams, sums[1].at[at].set(dx, mode='drop')

  zeros = jax.tree.map(jnp.zeros_like, (params, x))
  zeros = matmul.varying_alike(zeros, kept, cotangent)
  dparams, dx = jax.lax.fori_loop(0, chunks, body, zeros)
  return dparams, dx, None, None


on_rows.defvjp(_rows_forward, _rows_backward)


def _chunks(selected, chunk):
  """Selected rows, [ceil(N / C), C], padded with N; number of chunks used."""
  n = len(selected)
  C = min(chunk, n)
  index = jnp.nonzero(selected, size=-(-n // C) * C, fill_value=n)[0]
  return index.reshape(-1, C), -(-jnp.sum(selected, dtype=jnp.int32) // C)


def _take(x, at):
  return jnp.take(x, at, axis=0, mode='fill', fill_value=0)
