"""Building blocks of Transformer-XL.

Shapes
  B batch, T segment, M memory, S = M + T, H heads, K head width,
  D model width, F feed-forward width.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base


class Dropout(nn.Module):
  """`attention.dropout` under the 'dropout' key of the module.

  Locked, it is variational dropout (Gal and Ghahramani 2016): x is
  [B, T, ...], and the T positions of a row share one mask.
  """

  @nn.compact
  def __call__(self, x, rate, *, train, locked=False):
    if not train or rate == 0.0:
      return x
    shared = (1,) if locked else ()
    return attention.dropout(x, rate, self.make_rng('dropout'), shared)


class WordDropout(nn.Module):
  """Drops words: every occurrence of a token in the batch, or none.

  As if rows of the embedding table were zero with probability rate and the
  others scaled by 1 / (1 - rate) (Gal and Ghahramani 2016; Merity et al.
  2018), whatever kind of table it is. Each call draws anew, so the parts of
  an accumulated batch have draws of their own.

  The first position of a segment is left as it is. Where memory is empty it
  sees itself alone: its state would be exactly zero in all layers, and each
  post-norm would multiply its gradient by 1 / sqrt(eps), beyond float32
  after a few layers.

  Attributes:
    vocab_size: V.
    rate: in [0, 1).
  """

  vocab_size: int
  rate: float

  @nn.compact
  def __call__(self, x, tokens, *, train):
    """x [B, T, D], the embeddings of tokens int32 [B, T]; an array like x."""
    if not train or self.rate == 0.0:
      return x
    wide = jnp.promote_types(x.dtype, jnp.float32)
    ones = jnp.ones([self.vocab_size], wide)
    scale = attention.dropout(ones, self.rate, self.make_rng('dropout'))
    scale = jnp.take(scale, tokens, axis=0).at[:, 0].set(1)[..., None]
    return (x.astype(wide) * scale).astype(x.dtype)


class LayerNorm(nn.Module):
  """Layer normalisation, in float32 or wider; the scale starts at N(1, std).

  Attributes:
    eps: added to the variance.
    init_std: of the scale.
    dtype: of the result.
  """

  eps: float
  init_std: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x):
    scale_init = lambda *args: (
      1.0 + nn.initializers.normal(self.init_std)(*args)
    )
    return nn.LayerNorm(
      epsilon=self.eps,
      dtype=jnp.promote_types(x.dtype, jnp.float32),
      scale_init=scale_init,
      use_fast_variance=False,
      name='norm',
    )(x).astype(self.dtype)


class FeedForward(nn.Module):
  """W2 dropout(relu(W1 x + b1)) + b2."""

  d_ff: int
  dropout: float
  locked: bool
  init_std: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x, *, train):
    init = nn.initializers.normal(self.init_std)
    D = x.shape[-1]
    h = nn.Dense(self.d_ff, kernel_init=init, dtype=self.dtype, name='w1')(x)
    h = jax.nn.relu(h)  # [B, T, F]
    h = Dropout()(h, self.dropout, train=train, locked=self.locked)
    return nn.Dense(D, kernel_init=init, dtype=self.dtype, name='w2')(h)


class Biases(nn.Module):
  """The global content and position biases u and v, each [H, K]."""

  n_head: int
  d_head: int
  init_std: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self):
    init = nn.initializers.normal(self.init_std)
    shape = (self.n_head, self.d_head)
    bias = lambda name: self.param(name, init, shape, jnp.float32)
    return bias('u').astype(self.dtype), bias('v').astype(self.dtype)


class RelativeAttention(nn.Module):
  """Projections around `attention.relative_attention`, no biases on them."""

  d_model: int
  n_head: int
  d_head: int
  dropatt: float
  init_std: float
  dtype: jnp.dtype

  def setup(self):
    init = nn.initializers.normal(self.init_std)
    shared: dict[str, Any] = dict(
      use_bias=False, kernel_init=init, dtype=self.dtype
    )
    heads = (self.n_head, self.d_head)
    self.q = nn.DenseGeneral(heads, **shared)
    self.k = nn.DenseGeneral(heads, **shared)
    self.v = nn.DenseGeneral(heads, **shared)
    self.r = nn.DenseGeneral(heads, **shared)
    self.o = nn.DenseGeneral(self.d_model, axis=(-2, -1), **shared)

  def project(self, states):
    """[B, any, D] -> keys and values, each [B, any, H, K]."""
    return self.k(states), self.v(states)

  def __call__(self, x, k, v, R, biases, mask, *, train):
    """x [B, T, D], k, v [B, S, H, K], R [S, D] and mask [B or 1, T, S]."""
    u, v_bias = biases
    rate = self.dropatt if train else 0.0
    out = attention.relative_attention(
      self.q(x),
      k,
      v,
      self.r(R),
      u,
      v_bias,
      mask,
      dropout_rate=rate,
      dropout_key=self.make_rng('dropout') if rate else None,
    )  # [B, T, H, K]
    return self.o(out)  # [B, T, D]


class Layer(nn.Module):
  """One layer of Transformer-XL; its input is what memory keeps.

  Post-norm: y = LN(x + Attn(x)), z = LN(y + FF(y)). Pre-norm: the same with
  the norm before each sublayer, memory un-normalised, no final norm.
  """

  n_head: int
  d_head: int
  d_ff: int
  dropout: float
  dropatt: float
  locked: bool
  untie_biases: bool
  pre_norm: bool
  init_std: float
  ln_eps: float
  dtype: jnp.dtype
  cache: bool

  @nn.compact
  def __call__(self, x, memory, R, biases, mask, lengths, train):
    """One segment.

    Args:
      x: [B, T, D].
      memory: [B, M, D], the inputs of this layer before the segment; with
        `cache` their keys and values instead, each [B, M, H, K].
      R: [S, D] position table.
      biases: u and v of all layers, or None where they are untied.
      mask: bool [B or 1, T, S].
      lengths: int32 [B] or None, as in `base.push`.
      train: whether dropout is on.

    Returns:
      [B, T, D], and the new memory of this layer.
    """
    shared: dict[str, Any] = dict(init_std=self.init_std, dtype=self.dtype)
    norm = lambda name: LayerNorm(self.ln_eps, name=name, **shared)
    drop = lambda y: Dropout()(y, self.dropout, train=train, locked=self.locked)
    if self.untie_biases:
      biases = Biases(self.n_head, self.d_head, name='biases', **shared)()
    attend = RelativeAttention(
      x.shape[-1],
      self.n_head,
      self.d_head,
      self.dropatt,
      name='attention',
      **shared,
    )
    feed = FeedForward(
      self.d_ff, self.dropout, self.locked, name='ff', **shared
    )
    norm1, norm2 = norm('norm1'), norm('norm2')
    before = norm1 if self.pre_norm else lambda y: y

    query = before(x)
    join = lambda old, new: jnp.concatenate([old, new], axis=1)
    if self.cache:
      new = attend.project(query)
      k, v = jax.tree.map(join, memory, new)
    else:
      new = x
      k, v = attend.project(join(before(memory), query))
    push = lambda old, new: base.push(old, new, lengths)
    new_memory = jax.tree.map(push, memory, new)

    attended = attend(query, k, v, R, biases, mask, train=train)
    if self.pre_norm:
      y = x + drop(attended)
      z = y + drop(feed(norm2(y), train=train))
    else:
      y = norm1(x + drop(attended))
      z = norm2(y + drop(feed(y, train=train)))
    return z, new_memory
