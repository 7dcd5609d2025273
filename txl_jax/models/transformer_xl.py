"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860, Section 3).

Shapes
  B batch, T segment, M memory, S = M + T keys, N layers, H heads, K head width,
  D model width, F feed-forward width, V vocabulary.

The model, from the tokens of a segment and the memory m of the segments before
to the loss, and where each line is computed (dropout is left out here):

  h = sqrt(D) E[tokens]                             base.LanguageModel.embed
  R_d = sinusoid(d), d = S - 1 .. 0                 TransformerXL.positions
  in each of N layers, with its own m:              Layer
    m' = stop_gradient(concat(m, h)[-M:])
    q, k, v = W_q h, W_k concat(m, h), W_v concat(m, h); r_d = W_r R_d
    score(i, j) = (q_i.k_j + q_i.r_d + u.k_j + v_bias.r_d) / sqrt(K)
    y = LN(h + W_o softmax(score) v)                Attention
    h = LN(y + W_2 relu(W_1 y + b_1) + b_2)         FeedForward
  nll = -log softmax(E h + b)[targets]              base.LanguageModel.output

d = i + M - j is the distance from query i to key j. What makes it fast or
parallel is elsewhere: products and the loop over layers (`stack`), kernels
(`parallel.attention_parallel`), test time (`inference`).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, config, inference, initial, inspection, stack
from txl_jax.models.config import model_name, rate
from txl_jax.ops import dropout, kernels, matmul
from txl_jax.parallel import attention_parallel
from txl_jax.program.settings import IN_USE, key


@dataclasses.dataclass(frozen=True)
class Config(config.Relative):
  """The section `model` of a config for `TransformerXL`.

  Inherited are n_layer N, n_head H, d_head K, d_ff F, pre_norm and what every
  Transformer has, mem_len M, same_length and clamp_len of relative positions,
  and d_model D and the vocabulary's keys of every model.
  """

  SINUSOIDS = True

  name: str = model_name('transformer_xl', 'Transformer-XL (Dai et al. 2019)')
  untie_biases: bool = key(  # pyright: ignore
    False, 'u and v for each layer instead of one pair for all.'
  )
  dropout_table: float = rate(
    -1.0,
    'Dropout rate of the position table; -1 is model.dropout.',
    at_least=-1,
  )
  locked_table: bool = key(
    False,
    'Dropout of the position table has one mask for all distances.',
    may_change=IN_USE,
  )
  tie_positions: bool = key(
    False,
    'Words and distances share projections, as in the PyTorch code for Penn '
    'Treebank: r_d = W_k sinusoid(d), u = v = W_q sinusoid(0). There are then '
    'no parameters W_r, u and v.',
  )

  @property
  def shares_biases(self) -> bool:  # pyright: ignore
    """Whether all layers have the same parameters u and v."""
    return not (self.untie_biases or self.tie_positions)

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.tie_positions and self.untie_biases:
      yield 'untie_biases', 'False with model.tie_positions'
    yield from super().problems()


class Biases(nn.Module):
  """The global content and position biases u and v, each [H, K]."""

  config: Any

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    c = self.config
    init, shape = initial.normal(c.init_std), (c.n_head, c.d_head)
    u = self.param('u', init, shape, jnp.float32)
    v = self.param('v', init, shape, jnp.float32)
    return u.astype(c.state_dtype), v.astype(c.state_dtype)


class PositionTerms(NamedTuple):
  """The arrays of the scores by position, see `attention.relative_scores`."""

  r: jax.Array  # [S, H, K], farthest first
  u: jax.Array  # [H, K]
  v_bias: jax.Array  # [H, K]
  b: jax.Array | None = None  # [S, H], added before division by sqrt(K)


# dropout_qkv drops queries, keys, values, and the query and keys of positions.
PROJECTED = 5


