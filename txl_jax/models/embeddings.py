"""Token embedding and the softmax over the vocabulary.

Shapes: B batch, T segment, D model width, V vocabulary.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Vocabulary(nn.Module):
  """Embedding table, and output weights tied to it or of their own.

  Attributes:
    vocab_size: V.
    d_model: D.
    tied: whether the output weights are the table.
    init_std: of the table.
    dtype: compute dtype; parameters, logits and nll are float32.
  """

  vocab_size: int
  d_model: int
  tied: bool
  init_std: float
  dtype: jnp.dtype

  def setup(self):
    init = nn.initializers.normal(self.init_std)
    shape = (self.vocab_size, self.d_model)
    self.table = self.param('table', init, shape, jnp.float32)
    if not self.tied:
      self.output = self.param('output', init, shape, jnp.float32)
    zeros = nn.initializers.zeros
    self.bias = self.param('bias', zeros, shape[:1], jnp.float32)

  def embed(self, tokens):
    """int32 [B, T] -> [B, T, D], scaled by sqrt(D) (paper's code)."""
    table = self.table.astype(self.dtype)
    return jnp.take(table, tokens, axis=0) * self.d_model**0.5

  def logits(self, h):
    """[B, T, D] -> float32 [B, T, V]; the tied weights are not scaled."""
    weights = self.table if self.tied else self.output
    scores = jnp.einsum(
      'btd,vd->btv',
      h.astype(self.dtype),
      weights.astype(self.dtype),
      preferred_element_type=jnp.promote_types(self.dtype, jnp.float32),
    )
    return scores + self.bias

  def nll(self, h, targets):
    """-log p(target) in nats: float32 [B, T], 0 where the target is -1."""
    logits = self.logits(h)
    index = jnp.maximum(targets, 0)[..., None]
    chosen = jnp.take_along_axis(logits, index, axis=-1)[..., 0]
    nll = jax.nn.logsumexp(logits, axis=-1) - chosen
    return jnp.where(targets >= 0, nll, 0)
