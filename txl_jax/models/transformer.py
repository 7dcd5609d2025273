"""What Transformers have in common, however positions are encoded.

Shapes
  B batch, T segment, M memory, S = M + T, N layers, H heads, K head width,
  D model width, V vocabulary.

A model of this family is a `Transformer` with its own layer class LAYER, which
has its own ATTENTION; see `inputs` and `positions` of both.
"""

import functools
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, layers
from txl_jax.ops import dropout, layer_loop

# The choices of remat: what is kept for the backward pass.
POLICIES = {
  'scores': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'layer': jax.checkpoint_policies.nothing_saveable,
}

# Where a layer applies dropout: probabilities, the output of attention, the
# hidden features of the feed-forward layer, its output.
PLACES = 4


class Memory(flax.struct.PyTreeNode):
  """The past inputs of every layer."""

  states: Any  # [N, B, M, D], oldest first
  filled: Any  # int32 [B], how many slots of each row hold real states


class Layer(nn.Module):
  """One layer; memory keeps its inputs.

  Post-norm: y = LN(x + Attn(x)), z = LN(y + FF(y)). Pre-norm: the same with
  the norm before each sublayer, memory un-normalised, no final norm.
  """

  ATTENTION: ClassVar[type[layers.Attention]] = layers.Attention

  config: Any

  def setup(self) -> None:
    c = self.config
    self.attention = self.ATTENTION(c)
    self.ff = layers.FeedForward(c)
    self.norm1 = layers.LayerNorm(c)
    self.norm2 = layers.LayerNorm(c)

  def inputs(self, x: jax.Array, lengths: jax.Array | None) -> jax.Array:
    """What the layer reads, given x [B, T, D]: by default, x itself."""
    del lengths
    return x

  def positions(self, shared: Any) -> Any:
    """What attention reads, given the positions that all layers share."""
    return shared

  def __call__(self, x, memory, shared, filled, lengths, words=None):
    """One segment: x [B, T, D] -> [B, T, D], and this layer's new memory.

    Memory is [B, M, D], the inputs of this layer before the segment. `shared`
    is `Transformer.positions`; filled, int32 [B], is how many slots of the
    memory are real, None for all; lengths are as in `attention.update_memory`.
    The words, uint32 [PLACES, 2], are for dropout (`attention.dropout_words`),
    with PROJECTED more for dropout_qkv; None for no dropout.
    """
    positions = self.positions(shared)
    x = self.inputs(x, lengths)
    normed, old = self.normed(x), self.normed(memory)
    k, v = self.attention.project(jnp.concatenate([old, normed], axis=1))
    query = normed if self.config.norm_queries else x
    words = [None] * PLACES if words is None else [*words]
    own = words[0], words[PLACES:]
    attended = self.attention(query, k, v, positions, filled, *own)
    out = self.after_attention(x, attended, words[1:PLACES])
    return out, attention.update_memory(memory, x, lengths)

  def normed(self, x: jax.Array) -> jax.Array:
    """x [B, any, D] as the projections of attention read it."""
    return self.norm1(x) if self.config.pre_norm else x

  def after_attention(
    self, x: jax.Array, attended: jax.Array, words: Any = (None,) * (PLACES - 1)
  ) -> jax.Array:
    """The output [B, T, D], given the input and the output of attention."""
    c = self.config
    first, inside, last = words

    def drop(y, words):
      return dropout.drop(y, c.dropout, words, c.locked_dropout)

    y = x + drop(attended, first)
    if not c.pre_norm:
      y = self.norm1(y)
    z = y + drop(self.ff(self.norm2(y) if c.pre_norm else y, inside), last)
    if not c.pre_norm:
      z = self.norm2(z)
    layers.show(self, layers.OUTPUTS, lambda: z)
    return z