class Attention(nn.Module):
  """Relative attention to concat(memory, segment); no W has a bias.

  A model with other positions has its own `setup_positions` and
  `position_terms`.
  """

  config: Any

  def setup(self) -> None:
    c = self.config
    self.q = self.to_heads()
    self.k, self.v = (self.to_heads(memory=c.mem_len) for _ in range(2))
    self.o = stack.product(c, c.d_model, axis=(-2, -1), use_bias=False)
    self.setup_positions()

  def __call__(
    self,
    x: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Any,
    filled: jax.Array | None,
    key: jax.Array | None = None,
    bits: Sequence[jax.Array] = (),
  ) -> jax.Array:
    """x [B, T, D], k and v [B, S, H, K] -> [B, T, D].

    Positions are as for `position_terms`; filled, int32 [B], is how many slots
    of the memory are real, None is all; the key is for dropout of
    probabilities, None is without, and so are the bits, uint32 [PROJECTED, 2],
    for that of projections, () without.
    """
    c, T, S = self.config, x.shape[1], k.shape[1]
    terms = self.position_terms(positions, bits[3:])
    q = self.q(x)  # [B, T, H, K]
    if len(bits):
      q, k, v = (
        dropout.drop(y, c.dropout_qkv, each, c.locked_dropout)
        for y, each in zip((q, k, v), bits)
      )
    mask = functools.partial(attention.visibility, T, S - T, filled, c.span)
    inspection.show_attention(self, q, k, terms, mask)
    return self.o(self.attend(q, k, v, terms, filled, key))

  def project(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, any, D] -> keys and values, each [B, any, H, K]."""
    apart, dtype = matmul.apart(states), self.config.operand_dtype
    return self.k(states).astype(dtype), self.v(apart).astype(dtype)

  def position_terms(self, positions: Any, bits: Any = ()) -> Any:
    """PositionTerms of R [S, D] and the biases u and v, each [H, K].

    r_d = W_r R_d. If positions share the projections of queries and keys, the
    bits, uint32 [2, 2], are for dropout of both; () for no dropout.
    """
    (R, biases), c = positions, self.config
    if not c.tie_positions:
      return PositionTerms(self.r(R).astype(c.operand_dtype), *biases)
    u, r = self.q(R[-1]), self.k(R[None])[0].astype(c.operand_dtype)
    if len(bits):
      u = attention.dropout(u, c.dropout_qkv, bits[0])
      shared = (0,) if c.locked_dropout else ()
      r = attention.dropout(r, c.dropout_qkv, bits[1], shared)
    return PositionTerms(r, u, u)

  def scores(self, q: jax.Array, k: jax.Array, terms: Any) -> jax.Array:
    """The sum of the four terms / sqrt(K), with the shift: [B, H, T, S]."""
    return attention.relative_scores(q, k, *terms)

  def attend(
    self, q: Any, k: Any, v: Any, terms: Any, filled: Any, key: Any
  ) -> jax.Array:
    """Values summed with the softmax of `scores`: [B, T, H, K].

    It is `attention.relative_attention`, by a kernel where there is one.
    """
    c, S = self.config, k.shape[1]
    return attention_parallel.attend(
      kernels.Inputs(q, k, v, *terms, filled=filled),
      span=min(c.span or S, S),
      rate=0.0 if key is None else c.dropatt,
      key=key,
      # Parameters may be initialised on another device.
      implementation='xla' if self.is_initializing() else c.attention,
    )

  def setup_positions(self) -> None:
    """Makes W_r."""
    if not self.config.tie_positions:
      self.r = self.to_heads()

  def to_heads(self, memory: int = 0) -> nn.Module:
    """W of [..., D] -> [..., H, K]; memory is as for `stack.product`."""
    c, heads = self.config, (self.config.n_head, self.config.d_head)
    return stack.product(c, heads, memory=memory, use_bias=False)


class FeedForward(nn.Module):
  """W_2 dropout(relu(W_1 x + b_1)) + b_2."""

  config: Any

  @nn.compact
  def __call__(self, x: jax.Array, key: Any = None) -> jax.Array:
    """[B, T, D] -> [B, T, D]; the key is for dropout, None is without."""
    c = self.config
    h = stack.product(c, c.d_ff, name='w1')(x)  # [B, T, F]
    rate = 0.0 if key is None else c.dropout
    h = dropout.relu_and_drop(h, rate, key, c.locked_dropout)
    return stack.product(c, x.shape[-1], name='w2')(h)


class LayerNorm(nn.Module):
  """Layer normalisation, in float32 or wider; the scale starts at N(1, std)."""

  config: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    c, wide = self.config, jnp.promote_types(x.dtype, jnp.float32)
    scale_init = initial.normal(c.init_std, mean=1.0)
    options: Any = dict(scale_init=scale_init, use_fast_variance=False)
    # The backward pass keeps x, not the wide arrays computed from it.
    norm: Any = nn.remat(nn.LayerNorm, prevent_cse=False)
    y = norm(c.ln_eps, dtype=wide, name='norm', **options)(x)
    return y.astype(c.state_dtype)


# Where a layer applies dropout: probabilities, the output of attention, the
# hidden features of the feed-forward layer, its output.
PLACES = 4


class Layer(nn.Module):
  """One layer; memory keeps its inputs.

  Post-norm: y = LN(x + Attn(x)), z = LN(y + FF(y)). Pre-norm: the same with
  the norm before each sublayer, memory un-normalised, no final norm.
  """

  ATTENTION: ClassVar[type[Attention]] = Attention

  config: Any

  def setup(self) -> None:
    c = self.config
    self.attention = self.ATTENTION(c)
    self.ff = FeedForward(c)
    self.norm1 = LayerNorm(c)
    self.norm2 = LayerNorm(c)
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

    Memory is [B, M, D], the inputs of this layer before the segment. Positions
    are those of the model; filled, int32 [B], is how many slots of the memory
    are real, None for all; lengths are as in `attention.update_memory`. The
    bits, uint32 [PLACES, 2], are for dropout (`attention.dropout_bits`), with
    PROJECTED more for dropout_qkv; None for no dropout.
    """
    positions = self.positions(positions)
    normed, old = self.normed(x), self.normed(memory)
    k, v = self.attention.project(jnp.concatenate([old, normed], axis=1))
    query = normed if self.config.norm_queries else x
    keys: list[Any] = [None] * PLACES if bits is None else [*bits]
    attended = self.attention(
      query, k, v, positions, filled, keys[0], keys[PLACES:]
    )
    out = self.after_attention(x, attended, keys[1:PLACES])
    # The last M of concat(memory, x), with a stopped gradient.
    return out, attention.update_memory(memory, x, lengths)

  def positions(self, shared: tuple[Any, Any]) -> tuple[Any, Any]:
    """(R, biases) of this layer, given those that all layers share."""
    R, biases = shared
    return R, self.biases() if self.config.untie_biases else biases

  def normed(self, x: jax.Array) -> jax.Array:
    """x [B, any, D] as the projections of attention read it."""
    return self.norm1(x) if self.config.pre_norm else x

  def after_attention(
    self, x: jax.Array, attended: jax.Array, bits: Any = (None,) * (PLACES - 1)
  ) -> jax.Array:
    """The output [B, T, D], given the input and the output of attention."""
    c = self.config
    first, inside, last = bits

    def drop(y, bits):
      return dropout.drop(y, c.dropout, bits, c.locked_dropout)

    y = x + drop(attended, first)
    if not c.pre_norm:
      y = self.norm1(y)
    z = y + drop(self.ff(self.norm2(y) if c.pre_norm else y, inside), last)
    if not c.pre_norm:
      z = self.norm2(z)
    inspection.show(self, inspection.OUTPUTS, lambda: z)
    return z


