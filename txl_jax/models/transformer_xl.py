"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860, Section 3).

Shapes
  B batch, T segment, M memory, S = M + T keys, N layers, H heads, K head width,
  D model width, F feed-forward width, V vocabulary.

The model maps the tokens of a segment and the memory m of earlier segments to
the loss. On the right, the code that computes each line; dropout is omitted.

  h = sqrt(D) E[tokens]                             embedding.Embedding.embed
  R_d = sinusoid(d), d = S - 1 .. 0                 TransformerXL.positions
  in each of N layers, which has its own m:         Layer
    m' = stop_gradient(concat(m, h)[-M:])           attention.update_memory
    q, k, v = W_q h, W_k concat(m, h), W_v concat(m, h); r_d = W_r R_d
    score(i, j) = (q_i.k_j + q_i.r_d + u.k_j + v_bias.r_d) / sqrt(K)
    y = LN(h + W_o softmax(score) v)                Attention
    h = LN(y + W_2 relu(W_1 y + b_1) + b_2)         FeedForward
  nll = -log softmax(E h + b)[targets]              embedding.Embedding.loss

d = i + M - j is the distance from query i to key j; `attention.relative_shift`
moves q_i.r_d from d's column to j's. Other modules make the model fast and
parallel: `stack` (products and the loop over layers), `ring_model` (cached keys
and values), `ops.kernels` (attention).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, config, initial, inspection, ring_model, stack
from txl_jax.models.config import model_name, rate
from txl_jax.ops import dropout, kernels, matmul, norm
from txl_jax.ops.kernels import dispatch, proof
from txl_jax.program.settings import OTHER, key


