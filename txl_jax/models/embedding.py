"""Both ends of a language model: token embedding, and softmax with the loss.

Shapes
  B batch, T segment, D model width, V vocabulary; bin i of the vocabulary has
  V_i words with embeddings of width d_i.
"""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import initial
from txl_jax.models.config import Config
from txl_jax.ops import dropout, softmax
from txl_jax.parallel import vocab_parallel
from txl_jax.parallel.placement import VOCABULARY

# Sharding rules, see `models.base.LanguageModel.SHARDING`.
SHARDING = (
  (r'vocabulary/(table|output)(_\d+)?', (VOCABULARY, None)),  # [V_i, d_i]
  (r'vocabulary/bias(_\d+)?', (VOCABULARY,)),  # [V_i]
  (r'vocabulary/(out_)?proj(_\d+)?', (None, 'fsdp')),  # [d_i, D]
  (r'vocabulary/tail_(weights|biases)', ()),
)


class Dropout(nn.Module):
  """Dropout of x [B, T, ...], with the module's 'dropout' key.

  With `locked`, all positions share one mask, see `ops.dropout.drop`.
  """

  @nn.compact
  def __call__(
    self, x: jax.Array, rate: float, *, train: bool, locked: bool = False
  ) -> jax.Array:
    if not train or rate == 0.0:
      return x
    return dropout.drop(x, rate, self.make_rng('dropout'), locked)


class WordDropout(nn.Module):
  """Drops words: all occurrences of a token in the batch, or none.

  Equals dropout of rows of the embedding table (Gal and Ghahramani 2016; Merity
  et al. 2018): a row is 0 with probability `rate`, or divided by 1 - rate.

  The first position of a segment is never dropped. With an empty memory it sees
  only itself, so its state would be zero in all layers, and each post-norm
  would multiply its gradient by 1 / sqrt(eps). With a nonzero `tiny`, dropped
  embeddings are `tiny` instead of 0, and the first position may be dropped.
  """

  vocab_size: int
  rate: float
  tiny: float

  @nn.compact
  def __call__(
    self, x: jax.Array, tokens: jax.Array, *, train: bool
  ) -> jax.Array:
    """Embeddings x [B, T, D] of tokens int32 [B, T] -> [B, T, D]."""
    if not train or self.rate == 0.0:
      return x
    wide = attention.widened(x.dtype)
    ones = jnp.ones([self.vocab_size], wide)
    scale = attention.dropout(ones, self.rate, self.make_rng('dropout'))  # [V]
    scale = jnp.take(scale, tokens, axis=0)[..., None]  # [B, T, 1]
    if not self.tiny:
      scale = scale.at[:, 0].set(1)
    kept = (x.astype(wide) * scale).astype(x.dtype)
    return jnp.where(scale > 0, kept, self.tiny) if self.tiny else kept


