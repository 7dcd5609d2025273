"""Building blocks that models share.

Shapes
  B batch, T segment, S = memory + T, H heads, K head width, D model width,
  F feed-forward width, V vocabulary.

`config` is that of a model; it has the keys that are read here.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import initial
from txl_jax.ops import dropout, kernels, matmul
from txl_jax.parallel import attention_parallel
from txl_jax.program import settings


class Dropout(nn.Module):
  """Dropout of x [B, T, ...] under the 'dropout' key of the module.

  Locked, it has one mask for all positions, see `ops.dropout.drop`.
  """

  @nn.compact
  def __call__(self, x, rate, *, train, locked=False):
    if not train or rate == 0.0:
      return x
    return dropout.drop(x, rate, self.make_rng('dropout'), locked)


class WordDropout(nn.Module):
  """Drops words: every occurrence of a token in the batch, or none.

  As if rows of the embedding table were zero with probability rate and the
  others scaled by 1 / (1 - rate) (Gal and Ghahramani 2016; Merity et al. 2018).

  The first position of a segment is left as it is. Where memory is empty it
  sees itself alone: its state would be exactly zero in all layers, and each
  post-norm would multiply its gradient by 1 / sqrt(eps). With a `tiny` number,
  which dropped embeddings become in place of 0, it may be dropped, too.
  """

  vocab_size: int
  rate: float
  tiny: float = 0.0

  @nn.compact
  def __call__(self, x, tokens, *, train):
    """x [B, T, D], the embeddings of tokens int32 [B, T]; an array like x."""
    if not train or self.rate == 0.0:
      return x
    wide = jnp.promote_types(x.dtype, jnp.float32)
    ones = jnp.ones([self.vocab_size], wide)
    scale = attention.dropout(ones, self.rate, self.make_rng('dropout'))
    scale = jnp.take(scale, tokens, axis=0)[..., None]
    if not self.tiny:
      scale = scale.at[:, 0].set(1)
    kept = (x.astype(wide) * scale).astype(x.dtype)
    return jnp.where(scale > 0, kept, self.tiny) if self.tiny else kept


class LayerNorm(nn.Module):
  """Layer normalisation, in float32 or wider; the scale starts at N(1, std)."""

  config: Any

  @nn.compact
  def __call__(self, x):
    """[..., D] -> [..., D]."""
    c, wide = self.config, jnp.promote_types(x.dtype, jnp.float32)
    scale_init = initial.normal(c.init_std, mean=1.0)
    options: Any = dict(scale_init=scale_init, use_fast_variance=False)
    # The backward pass keeps x, not the wide arrays computed from it.
    again: Any = nn.remat(nn.LayerNorm, prevent_cse=False)
    norm = again(c.ln_eps, dtype=wide, name='norm', **options)
    return norm(x).astype(c.state_dtype)


class Product(nn.DenseGeneral):
  """W x + b: [..., *inputs] -> [..., *outputs], W [*inputs, *outputs].

  The first `memory` states of x [B, S, ...] are those of memory, see
  `ops.matmul`.
  """

  memory: int = 0

  def __post_init__(self):
    if self.dot_general is None:
      self.dot_general = matmul.dot_general(self.memory, self.dtype)
      if self.dot_general:  # it rounds the operands by itself
        self.promote_dtype = _unpromoted
    super().__post_init__()


def _unpromoted(*arrays: Any, dtype: Any = None, inexact: bool = True) -> Any:
  """Returns the arrays as they are, in place of Flax's `promote_dtype`."""
  del dtype, inexact
  return arrays


class FeedForward(nn.Module):
  """W2 dropout(relu(W1 x + b1)) + b2."""

  config: Any

  @nn.compact
  def __call__(self, x, key=None):
    """[B, T, D] -> [B, T, D]; the key is for dropout, None is without."""
    c = self.config
    init = initial.normal(c.init_std)
    shared: Any = dict(kernel_init=init, dtype=c.operand_dtype)
    h = Product(c.d_ff, name='w1', **shared)(x)  # [B, T, F]
    rate = 0.0 if key is None else c.dropout
    h = dropout.relu_and_drop(h, rate, key, c.locked_dropout)
    return Product(x.shape[-1], name='w2', **shared)(h)


class Distances(NamedTuple):
  """What scores by distance depend on, see `attention.relative_scores`."""

  r: jax.Array  # [S, H, K], farthest first
  u: jax.Array  # [H, K]
  v_bias: jax.Array  # [H, K]
  b: jax.Array | None = None  # [S, H], added before division by sqrt(K)


# What dropout_qkv drops: queries, keys, values, and those two of positions.
PROJECTED = 5


