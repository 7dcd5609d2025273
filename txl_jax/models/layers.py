"""Building blocks that models share.

Shapes
  B batch, T segment, D model width, F feed-forward width, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention


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
  """Layer normalisation, in float32 or wider; the scale starts at N(1, std)."""

  eps: float  # added to the variance
  init_std: float  # of the scale
  dtype: Any  # of the result

  @nn.compact
  def __call__(self, x):
    """[..., D] -> [..., D]."""

    def scale_init(*args):
      return 1.0 + nn.initializers.normal(self.init_std)(*args)

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
  dtype: Any

  @nn.compact
  def __call__(self, x, *, train):
    """[B, T, D] -> [B, T, D]."""
    shared: dict[str, Any] = dict(
      kernel_init=nn.initializers.normal(self.init_std), dtype=self.dtype
    )
    h = jax.nn.relu(nn.Dense(self.d_ff, name='w1', **shared)(x))  # [B, T, F]
    h = Dropout()(h, self.dropout, train=train, locked=self.locked)
    return nn.Dense(x.shape[-1], name='w2', **shared)(h)


# See `models.base.LanguageModel`.
SHARDING = (
  (r'ff/w1/kernel', ('fsdp', 'tensor')),  # [D, F]
  (r'ff/w1/bias', ('tensor',)),  # [F]
  (r'ff/w2/kernel', ('tensor', 'fsdp')),  # [F, D]
  (r'ff/w2/bias', ()),
  (r'norm/(scale|bias)', ()),
)