class Memory(flax.struct.PyTreeNode):
  """The past inputs of every layer."""

  states: Any  # [N, B, M, D], oldest first
  filled: Any  # int32 [B], how many slots of each row hold real states


class TransformerXL(base.LanguageModel):
  """The model: embedding, positions, layers; see the top of this file.

  Baselines with other positions have `inputs`, `positions` or a LAYER of their
  own. Everything else of a language model is inherited from `models.base`.
  """

  Config = Config
  LAYER: ClassVar[type[Layer]] = Layer
  SCALES_EMBEDDINGS = True
  ATTENDS = True
  attention_maps = inspection.attention_maps
  attention_terms = inspection.attention_terms
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
    # Each layer has its own arrays of weights: stacked ones would be copied
    # out slice by slice in every step.
    c = self.config
    self.layers = [self.LAYER(c) for _ in range(c.n_layer)]
    if c.shares_biases:
      self.biases = Biases(c)

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    """The input of the first layer: int32 [B, T] -> [B, T, D]."""
    del lengths
    return self.embed(tokens, train=train)

  def positions(self, S: int, train: bool) -> tuple[Any, Any]:
    """The table R [S, D], and the (u, v) that all layers share, or None."""
    c = self.config
    # The table is computed in float32 whatever the compute dtype: bfloat16 has
    # too few digits for the angles of large distances.
    wide = jnp.promote_types(c.dtype, jnp.float32)
    d = attention.distances(S, c.clamp_len, wide)  # [S], farthest first
    R = attention.sinusoid(d, c.d_model).astype(c.state_dtype)
    rate = c.dropout if c.dropout_table < 0 else c.dropout_table
    R = self.drop(R[None], rate, train=train, locked=c.locked_table)[0]
    return R, self.biases() if c.shares_biases else None

  def states(self, tokens, memory, *, lengths=None, train=False):
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    h, memory, _ = self.forward(tokens, memory, lengths, train)
    return h, memory

  def forward(
    self,
    tokens: jax.Array,
    memory: Any,
    lengths: jax.Array | None,
    train: bool,
    shown: str = '',
  ) -> tuple[jax.Array, Any, Any]:
    """int32 [B, T] -> final states [B, T, D], the new memory, what is shown.

    The last is what each layer shows, [N, ...] (see `inspection.show`).
    """
    c, (B, T), M = self.config, tokens.shape, self.config.mem_len
    h = self.inputs(tokens, lengths, train)
    positions = self.positions(M + T, train)
    past = memory if M else Memory(self._zeros(B), None)
    bits = None
    if train and (c.dropout or c.dropatt or c.dropout_qkv):
      places = PLACES + (PROJECTED if c.dropout_qkv else 0)
      key, shape = self.make_rng('dropout'), (c.n_layer, places, 2)
      bits = jax.random.bits(key, shape, jnp.uint32)  # one draw for them all
    # h, states[n] = layers[n](h, past.states[n], *shared, bits[n]) for each n
    shared = positions, past.filled, lengths
    stacked = self.layers, h, past.states, shared, bits
    h, states, seen = stack.run(*stacked, shown)
    if not M:
      return h, (), seen
    filled = past.filled + (T if lengths is None else lengths)
    return h, Memory(states, jnp.minimum(filled, M)), seen

  def init_memory(self, batch_size: int) -> Any:
    """A Memory, empty or full of zero states; () if M is 0."""
    if not self.config.mem_len:
      return ()
    return Memory(self._zeros(batch_size), self.start(batch_size))

  def row_axes(self) -> Any:
    return Memory(1, 0) if self.config.mem_len else ()

  def _zeros(self, B: int) -> jax.Array:
    """Zero states [N, B, M, D]."""
    c = self.config
    return jnp.zeros((c.n_layer, B, c.mem_len, c.d_model), c.state_dtype)

  def start(self, B: int) -> jax.Array:
    """int32 [B]: how many slots of the memory are visible at first."""
    c = self.config
    M = c.mem_len if c.memory_init == 'zeros' else 0
    return jnp.full([B], M, jnp.int32)

  def through(self, tokens, memory, lengths, train):
    first = self.inputs(tokens, lengths, train)
    _, memory, outputs = self.forward(
      tokens, memory, lengths, train, inspection.OUTPUTS
    )
    return (first, *outputs), memory

  def at_test_time(self, longest=None, several=True, **overrides):
    model = super().at_test_time(**overrides)
    return inference.with_ring(model, longest, several)

  def frozen(self, params):
    return super().frozen(stack.cast(params, self.config))