@dataclasses.dataclass(frozen=True)
class Config(config.Relative):
  """Keys of `TransformerXL`, the section `model` of a config.

  Inherited from `models.config` are, among others, n_layer N, n_head H, d_head
  K, d_ff F, d_model D, mem_len M, same_length and clamp_len.
  """

  SINUSOIDS = True

  name: str = model_name('transformer_xl', 'Transformer-XL (Dai et al. 2019)')
  untie_biases: bool = key(  # pyright: ignore
    False, 'Each layer has its own biases u and v; if False, all share them.'
  )
  dropout_table: float = rate(
    -1.0,
    'Dropout rate of position tables; -1 means model.dropout.',
    at_least=-1,
  )
  locked_table: bool = key(
    False, 'One dropout mask for all rows of the table.', may_change=OTHER
  )
  tie_positions: bool = key(
    False,  # see `models.build`
    'Positions use the projections of queries and keys, as in the PyTorch code '
    'for Penn Treebank: r_d = W_k sinusoid(d), u = v = W_q sinusoid(0). W_r, u '
    'and v are then not parameters.',
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys with conflicting values, see `settings`."""
    if self.tie_positions and self.untie_biases:
      yield 'untie_biases', 'False with model.tie_positions'
    yield from super().problems()


class Biases(nn.Module):
  """The global content and position biases u and v, each [H, K]."""

  config: Any

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    c = self.config
    init = initial.normal(c.init_std)
    shape = c.n_head, c.d_head
    u = self.param('u', init, shape, jnp.float32)
    v = self.param('v', init, shape, jnp.float32)
    return u.astype(c.state_dtype), v.astype(c.state_dtype)


class PositionTerms(NamedTuple):
  """Position table and biases, arguments of `attention.relative_scores`."""

  r: jax.Array  # [S, H, K], farthest first
  u: jax.Array  # [H, K]
  v_bias: jax.Array  # [H, K]
  b: jax.Array | None = None  # [S, H], added before division by sqrt(K)


class DropoutBits(NamedTuple):
  """Random bits for the dropout of one layer, each uint32 [2] or None."""

  probabilities: jax.Array | None = None  # of attention
  attended: jax.Array | None = None  # the output of attention
  hidden: jax.Array | None = None  # the features of the feed-forward layer
  output: jax.Array | None = None  # the output of the feed-forward layer
  # With dropout_qkv: q, k, v, and u and r where q and k project positions.
  q: jax.Array | None = None
  k: jax.Array | None = None
  v: jax.Array | None = None
  u: jax.Array | None = None
  r: jax.Array | None = None


N_WITHOUT_QKV = DropoutBits._fields.index('q')  # the number of those before q
NO_DROPOUT = DropoutBits()


class Attention(nn.Module):
  """Relative attention to concat(memory, segment); projections have no bias.

  Keys and values come from `project`, called by the layer: at test time a ring
  has those of the past. A model with other positions overrides
  `setup_positions` and `position_terms`; with none, also `scores` and `attend`.
  """

  config: Any

  def setup(self) -> None:
    c = self.config
    self.q = self.to_heads()
    # With pre_norm, the memory passes a norm whose parameters have gradients.
    memory = 0 if c.pre_norm else c.mem_len
    self.k, self.v = (self.to_heads(memory=memory) for _ in range(2))
    self.o = stack.product(c, c.d_model, axis=(-2, -1), use_bias=False)
    self.setup_positions()

  def __call__(
    self,
    x: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: tuple[Any, Any],
    filled: jax.Array | None,
    bits: DropoutBits = NO_DROPOUT,
  ) -> jax.Array:
    """x [B, T, D], k and v [B, S, H, K] -> [B, T, D].

    Positions are as for `position_terms`. `filled`, int32 [B], is the number of
    filled memory slots, None for M.
    """
    c = self.config
    terms = self.position_terms(positions, bits)
    q = self.q(x)  # [B, T, H, K]
    q, k, v = (
      dropout.drop(y, c.dropout_qkv, y_bits, c.locked_dropout)
      for y, y_bits in ((q, bits.q), (k, bits.k), (v, bits.v))
    )
    inspection.show_attention(self, q, k, terms, filled)
    return self.o(self.attend(q, k, v, terms, filled, bits.probabilities))

  def project(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """States [B, n, D] -> keys and values, each [B, n, H, K]."""
    apart = matmul.with_barrier(states)
    dtype = self.config.operand_dtype
    return self.k(states).astype(dtype), self.v(apart).astype(dtype)

  def position_terms(self, positions: Any, bits: Any = NO_DROPOUT) -> Any:
    """(R [S, D], biases (u, v) [H, K]) -> PositionTerms, with r_d = W_r R_d."""
    del bits
    R, biases = positions
    return PositionTerms(self.r(R).astype(self.config.operand_dtype), *biases)

  def scores(self, q: jax.Array, k: jax.Array, terms: Any) -> jax.Array:
    """Scores [B, H, T, S], for inspection; `attend` computes the same."""
    return attention.relative_scores(q, k, *terms)

  def attend(
    self, q: Any, k: Any, v: Any, terms: Any, filled: Any, bits: Any
  ) -> jax.Array:
    """`attention.relative_attention`, or a kernel for it: [B, T, H, K].

    Its mask is `attention.visibility(T, S - T, filled, span)`.
    """
    c, S = self.config, k.shape[1]
    return dispatch.attend(
      kernels.Inputs(q, k, v, *terms, filled=filled),
      span=min(c.span or S, S),
      rate=0.0 if bits is None else c.dropatt,
      key=bits,
      # Initialisation may run on a device without the kernel.
      implementation='xla' if self.is_initializing() else c.attention,
    )

  def setup_positions(self) -> None:
    """Creates W_r."""
    self.r = self.to_heads()

  def to_heads(self, memory: int = 0) -> nn.Module:
    """A projection [..., D] -> [..., H, K]; memory as for `stack.product`."""
    c = self.config
    heads = c.n_head, c.d_head
    return stack.product(c, heads, memory=memory, use_bias=False)


class FeedForward(nn.Module):
  """W_2 dropout(relu(W_1 x + b_1)) + b_2."""

  config: Any

  @nn.compact
  def __call__(self, x: jax.Array, bits: jax.Array | None = None) -> jax.Array:
    """[B, T, D] -> [B, T, D]; without bits there is no dropout."""
    c = self.config
    h = stack.product(c, c.d_ff, name='w1')(x)  # [B, T, F]
    rate = 0.0 if bits is None else c.dropout
    h = dropout.relu_and_drop(h, rate, bits, c.locked_dropout)
    return stack.product(c, x.shape[-1], name='w2')(h)


class LayerNorm(nn.Module):
  """Layer normalisation in float32 or wider; initial scales are N(1, std^2)."""

  config: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    c = self.config
    scale, bias = _ScaleAndBias(c, name='norm')(x.shape[-1])
    wide = attention.widened(x.dtype)
    return norm.layer_norm(x, scale, bias, c.ln_eps, wide).astype(c.state_dtype)


class _ScaleAndBias(nn.Module):
  """Parameters of LayerNorm, named as in checkpoints: norm/scale, norm/bias."""

  config: Any

  @nn.compact
  def __call__(self, D: int) -> tuple[jax.Array, jax.Array]:
    init = initial.normal(self.config.init_std, mean=1.0)
    scale = self.param('scale', init, (D,), jnp.float32)
    return scale, self.param('bias', nn.initializers.zeros, (D,), jnp.float32)


class Layer(nn.Module):
  """One layer; its memory holds its past inputs.

  Post-norm: y = LN(x + Attn(x)), z = LN(y + FF(y)). Pre-norm: y = x +
  Attn(LN(x)), z = y + FF(LN(y)); memory holds x, and there is no final norm.

  Layers differ in their weights only: `stack.run` calls the first one with the
  parameters of each, without keys (dropout has its `bits`). `ring_model` joins
  the same parts with cached keys and values: a change to `__call__` here or in
  Attention is one there, too. Models that override one have no ring.
  """

  ATTENTION: ClassVar[type[Attention]] = Attention

  config: Any

  def setup(self) -> None:
    c = self.config
    self.attention = self.ATTENTION(c)
    self.ff = FeedForward(c)
    self.norm1, self.norm2 = LayerNorm(c), LayerNorm(c)
    if c.untie_biases:
      self.biases = Biases(c)

  def __call__(
    self,
    x: jax.Array,
    memory: jax.Array,
    positions: tuple[Any, Any],
    filled: jax.Array | None,
    lengths: jax.Array | None,
    bits: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """One segment: x [B, T, D] -> [B, T, D], and this layer's new memory.

    `memory`, [B, M, D], holds this layer's inputs before the segment, and
    `positions` come from `TransformerXL.positions`. `filled`, int32 [B], is the
    number of filled memory slots, None for M; for `lengths` see
    `attention.update_memory`. `bits`, uint32 [n, 2], are the first n fields of
    DropoutBits: all of them with dropout_qkv, else N_WITHOUT_QKV. None is no
    dropout.
    """
    positions = self.positions(positions)
    normed = self.normed(x)
    # A user may differentiate with respect to an initial memory.
    past = self.normed(jax.lax.stop_gradient(memory))
    k, v = self.attention.project(jnp.concatenate([past, normed], axis=1))
    query = normed if self.config.norm_queries else x
    drops = NO_DROPOUT if bits is None else DropoutBits(*bits)
    attended = self.attention(query, k, v, positions, filled, drops)
    out = self.after_attention(x, attended, drops)
    # The last M of concat(memory, x), with a stopped gradient.
    return out, attention.update_memory(memory, x, lengths)

  def positions(self, shared: tuple[Any, Any]) -> tuple[Any, Any]:
    """(R, biases) of this layer, from those that all layers share."""
    R, biases = shared
    return R, self.biases() if self.config.untie_biases else biases

  def normed(self, x: jax.Array) -> jax.Array:
    """The input of attention's projections: x, normalised if pre-norm."""
    return self.norm1(x) if self.config.pre_norm else x

  def after_attention(
    self, x: jax.Array, attended: jax.Array, bits: DropoutBits = NO_DROPOUT
  ) -> jax.Array:
    """The layer's output [B, T, D], from its input and attention's output."""
    c = self.config

    def drop(y, bits):
      return dropout.drop(y, c.dropout, bits, c.locked_dropout)

    y = x + drop(attended, bits.attended)
    if not c.pre_norm:
      y = self.norm1(y)
    features = self.ff(self.norm2(y) if c.pre_norm else y, bits.hidden)
    z = y + drop(features, bits.output)
    if not c.pre_norm:
      z = self.norm2(z)
    inspection.show(self, inspection.STATES, lambda: z)
    return z


class Memory(flax.struct.PyTreeNode):
  """Past inputs of all layers."""

  states: Any  # [N, B, M, D], oldest first
  filled: Any  # int32 [B], the number of filled slots in each row


class TransformerXL(base.LanguageModel):
  """The language model described at the top of this file.

  It scores targets by its `states` and `Embedding.loss`. Baselines override
  `inputs`, `positions` or LAYER.
  """

  Config = Config
  LAYER: ClassVar[type[Layer]] = Layer
  SCALES_EMBEDDINGS = True
  ATTENDS = True
  SHARDING = (
    *base.LanguageModel.SHARDING,
    (r'attention/[qkvr]/kernel', ('fsdp', 'tensor', None)),  # [D, H, K]
    (r'attention/o/kernel', ('tensor', None, 'fsdp')),  # [H, K, D]
    (r'ff/w1/kernel', ('fsdp', 'tensor')),  # [D, F]
    (r'ff/w1/bias', ('tensor',)),  # [F]
    (r'ff/w2/kernel', ('tensor', 'fsdp')),  # [F, D]
    (r'ff/w2/bias', ()),
    (r'norm/(scale|bias)', ()),
    (r'biases/[uv]', ('tensor', None)),  # [H, K]
  )
  NOT_DECAYED = (r'biases/[uv]',)

  def setup(self) -> None:
    super().setup()
    # Weights are not stacked over layers: each step would copy every slice.
    c = self.config
    self.layers = [self.LAYER(c) for _ in range(c.n_layer)]
    if not c.untie_biases:
      self.biases = Biases(c)

  def states(self, tokens, memory, *, lengths=None, train=False):
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    M, (B, T) = self.config.mem_len, tokens.shape
    h = self.inputs(tokens, lengths, train)
    inspection.show(self, inspection.STATES, lambda: h)
    positions = self.positions(M + T, train)
    past = memory if M else Memory(self._zeros(B), None)
    # For each n: h, new[n] = layers[n](h, past.states[n], *arguments, bits[n])
    arguments = positions, past.filled, lengths
    out, new, shown = stack.run(
      self.layers,
      h,
      past.states,
      arguments,
      self.dropout_bits(train),
      inspection.wanted(self),
    )
    inspection.sow_layers(self, shown)
    if not M:
      return out, ()
    filled = past.filled + (T if lengths is None else lengths)
    return out, Memory(new, jnp.minimum(filled, M))

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    """The input of the first layer: int32 [B, T] -> [B, T, D]."""
    del lengths
    return self.vocabulary.embed(tokens, train=train)

  def positions(self, S: int, train: bool) -> tuple[Any, Any]:
    """The table R [S, D], and (u, v) if all layers share them, else None."""
    shared = None if self.config.untie_biases else self.biases()
    return self.table(S, train), shared

  def table(self, S: int, train: bool) -> jax.Array:
    """The sinusoids R [S, D] of S distances, farthest first, after dropout."""
    c = self.config
    # In float32 or wider whatever the compute dtype: bfloat16 has too few
    # digits for the angles of large distances.
    wide = attention.widened(c.dtype)
    d = attention.distances(S, c.clamp_len, wide)  # [S], farthest first
    R = attention.sinusoid(d, c.d_model).astype(c.state_dtype)
    rate = c.or_dropout(c.dropout_table)
    R = self.drop(R[None], rate, train=train, locked=c.locked_table)
    return R.squeeze(0)

  def dropout_bits(self, train: bool) -> jax.Array | None:
    """`bits` of every `Layer`, [N, ...], or None."""
    c = self.config
    if not (train and (c.dropout or c.dropatt or c.dropout_qkv)):
      return None
    n = len(DropoutBits._fields) if c.dropout_qkv else N_WITHOUT_QKV
    # One draw for all layers.
    shape = c.n_layer, n, 2
    return jax.random.bits(self.make_rng('dropout'), shape, jnp.uint32)

  def init_memory(self, batch_size: int) -> Any:
    """A Memory, empty or with M zero states; () if M is 0."""
    if not self.config.mem_len:
      return ()
    states = self._zeros(batch_size)
    return Memory(states, self.filled_at_start(batch_size))

  def row_axes(self) -> Any:
    return Memory(1, 0) if self.config.mem_len else ()

  def filled_at_start(self, B: int) -> jax.Array:
    """Filled slots of the initial memory, int32 [B]: 0 or M in each row."""
    c = self.config
    M = c.mem_len if c.memory_init == 'zeros' else 0
    return jnp.full([B], M, jnp.int32)

  def _zeros(self, B: int) -> jax.Array:
    """Zero states [N, B, M, D]."""
    c = self.config
    return jnp.zeros((c.n_layer, B, c.mem_len, c.d_model), c.state_dtype)

  def at_test_time(self, longest=None, several=True, **overrides):
    model = super().at_test_time(**overrides)
    name = proof.at_test_time(getattr(model.config, 'attention', 'xla'))
    model = model.with_keys(attention=name)
    if not self._reads_like_a_ring():
      return model
    return ring_model.with_ring(model, longest, several)

  def _reads_like_a_ring(self) -> bool:
    """Whether the methods that `WithRing` has in its own way are those here."""
    layer, attention = self.LAYER, self.LAYER.ATTENTION
    methods = (
      (type(self), TransformerXL, ('__call__', 'logits', 'states')),
      (layer, Layer, ('__call__',)),
      (attention, Attention, ('__call__', 'attend', 'scores')),
    )
    return all(
      getattr(theirs, name) is getattr(ours, name)
      for theirs, ours, names in methods
      for name in names
    )

  def frozen(self, params):
    return super().frozen(stack.cast(params, self.config))