class Embedding(nn.Module):
  """Embedding and softmax, plain or adaptive with a head and tails.

  Each tail is a bin of rarer words with narrower embeddings (Grave et al. 2017;
  Baevski and Auli 2019). With tails, parameter names end in the number of the
  bin; an empty tail has only the parameters of its logit in the head. With
  `config.d_softmax`, all bins share one embedding table, and final states have
  width d_softmax instead of D.
  """

  vocab_size: int  # V; words are sorted by frequency if there are tails
  config: Config
  scale: float  # multiplies embeddings
  temperature: float  # divides logits in `nll`; 1 if there are tails
  drop: Dropout
  drop_words: WordDropout

  def setup(self) -> None:
    c, V, D = self.config, self.vocab_size, self.config.d_model
    edges = 0, *(x for x in c.cutoffs if x < V), V
    sizes = [b - a for a, b in itertools.pairwise(edges)]  # V_i
    bins = range(len(sizes))
    head_width = c.d_softmax or c.d_embed or D
    widths = [head_width // c.div_val**i for i in bins]  # d_i
    suffixes = [f'_{i}' for i in bins] if c.cutoffs else ['']

    def param(name, *shape, std=c.init_std):
      return self.param(name, initial.normal(std), shape, jnp.float32)

    def per_bin(name):
      return [param(name + suffixes[i], sizes[i], widths[i]) for i in bins]

    def projection(name, i):
      shape = widths[i], c.d_softmax or D
      return param(name + suffixes[i], *shape, std=c.proj_init_std)

    def output_projection(i):
      if c.d_softmax:  # as in Grave et al.: none for bins as wide as the head
        return projection('out_proj', i) if widths[i] < head_width else None
      if not self.projections:
        return None
      if c.tie_projs and c.tie_projs[i]:
        return self.projections[i if c.div_val > 1 else 0]
      return projection('out_proj', i)

    if c.d_softmax:
      tables, self.projections = [param('table', V, D)], []
    else:
      tables = per_bin('table')
      # Bins of the same width share one input projection. If widths differ,
      # even the head has a projection, as in the published models.
      shared = [0] if widths[0] != D else []
      projected = bins if c.div_val > 1 else shared
      self.projections = [projection('proj', i) for i in projected]
    outputs = tables if c.tie_weights else per_bin('output')
    out_projections = [output_projection(i) for i in bins]
    biases = [param('bias' + suffixes[i], sizes[i], std=0.0) for i in bins]
    tails = jnp.zeros([0, widths[0]]), jnp.zeros([0])
    if n := len(c.cutoffs):
      weights = param('tail_weights', n, widths[0])
      tails = weights, param('tail_biases', n, std=0.0)
    self.output = softmax.Output(outputs, biases, out_projections, *tails)
    self.tables = self.weights = vocab_parallel.per_device(tables)
    if not c.tie_weights:
      self.weights = vocab_parallel.per_device(outputs)

  def embed(
    self, tokens: jax.Array, *, train: bool, positions: jax.Array | None = None
  ) -> jax.Array:
    """int32 [B, T] -> [B, T, D], the input of the first layer.

    Embeddings are multiplied by `scale`. Position encodings, [1 or B, T, D],
    are added after word dropout.
    """
    c = self.config
    flat = tokens.reshape(-1)
    # `softmax.embed`; on a mesh, each device has some of the tokens' rows.
    x = vocab_parallel.embed(
      flat, self.tables, self.projections, c.operand_dtype
    )
    x = x.astype(c.state_dtype)
    x = x.reshape(*tokens.shape, c.d_model) * self.scale
    x = self.drop_words(x, tokens, train=train)
    if positions is not None:
      x += positions
    return self._drop_ends(x, c.dropout_embed, train)

  def loss(
    self, states: jax.Array, targets: jax.Array, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """The nll and aux of `base.LMOutput`, from final states [B, T, D]."""
    c = self.config
    h = self.drop(states, c.dropout_final_plain, train=train)
    h = self._drop_ends(h, c.dropout_final, train)
    nll = self.nll(h, targets)
    aux = jnp.zeros([2], nll.dtype)
    if train and (c.activation_reg > 0 or c.temporal_activation_reg > 0):
      activations = h if c.activation_reg_dropped else states
      aux += penalty(c, states, activations, targets >= 0)
    return nll, aux

  def _drop_ends(self, x: jax.Array, rate: float, train: bool) -> jax.Array:
    """Dropout of embeddings or final states; rate -1 means model.dropout."""
    c = self.config
    rate = c.or_dropout(rate)
    return self.drop(x, rate, train=train, locked=c.locked_dropout)

  def logits(self, h: jax.Array) -> jax.Array:
    """[..., D] -> float32 [..., V]; log-probabilities if there are tails."""
    c = self.config
    flat = h.reshape(-1, h.shape[-1])
    out = softmax.logits(
      flat, self.output, tail_order=c.tail_order, dtype=c.operand_dtype
    )
    return out.reshape(*h.shape[:-1], self.vocab_size)

  def nll(self, h: jax.Array, targets: jax.Array) -> jax.Array:
    """-log p(target) in nats: float32 [B, T], 0 for a target of -1."""
    c, output = self.config, self.output._replace(weights=self.weights)
    if self.temperature != 1:
      h = h / self.temperature
      biases = [b / self.temperature for b in output.biases]
      output = output._replace(biases=biases)
    # `softmax.nll`; on a mesh, each device has some of the tokens' rows.
    out = vocab_parallel.nll(
      h.reshape(-1, h.shape[-1]),
      targets.reshape(-1),
      output,
      tail_order=c.tail_order,
      dtype=c.operand_dtype,
    )
    return out.reshape(targets.shape)


def penalty(
  config: Any, states: jax.Array, activations: jax.Array, scored: jax.Array
) -> jax.Array:
  """Penalises large and fast-changing final states (Merity et al. 2017).

    activation_reg mean(activations_t^2)
    + temporal_activation_reg mean((states_t - states_(t-1))^2)

  Means are over features and scored positions, bool [B, T]; in the second, both
  t and t - 1 must be scored. `states` are [B, T, D]; `activations` are the same
  states, after dropout with activation_reg_dropped. Returns both terms as an
  `LMOutput.aux`: float32 [2], or wider like states, not divided by counts yet.
  """
  wide = attention.widened(states.dtype)
  states, activations = states.astype(wide), activations.astype(wide)

  def sum_squares(x, scored):
    return jnp.sum(jnp.where(scored[..., None], x**2, 0)) / x.shape[2]

  changes = states[:, 1:] - states[:, :-1]
  pairs = scored[:, 1:] & scored[:, :-1]
  ar = config.activation_reg * sum_squares(activations, scored)
  tar = config.temporal_activation_reg * sum_squares(changes, pairs)
  return jnp.stack([ar, tar])
