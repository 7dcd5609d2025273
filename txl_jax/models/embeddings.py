"""Token embedding and the softmax over the vocabulary.

Shapes
  B batch, T segment, D model width, V vocabulary; bin i of an adaptive
  vocabulary has V_i words of width d_i.
"""

import itertools

import flax.linen as nn
import jax.numpy as jnp

from txl_jax.ops import sampled_softmax, softmax
from txl_jax.parallel import vocab_parallel


class Vocabulary(nn.Module):
  """Embedding table, and output weights tied to it or of their own.

  Attributes:
    vocab_size: V.
    d_model: D.
    tied: whether the output weights are the table.
    init_std: of the table.
    dtype: compute dtype; parameters, logits and nll are float32.
    samples: words that training draws for each segment instead of summing
      over all V (`sampled_softmax.nll`); 0 sums over all.
  """

  vocab_size: int
  d_model: int
  tied: bool
  init_std: float
  dtype: jnp.dtype
  samples: int = 0

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
    x = vocab_parallel.embed(tokens.reshape(-1), [self.table], [], self.dtype)
    return x.reshape(*tokens.shape, self.d_model) * self.d_model**0.5

  @property
  def _weights(self):
    return self.table if self.tied else self.output

  def logits(self, h):
    """[B, T, D] -> float32 [B, T, V]; the tied weights are not scaled."""
    scores = jnp.einsum(
      'btd,vd->btv',
      h.astype(self.dtype),
      self._weights.astype(self.dtype),
      preferred_element_type=jnp.promote_types(self.dtype, jnp.float32),
    )
    return scores + self.bias

  def nll(self, h, targets, *, train=False):
    """-log p(target) in nats: float32 [B, T], 0 where the target is -1.

    With `samples` and train, an estimate under the 'dropout' key.
    """
    if train and self.samples:
      return sampled_softmax.nll(
        h.astype(self.dtype).reshape(-1, self.d_model),
        targets.reshape(-1),
        self._weights,
        self.bias,
        self.samples,
        self.make_rng('dropout'),
      ).reshape(targets.shape)
    one_bin = softmax.Output(
      [self._weights],
      [self.bias],
      [None],
      jnp.zeros([0, self.d_model]),
      jnp.zeros([0]),
    )
    out = vocab_parallel.nll(
      h.reshape(-1, self.d_model),
      targets.reshape(-1),
      one_bin,
      dtype=self.dtype,
    )
    return out.reshape(targets.shape)


class AdaptiveVocabulary(nn.Module):
  """Adaptive embedding and softmax: bins of ever rarer, narrower words.

  With no cutoffs there is one bin: a plain vocabulary whose embeddings have
  a width of their own, projected to that of the model.

  Attributes:
    vocab_size: V, sorted by frequency.
    d_model: D.
    d_embed: width of the head's words, d_0.
    cutoffs: first token id of each tail.
    div_val: bin i has width d_0 / div_val^i.
    tie_projs: for each bin, whether its output projection is the one of the
      embedding.
    tail_order: see `softmax.nll`.
    tied: whether the output weights are the embedding tables.
    init_std: of tables and output weights.
    proj_init_std: of the projections.
    dtype: compute dtype; parameters, logits and nll are float32.
  """

  vocab_size: int
  d_model: int
  d_embed: int
  cutoffs: tuple[int, ...]
  div_val: int
  tie_projs: tuple[bool, ...]
  tail_order: str
  tied: bool
  init_std: float
  proj_init_std: float
  dtype: jnp.dtype

  def setup(self):
    edges = 0, *self.cutoffs, self.vocab_size
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    widths = [self.d_embed // self.div_val**i for i in range(len(sizes))]
    normal = nn.initializers.normal(self.init_std)
    zeros = nn.initializers.zeros
    make = lambda name, *shape, init=normal: self.param(
      name, init, shape, jnp.float32
    )
    project = lambda name, i: make(
      f'{name}_{i}',
      widths[i],
      self.d_model,
      init=nn.initializers.normal(self.proj_init_std),
    )
    bins = range(len(sizes))
    self.tables = [make(f'table_{i}', sizes[i], widths[i]) for i in bins]
    # Bins of one width share one input projection. Where widths differ even
    # the head has one, as in the published models.
    if self.div_val > 1:
      self.projections = [project('proj', i) for i in bins]
    else:
      width = self.d_embed != self.d_model
      self.projections = [project('proj', 0)] if width else []
    self.outputs = (
      self.tables
      if self.tied
      else [make(f'output_{i}', sizes[i], widths[i]) for i in bins]
    )
    self.out_projections = [self._output_projection(project, i) for i in bins]
    self.biases = [make(f'bias_{i}', sizes[i], init=zeros) for i in bins]
    tails = len(self.cutoffs)
    self.tail_weights = make('tail_weights', tails, widths[0])
    self.tail_biases = make('tail_biases', tails, init=zeros)

  def _output_projection(self, project, i):
    if not self.projections:
      return None
    if self.tie_projs[i]:
      return self.projections[i if self.div_val > 1 else 0]
    return project('out_proj', i)

  @property
  def _output(self):
    return softmax.Output(
      self.outputs,
      self.biases,
      self.out_projections,
      self.tail_weights,
      self.tail_biases,
    )

  def embed(self, tokens):
    """int32 [B, T] -> [B, T, D], scaled by sqrt(D) (paper's code)."""
    x = vocab_parallel.embed(
      tokens.reshape(-1), self.tables, self.projections, self.dtype
    )
    return x.reshape(*tokens.shape, self.d_model) * self.d_model**0.5

  def logits(self, h):
    """[B, T, D] -> log-probabilities, float32 [B, T, V]."""
    out = softmax.log_probs(
      h.reshape(-1, self.d_model),
      self._output,
      tail_order=self.tail_order,
      dtype=self.dtype,
    )
    return out.reshape(*h.shape[:-1], self.vocab_size)

  def nll(self, h, targets, *, train=False):
    """-log p(target) in nats: float32 [B, T], 0 where the target is -1."""
    del train  # the same then
    out = vocab_parallel.nll(
      h.reshape(-1, self.d_model),
      targets.reshape(-1),
      self._output,
      tail_order=self.tail_order,
      dtype=self.dtype,
    )
    return out.reshape(targets.shape)
