"""Transformer-XL (Dai et al. 2019).

Shapes
  B batch, T segment, M memory, S = M + T, N layers, H heads, K head width,
  D model width, F feed-forward width, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, embeddings, layers, regularisation

# How many keys a query sees, itself included, by the option same_length.
SPANS = {
  'off': lambda M: None,
  'M': lambda M: max(M, 1),
  'M+1': lambda M: M + 1,
}

# What is kept for the backward pass, by the option remat.
POLICIES = {
  'scores': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'layer': jax.checkpoint_policies.nothing_saveable,
}


class TransformerXL(nn.Module):
  """Transformer-XL behind the interface of `models.base`.

  Attributes:
    vocab_size: V.
    n_layer: N.
    d_model: D, even.
    n_head: H.
    d_head: K.
    d_ff: F.
    mem_len: M; 0 is a model without memory.
    dropout: of embeddings, position table, attention output, feed-forward
      hidden and output, and final states.
    dropatt: of the attention probabilities.
    dropout_embed: of embeddings, instead of dropout; -1 is as dropout.
    dropout_final: of final states, instead of dropout; -1 is as dropout.
    locked_dropout: the positions of a row's segment share one mask
      (variational dropout). The position table, which has no rows, and the
      attention probabilities, where it would hide a key from the whole
      segment, keep dropout as it is.
    word_dropout: of whole words, see `layers.WordDropout`.
    activation_reg: weight of the mean square of the final states after
      dropout, in `aux` (see `regularisation`).
    temporal_activation_reg: weight of the mean square of their changes from
      one position to the next, before dropout, in `aux`.
    untie_biases: u and v per layer instead of one pair for all.
    pre_norm: norms before the sublayers instead of after the residual sum.
    same_length: 'off', every query sees all S keys that causality allows;
      'M', each sees M keys, itself included (original PyTorch code); 'M+1',
      one more (original TensorFlow code).
    clamp_len: distances above it count as it; 0 is off.
    memory_init: 'empty', memory starts with no visible slot; 'zeros', with M
      zero states that are attended to (original TensorFlow code, HF).
    tie_weights: whether the output weights are the embedding table.
    cutoffs: first token id of each tail of the adaptive softmax; none is a
      plain softmax.
    d_embed: width of the embeddings of the head; 0 is d_model.
    div_val: the words of tail i are div_val^i times narrower.
    tie_projs: for each bin, the head first, whether its output projection is
      that of the embedding; none is all of them apart.
    tail_order: see `softmax.nll`.
    softmax_samples: words drawn for a sampled softmax in training, for a
      vocabulary without cutoffs; 0 is the softmax over all.
    init_std: of every weight, and of the norm scales around 1.
    proj_init_std: of the projections of embeddings.
    ln_eps: of the layer norms.
    dtype: compute dtype, 'float32' or 'bfloat16' ('float64' under x64);
      parameters stay float32, softmax, norms and nll are computed in it.
    unroll: how many layers one iteration of the layer loop holds.
    remat: what a layer computes again in the backward pass: 'none'; 'scores',
      all but the results of products with its weights, so attention is, and
      nothing of size T x S is kept; 'layer', all.
    cache_projections: memory holds the keys and values of the past states
      instead of the states: the same function where the weights are frozen,
      without projecting M states again for every segment or token.
  """

  vocab_size: int
  n_layer: int
  d_model: int
  n_head: int
  d_head: int
  d_ff: int
  mem_len: int
  dropout: float = 0.0
  dropatt: float = 0.0
  dropout_embed: float = -1.0
  dropout_final: float = -1.0
  locked_dropout: bool = False
  word_dropout: float = 0.0
  activation_reg: float = 0.0
  temporal_activation_reg: float = 0.0
  untie_biases: bool = False
  pre_norm: bool = False
  same_length: str = 'off'
  clamp_len: int = 0
  memory_init: str = 'empty'
  tie_weights: bool = True
  cutoffs: tuple[int, ...] = ()
  d_embed: int = 0
  div_val: int = 1
  tie_projs: tuple[bool, ...] = ()
  tail_order: str = 'ascending'
  softmax_samples: int = 0
  init_std: float = 0.02
  proj_init_std: float = 0.01
  ln_eps: float = 1e-5
  dtype: str = 'float32'
  unroll: int = 1
  remat: str = 'none'
  cache_projections: bool = False

  def setup(self):
    dtype = jnp.dtype(self.dtype)
    shared: dict[str, Any] = dict(init_std=self.init_std, dtype=dtype)
    self.vocabulary = self._vocabulary(shared)
    if not self.untie_biases:
      self.biases = layers.Biases(self.n_head, self.d_head, **shared)
    # One set of weights per layer, side by side: a stack of them would be
    # copied out slice by slice in every step.
    self.layers = [
      layers.Layer(
        self.n_head,
        self.d_head,
        self.d_ff,
        self.dropout,
        self.dropatt,
        self.locked_dropout,
        self.untie_biases,
        self.pre_norm,
        ln_eps=self.ln_eps,
        cache=self._caches,
        **shared,
      )
      for _ in range(self.n_layer)
    ]
    self.drop = layers.Dropout()
    self.drop_words = layers.WordDropout(self.vocab_size, self.word_dropout)

  def _drop_ends(self, x, own_rate, train):
    """Dropout of embeddings or final states [B, T, D]."""
    rate = self.dropout if own_rate < 0 else own_rate
    return self.drop(x, rate, train=train, locked=self.locked_dropout)

  def _vocabulary(self, shared):
    d_embed = self.d_embed or self.d_model
    if not self.cutoffs and d_embed == self.d_model:
      return embeddings.Vocabulary(
        self.vocab_size,
        self.d_model,
        self.tie_weights,
        samples=self.softmax_samples,
        **shared,
      )
    return embeddings.AdaptiveVocabulary(
      self.vocab_size,
      self.d_model,
      d_embed,
      self.cutoffs,
      self.div_val,
      self.tie_projs or (False,) * (len(self.cutoffs) + 1),
      self.tail_order,
      self.tie_weights,
      proj_init_std=self.proj_init_std,
      **shared,
    )

  @property
  def _caches(self):
    # A zero state has zero keys and values, but behind a norm it has not.
    zeros_behind_norm = self.pre_norm and self.memory_init == 'zeros'
    return self.cache_projections and not zeros_behind_norm

  @property
  def _start(self):
    return self.mem_len if self.memory_init == 'zeros' else 0

  def init_memory(self, batch_size):
    """A memory for batch_size rows: empty, or full of zero states."""
    lead = (self.n_layer, batch_size, self.mem_len)
    if self._caches:
      zeros = lambda: jnp.zeros((*lead, self.n_head, self.d_head), self.dtype)
      states = (zeros(), zeros())
    else:
      states = jnp.zeros((*lead, self.d_model), self.dtype)
    filled = jnp.full([batch_size], self._start, jnp.int32)
    return base.Memory(states, filled)

  def reset_memory(self, memory, rows):
    """The memory with the given rows (bool [B]) as `init_memory` makes them."""

    def clear(states):
      index = (slice(None),) + (None,) * (states.ndim - 2)
      return jnp.where(rows[index], 0, states)

    return base.Memory(
      states=jax.tree.map(clear, memory.states),
      filled=jnp.where(rows, self._start, memory.filled),
    )

  def _states(self, tokens, memory, lengths, train):
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    T = tokens.shape[1]
    M = self.mem_len
    x = self.vocabulary.embed(tokens)
    x = self.drop_words(x, tokens, train=train)
    h = self._drop_ends(x, self.dropout_embed, train)
    # The table is made in float32 whatever the compute dtype: bfloat16 has
    # too few digits for the angles of far distances.
    wide = jnp.promote_types(self.dtype, jnp.float32)
    d = attention.distances(M + T, self.clamp_len, wide)
    R = attention.sinusoid(d, self.d_model).astype(self.dtype)
    R = self.drop(R, self.dropout, train=train)
    span = SPANS[self.same_length](M)
    mask = attention.visibility(T, M, memory.filled, span)
    biases = None if self.untie_biases else self.biases()
    arguments = R, biases, mask, lengths, train
    rngs = {'dropout': self.make_rng('dropout')} if train else {}
    h, states = self._run_layers(h, memory.states, arguments, rngs)
    filled = memory.filled + (T if lengths is None else lengths)
    memory = base.Memory(states, jnp.minimum(filled, M))
    return h, memory

  def _run_layers(self, h, states, arguments, rngs):
    """All layers, one after the other, in a loop or in a scan.

    Args:
      h: [B, T, D].
      states: of the memory.
      arguments: what every layer is given besides.
      rngs: dict of keys; each layer has its own, made from them.

    Returns:
      [B, T, D], and the new states of the memory.
    """
    if self.is_initializing():
      for n, layer in enumerate(self.layers):
        h, _ = layer(h, _slice(states, n), *arguments)
      return h, states

    apply = self.layers[0].clone(parent=None).apply

    def run(h, layer):
      params, past, n = layer
      own = {name: jax.random.fold_in(key, n) for name, key in rngs.items()}
      return apply({'params': params}, h, past, *arguments, rngs=own)

    if self.remat != 'none':
      run = jax.checkpoint(run, policy=POLICIES[self.remat])
    params = [layer.variables['params'] for layer in self.layers]
    N = self.n_layer
    if self.unroll < N:
      each = _stack(params), states, jnp.arange(N)
      return jax.lax.scan(run, h, each, unroll=self.unroll)
    new_states = []
    for n in range(N):
      h, new = run(h, (params[n], _slice(states, n), n))
      new_states.append(new)
    return h, _stack(new_states)

  def __call__(self, tokens, targets, memory, *, train, lengths=None):
    """Nll of the targets; see `models.base` for the arguments."""
    states, memory = self._states(tokens, memory, lengths, train)
    h = self._drop_ends(states, self.dropout_final, train)
    nll = self.vocabulary.nll(h, targets, train=train)
    aux = jnp.zeros([], nll.dtype)
    size, change = self.activation_reg, self.temporal_activation_reg
    if train and (size > 0 or change > 0):
      aux += regularisation.activations(
        states, h, lengths, size=size, change=change
      )
    return base.LMOutput(nll, memory, aux)

  def logits(self, tokens, memory, *, lengths=None):
    """Next-token logits, float32 [B, T, V], and the new memory."""
    h, memory = self._states(tokens, memory, lengths, train=False)
    return self.vocabulary.logits(h), memory


def _slice(tree, n):
  """Row n of every leaf."""
  return jax.tree.map(lambda leaf: leaf[n], tree)


def _stack(trees):
  """A list of trees -> one whose leaves have the list in front."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