class Attention(nn.Module):
  """Multi-head attention and its projections, which have no biases.

  It knows no positions; subclasses override `distances`.
  """

  config: Any

  def setup(self) -> None:
    c = self.config
    self.q = self.to_heads()
    self.k, self.v = (self.to_heads(memory=c.mem_len) for _ in range(2))
    self.o = self._projection(c.d_model, axis=(-2, -1))

  def to_heads(self, memory: int = 0) -> nn.Module:
    """A projection of [..., D] to [..., H, K]; memory is as for `Product`."""
    c = self.config
    return self._projection((c.n_head, c.d_head), memory=memory)

  def _projection(self, outputs, **options):
    c = self.config
    init = initial.normal(c.init_std)
    shared: Any = dict(dtype=c.operand_dtype, use_bias=False)
    return Product(outputs, kernel_init=init, **shared, **options)

  def project(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, any, D] -> keys and values, each [B, any, H, K]."""
    apart, dtype = matmul.apart(states), self.config.operand_dtype
    return self.k(states).astype(dtype), self.v(apart).astype(dtype)

  def distances(self, positions: Any, words: Any = ()) -> Distances | None:
    """Made of the positions that all layers share; None if scores have none.

    The words, uint32 [2, 2], are for dropout of the query and the keys of
    positions, where q and k project these too; () for no dropout.
    """
    del positions, words

  def __call__(self, x, k, v, positions, filled, key=None, words=()):
    """x [B, T, D], k, v [B, S, H, K] and filled int32 [B] -> [B, T, D].

    filled is how many slots of the memory are real, None is all; the key is for
    dropout of probabilities, None is without, and so are the words, uint32
    [PROJECTED, 2], for that of projections, () without.
    """
    c, T, S = self.config, x.shape[1], k.shape[1]
    rate = 0.0 if key is None else c.dropatt
    distances: Any = self.distances(positions, words[3:])
    q = self.q(x)
    if len(words):
      q, k, v = (
        dropout.drop(y, c.dropout_qkv, own, c.locked_dropout)
        for y, own in zip((q, k, v), words)
      )

    def scores():
      if distances is None:
        return attention.content_scores(q, k, matmul.einsum)
      return attention.relative_scores(q, k, *distances)

    def mask():
      return attention.visibility(T, S - T, filled, c.span)

    show(self, MAPS, lambda: attention.probabilities(scores(), mask()))
    show(self, TERMS, lambda: score_terms(q, k, distances, mask()))
    if distances is None:
      more: Any = dict(dropout_rate=rate, dropout_key=key, einsum=matmul.einsum)
      return self.o(attention.attend(scores(), v, mask(), **more))
    r, u, v_bias, b = distances
    inputs = kernels.Inputs(q, k, v, r, u, v_bias, b, filled)
    name = None if c.attention == 'auto' else c.attention
    if self.is_initializing():  # parameters may be made on another device
      name = 'xla'
    try:
      out = attention_parallel.attend(
        inputs,
        span=min(c.span or S, S),
        rate=rate,
        key=key,
        implementation=name,
      )  # [B, T, H, K]
    except kernels.Unable as e:
      settings.refuse('model.attention', name, f'auto, xla; {e}')
    return self.o(out)


def score_terms(
  q: jax.Array, k: jax.Array, distances: Distances | None, mask: jax.Array
) -> jax.Array:
  """The terms whose sum is the score (Dai et al. 2019, Section 3.3).

  (a) q_i . k_j, (b) q_i . r_d, (c) u . k_j and (d) v . r_d, each / sqrt(K); a
  bias b_d belongs to (d). float32 or wider [4, B, H, T, S], NaN where a query
  does not see the key, by mask, bool [B or 1, T, S]. Arguments are as for
  `attention.relative_scores`; without distances, (a) is the only term and the
  others are 0.
  """
  a = attention.content_scores(q, k)
  others = [jnp.zeros_like(a)] * 3
  if distances is not None:
    r, u, v_bias, b = distances
    none, no_q, no_k = jnp.zeros_like(u), jnp.zeros_like(q), jnp.zeros_like(k)
    no_r = jnp.zeros_like(r)
    others = [
      attention.relative_scores(q, no_k, r, none, none),
      attention.relative_scores(no_q, k, no_r, u, none),
      attention.relative_scores(no_q, no_k, r, none, v_bias, b),
    ]
  return jnp.where(mask[:, None], jnp.stack([a, *others]), jnp.nan)


# What layers show on request: their attention, the terms of its scores, their
# output.
MAPS, TERMS, OUTPUTS = 'maps', 'terms', 'outputs'


def show(module: nn.Module, what: str, make: Callable[[], jax.Array]) -> None:
  """Sows what `make` returns, if the caller has made `what` mutable."""
  if module.is_mutable_collection(what) and not module.is_initializing():
    module.sow(what, 'shown', make())


# See `models.base.LanguageModel`.
SHARDING = (
  (r'attention/[qkv]/kernel', ('fsdp', 'tensor', None)),  # [D, H, K]
  (r'attention/o/kernel', ('tensor', None, 'fsdp')),  # [H, K, D]
  (r'ff/w1/kernel', ('fsdp', 'tensor')),  # [D, F]
  (r'ff/w1/bias', ('tensor',)),  # [F]
  (r'ff/w2/kernel', ('tensor', 'fsdp')),  # [F, D]
  (r'ff/w2/bias', ()),
  (r'norm/(scale|bias)', ()),
)

_OF_PRODUCTS = re.compile(r'(^|/)(attention|ff)/(.*/)?(?P<kind>kernel|bias)$')


def cast(params: Any, config: Any) -> Any:
  """The parameters of a model or layer, those of products as they are used.

  Kernels get the dtype of operands, biases that of states.
  """
  dtypes = {'kernel': config.operand_dtype, 'bias': config.state_dtype}

  def each(path, x):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    found = _OF_PRODUCTS.search(name)
    return x.astype(dtypes[found['kind']]) if found else x

  return jax.tree_util.tree_map_with_path(each, params)