class Transformer(base.LanguageModel):
  """A Transformer, see `models.base` and `models.transformer_config`."""

  LAYER: ClassVar[type[Layer]] = Layer
  ATTENDS = True
  SCALES_EMBEDDINGS = True
  SHARDING = (*base.LanguageModel.SHARDING, *layers.SHARDING)

  def setup(self) -> None:
    super().setup()
    # Each layer has its own arrays of weights: stacked ones would be copied
    # out slice by slice in every step.
    c = self.config
    self.layers = [self.LAYER(c) for _ in range(c.n_layer)]

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    """What the first layer reads, [B, T, D]."""
    del lengths
    return self.embed(tokens, train=train)

  def positions(self, S: int, train: bool) -> Any:
    """Position arrays for all layers, a pytree without a batch axis."""
    del S, train

  def states(
    self,
    tokens: jax.Array,
    memory: Any,
    *,
    lengths: jax.Array | None = None,
    train: bool = False,
  ) -> tuple[jax.Array, Any]:
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    h, memory, _ = self.watched(tokens, memory, lengths, train)
    return h, memory

  def watched(
    self,
    tokens: jax.Array,
    memory: Any,
    lengths: jax.Array | None,
    train: bool,
    what: str = '',
  ) -> Any:
    """`states`, and what each layer shows, [N, ...] (see `layers.show`)."""
    c, (B, T), M = self.config, tokens.shape, self.config.mem_len
    h = self.inputs(tokens, lengths, train)
    positions = self.positions(M + T, train)
    past = memory if M else Memory(self._zeros(B), None)
    words = None
    if train and (c.dropout or c.dropatt or c.dropout_qkv):
      places = PLACES + (layers.PROJECTED if c.dropout_qkv else 0)
      key, shape = self.make_rng('dropout'), (c.n_layer, places, 2)
      words = jax.random.bits(key, shape, jnp.uint32)  # one draw for them all
    arguments = positions, past.filled, lengths
    h, (states, shown) = self._run(h, past.states, arguments, words, what)
    shown = next(iter(jax.tree.leaves(shown)), None)
    if not M:
      return h, (), shown
    filled = past.filled + (T if lengths is None else lengths)
    return h, Memory(states, jnp.minimum(filled, M)), shown

  def _run(self, h, states, arguments, words, what):
    """h [B, T, D] after all layers, and each layer's memory and what it shows.

    `arguments` are those that all layers share; words, uint32 [N, PLACES, 2] or
    None, are for the dropout of each.
    """
    if self.is_initializing():
      for n, layer in enumerate(self.layers):
        h, _ = layer(h, states[n], *arguments)
      return h, (states, ())

    c, mutable = self.config, [what] if what else []
    apply = self.layers[0].clone(parent=None).apply

    def run(h, layer):
      params, past, own = layer
      given = h, past, *arguments, own
      (h, new), shown = apply({'params': params}, *given, mutable=mutable)
      return h, (new, shown)

    weights = [layer.variables['params'] for layer in self.layers]
    cast = functools.partial(layers.cast, config=c)
    options: Any = dict(unroll=c.unroll, remat=POLICIES.get(c.remat), cast=cast)
    return layer_loop.run(run, h, weights, (states, words), **options)

  def init_memory(self, batch_size: int) -> Any:
    """A Memory, empty or full of zero states; () if M is 0."""
    if not self.config.mem_len:
      return ()
    return Memory(self._zeros(batch_size), self._filled(batch_size))

  def row_axes(self) -> Any:
    return Memory(1, 0) if self.config.mem_len else ()

  def _zeros(self, B):
    c = self.config
    return jnp.zeros((c.n_layer, B, c.mem_len, c.d_model), c.state_dtype)

  def _filled(self, B):
    c = self.config
    start = c.mem_len if c.memory_init == 'zeros' else 0
    return jnp.full([B], start, jnp.int32)

  def hidden(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[tuple[jax.Array, ...], Any]:
    first = self.inputs(tokens, lengths, False)
    arguments = tokens, memory, lengths, False
    _, memory, outputs = self.watched(*arguments, layers.OUTPUTS)
    return (first, *outputs), memory

  def attention_maps(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The probabilities that the layers give to keys, and the new memory.

    They are those of `states` without dropout, float32 [N, B, H, T, S]; the
    first M of the S keys are the slots of the memory, the newest one last.
    """
    return self._maps(layers.MAPS, tokens, memory, lengths)

  def attention_terms(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The terms of the scores behind `attention_maps`, and the new memory.

    They are the `layers.score_terms` of each layer: float32 [N, 4, B, H, T, S].
    """
    return self._maps(layers.TERMS, tokens, memory, lengths)

  def _maps(self, what, tokens, memory, lengths):
    _, memory, maps = self.watched(tokens, memory, lengths, False, what)
    return maps, memory

  def frozen(self, params: Any) -> dict[str, Any]:
    """See `base.LanguageModel`; weights have the dtype of their products."""
    return super().frozen(layers.cast(params, self.config))


def tokens_left(T: int, lengths: jax.Array | None) -> jax.Array:
  """How many tokens follow each token in a row of n real ones.

  n - 1 - i for token i, 0 for padding: int32 [T], or [B, T] with lengths.
  """
  n = T if lengths is None else jnp.asarray(lengths)[:, None]
  return jnp.maximum(n - 1 - jnp.arange(T), 0)
