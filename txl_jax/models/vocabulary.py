"""Token embedding and the softmax over the vocabulary.

Shapes
  B batch, T segment, D model width, V vocabulary; bin i of the vocabulary has
  V_i words of width d_i.
"""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import initial
from txl_jax.models.config import Config
from txl_jax.ops import softmax
from txl_jax.parallel import vocab_parallel
from txl_jax.parallel.placement import VOCABULARY

# See `models.base.LanguageModel`.
SHARDING = (
  (r'vocabulary/(table|output)(_\d+)?', (VOCABULARY, None)),  # [V_i, d_i]
  (r'vocabulary/bias(_\d+)?', (VOCABULARY,)),  # [V_i]
  (r'vocabulary/(out_)?proj(_\d+)?', (None, 'fsdp')),  # [d_i, D]
  (r'vocabulary/tail_(weights|biases)', ()),
)


class Vocabulary(nn.Module):
  """Embedding and softmax of one bin of words, or of a head and tails.

  Tails are bins of ever rarer, narrower words (Grave et al. 2017; Baevski and
  Auli 2019). The parameters of several bins have names that end in the number
  of the bin; an empty one has only those of its logit in the head. With
  `config.d_softmax` the embedding is one table, whatever the bins, and final
  states have that width instead of D.
  """

  vocab_size: int  # V, sorted by frequency where there are tails
  config: Config
  scale: float = 1.0  # what embeddings are multiplied by
  temperature: float = 1.0  # what logits are divided by in `nll`; no tails then

  def setup(self) -> None:
    c, D = self.config, self.config.d_model
    V = self.vocab_size
    edges = 0, *(x for x in c.cutoffs if x < V), V
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    bins = range(len(sizes))
    head = c.d_softmax or c.d_embed or D
    widths = [head // c.div_val**i for i in bins]
    ends = [f'_{i}' for i in bins] if c.cutoffs else ['']

    def make(name, *shape, std=c.init_std):
      return self.param(name, initial.normal(std), shape, jnp.float32)

    def project(name, i):
      wide = c.d_softmax or D
      return make(name + ends[i], widths[i], wide, std=c.proj_init_std)

    def output_projection(i):
      if c.d_softmax:  # as Grave et al. have it
        return project('out_proj', i) if widths[i] < head else None
      if not self.projections:
        return None
      if c.tie_projs and c.tie_projs[i]:
        return self.projections[i if c.div_val > 1 else 0]
      return project('out_proj', i)

    def per_bin(name):
      return [make(name + ends[i], sizes[i], widths[i]) for i in bins]

    if c.d_softmax:
      self.tables = [make('table', self.vocab_size, D)]
      self.projections = []
    else:
      self.tables = per_bin('table')
      # Bins of one width share one input projection. Where widths differ even
      # the head has one, as in the published models.
      shared = [0] if widths[0] != D else []
      of = bins if c.div_val > 1 else shared
      self.projections = [project('proj', i) for i in of]
    outputs = self.tables if c.tie_weights else per_bin('output')
    out_projections = [output_projection(i) for i in bins]
    biases = [make('bias' + ends[i], sizes[i], std=0.0) for i in bins]
    tails = jnp.zeros([0, widths[0]]), jnp.zeros([0])
    if n := len(c.cutoffs):
      weights = make('tail_weights', n, widths[0])
      tails = weights, make('tail_biases', n, std=0.0)
    self.output = softmax.Output(outputs, biases, out_projections, *tails)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """int32 [B, T] -> [B, T, D], scaled."""
    flat, dtype = tokens.reshape(-1), self.config.operand_dtype
    x = vocab_parallel.embed(flat, self.tables, self.projections, dtype)
    x = x.astype(self.config.state_dtype)
    return x.reshape(*tokens.shape, self.config.d_model) * self.scale

  def logits(self, h: jax.Array) -> jax.Array:
    """[..., D] -> float32 [..., V]; with tails they are log-probabilities."""
    c, flat = self.config, h.reshape(-1, h.shape[-1])
    out = softmax.logits(
      flat, self.output, tail_order=c.tail_order, dtype=c.operand_dtype
    )
    return out.reshape(*h.shape[:-1], self.vocab_size)

  def nll(self, h: jax.Array, targets: jax.Array) -> jax.Array:
    """-log p(target) in nats: float32 [B, T], 0 where the target is -1."""
    c, output = self.config, self.output
    if self.temperature != 1:
      h = h / self.temperature
      biases = [b / self.temperature for b in output.biases]
      output = output._replace(biases=biases)
    out = vocab_parallel.nll(
      h.reshape(-1, h.shape[-1]),
      targets.reshape(-1),
      output,
      tail_order=c.tail_order,
      dtype=c.operand_dtype,
    )
    return out.reshape(targets.shape)


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
