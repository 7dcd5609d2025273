"""What Transformers have in common, however positions are encoded.

Shapes
  B batch, T segment, M memory, S = M + T, N layers, H heads, K head width,
  D model width, V vocabulary.

A model of this family is a `Transformer` with its own layer class LAYER, which
has its own ATTENTION; see `inputs` and `positions` of both.
"""

from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention, ring, target
from txl_jax.models import base, layers, ring_memory, weights

# The choices of remat: what is kept for the backward pass.
POLICIES = {
  'scores': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'layer': jax.checkpoint_policies.nothing_saveable,
}


# Tokens of several segments that attend to the ring at once, at most.
_AT_ONCE = 128

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
    """x [B, T, D] as the layer reads it, the same by default."""
    del lengths
    return x

  def positions(self, shared: Any) -> Any:
    """What attention gets, from the positions that all layers share."""
    return shared

  def __call__(self, x, memory, shared, filled, lengths, words=None):
    """One segment: x [B, T, D] -> [B, T, D], and this layer's new memory.

    Memory is [B, M, D], the inputs of this layer before the segment. `shared`
    is `Transformer.positions`; filled, int32 [B], is how many slots of the
    memory are real, None for all; lengths are as in `attention.update_memory`.
    The words, uint32 [PLACES, 2], are for dropout (`attention.dropout_words`);
    None for no dropout.
    """
    positions = self.positions(shared)
    x = self.inputs(x, lengths)
    normed, old = self._normed(x), self._normed(memory)
    k, v = self.attention.project(jnp.concatenate([old, normed], axis=1))
    query = normed if self.config.norm_queries else x
    inside, *outside = _each(words)
    attended = self.attention(query, k, v, positions, filled, inside)
    return self._rest(x, attended, outside), attention.update_memory(
      memory, x, lengths
    )

  def over_ring(self, x, rings, distances, at, mask):
    """The same with frozen weights: memory is rings of keys and values.

    x may be several segments, see `layers.Attention.over_ring`; `distances`
    comes from `ring_table`.
    """
    arguments = self._normed(x), rings, distances, at, mask
    attended, rings = self.attention.over_ring(*arguments)
    return self._rest(x, attended, _each(None)[1:]), rings

  def ring_table(self, shared: Any) -> layers.Distances:
    """What `over_ring` needs of positions, computed once for all calls."""
    found: Any = self.attention.distances(self.positions(shared))
    return found._replace(r=ring.table(found.r))

  def _normed(self, x):
    return self.norm1(x) if self.config.pre_norm else x

  @nn.compact
  def _rest(self, x, attended, words):
    """What follows attention, given the input [B, T, D] and its output."""
    c = self.config
    first, inside, last = words

    def drop(y, words):
      return layers.drop(y, c.dropout, words, c.locked_dropout)

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

  # With frozen weights, T of the longest segment: memory is then a Ring, and
  # no state is projected twice. If 0, memory is a Memory.
  longest: int = 0
  several: bool = True  # whether several such segments may come at once

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

  @property
  def _has_ring(self):
    # A zero state has zero keys and values, but not after a norm.
    c = self.config
    zeros_behind_norm = c.pre_norm and c.memory_init == 'zeros'
    ring = self.longest and c.mem_len and not zeros_behind_norm
    return bool(ring and not self.ABSOLUTE)

  @property
  def _slots(self):
    """C: M plus what attends at once, in whole segments; so none is cut."""
    c, M, T = self.config, self.config.mem_len, self.longest
    # Products with few queries are slow, but each of them sees all slots, and
    # their scores shall be smaller than the ring.
    most = min(_AT_ONCE, M // 8, c.n_layer * c.d_head)
    new = max(most // T if self.several else 1, 1) * T
    return -(-(M + new) // T) * T

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> base.LanguageModel:
    """See `base.LanguageModel`."""
    model: Any = super().at_test_time(**overrides)
    model = model.without_kernels()
    if longest is None:
      return model
    return model.clone(longest=longest, several=several)

  def frozen(self, params: Any) -> dict[str, Any]:
    """See `base.LanguageModel`.

    Weights are cast to the dtype of their products. If memory is a Ring, the
    position tables of all layers are projected, the kernels of queries, keys
    and values are joined, and on a GPU those of `layers.Product` have their
    output axes first.
    """
    params = weights.cast(params, self.config.dtype)
    variables = super().frozen(params)
    if not self._has_ring:
      return variables
    frozen = {'tables': self.apply(variables, method='ring_tables')}
    params = weights.joined(params)
    variables = super().frozen(params)
    if target.device().platform == 'gpu':
      # There, a product with one row, that of a generated token, becomes sums:
      # along the last axis they are one kernel that reads memory in order.
      params, kernels = weights.outputs_first(params)
      variables, frozen = super().frozen(params), frozen | kernels
    return {**variables, 'frozen': frozen}

  def ring_tables(self) -> tuple[layers.Distances, ...]:
    """The `Layer.ring_table` of each layer."""
    shared = self.positions(self._slots, False)
    return tuple(layer.ring_table(shared) for layer in self.layers)

  def without_remat(self) -> 'Transformer':
    """See `base.LanguageModel`."""
    return self.clone(config=self.config.replace(remat='none'))

  def without_kernels(self) -> 'Transformer':
    """See `base.LanguageModel`."""
    if not hasattr(self.config, 'attention'):
      return self
    return self.clone(config=self.config.replace(attention='xla'))

  def init_memory(self, batch_size: int) -> Any:
    """A Memory or a Ring: empty, or full of zero states; () if M is 0."""
    c = self.config
    if not c.mem_len:
      return ()
    start = c.mem_len if c.memory_init == 'zeros' else 0
    filled = jnp.full([batch_size], start, jnp.int32)
    if self._has_ring:
      return ring_memory.Ring.zeros(c, self._slots, filled)
    return Memory(self._empty_states(batch_size), filled)

  def row_axes(self) -> Any:
    """See `base.LanguageModel`."""
    c = self.config
    if not c.mem_len:
      return ()
    if self._has_ring:
      return ring_memory.Ring.row_axes(c.n_layer)
    return Memory(1, 0)

  def reset_memory(self, memory: Any, rows: jax.Array) -> Any:
    """See `base.LanguageModel`."""
    if self._has_ring:
      return memory.reset(rows, self.init_memory(len(rows)).filled)
    return super().reset_memory(memory, rows)

  def repeat_rows(self, memory: Any, times: int) -> Any:
    """See `base.LanguageModel`."""
    if self._has_ring:
      return memory.repeat(times)
    return super().repeat_rows(memory, times)

  def segments_of(self) -> int:
    """See `base.LanguageModel`."""
    return self.longest if self._has_ring and self.several else 0

  def rewinds(self) -> int:
    """See `base.LanguageModel`."""
    return self.longest if self._has_ring else 0

  def rewind(self, memory: Any, counts: jax.Array) -> Any:
    """See `base.LanguageModel`."""
    return memory.rewind(counts)

  def _empty_states(self, B):
    c = self.config
    return jnp.zeros((c.n_layer, B, c.mem_len, c.d_model), c.dtype)

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
    if self._has_ring:
      return self._over_ring(tokens, memory, lengths)
    h, memory, _ = self.watched(tokens, memory, lengths, train)
    return h, memory

  def _over_ring(self, tokens, memory, lengths):
    """`states` of a model whose memory is a Ring, see `segments_of`."""
    c, count, C = self.config, tokens.shape[1], self._slots
    T = min(count, self.longest)
    n = count // T
    if n * T < count or (n > 1 and lengths is not None):
      raise ValueError(
        f'a segment of {count} tokens; allowed: at most {T}, for which the '
        'model was made by at_test_time(longest=...), or whole segments of '
        f'{T}, none of them padded'
      )
    h = self.inputs(tokens, lengths, False)
    before = jnp.arange(n) * T  # tokens before each segment
    at = (memory.at + before) % C
    filled = jnp.minimum(memory.filled + before[:, None], c.mem_len)  # [n, B]
    visible = lambda at, filled: ring.visibility(at, T, C, filled, c.span)
    mask = jax.vmap(visible)(at, filled)  # [n, B, T, C]
    # As many segments at once as the ring has room for besides the memory.
    g = max(x for x in range(1, n + 1) if n % x == 0 and c.mem_len + x * T <= C)
    mask = jnp.moveaxis(mask.reshape(n // g, g, -1, T, C), 1, 2)
    mask, at = mask.reshape(n // g, -1, g * T, C), at[::g]
    tables = self.get_variable('frozen', 'tables') or self.ring_tables()
    states = []
    for n, layer in enumerate(self.layers):
      h, rings = layer.over_ring(h, memory.states[n], tables[n], at, mask)
      states.append(rings)
    filled = jnp.minimum(memory.filled + count, c.mem_len + C)
    memory = ring_memory.Ring(tuple(states), (memory.at + count) % C, filled)
    return h, memory if lengths is None else memory.rewind(T - lengths)

  def hidden(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[tuple[jax.Array, ...], Any]:
    """See `base.LanguageModel`; ValueError if memory is a Ring."""
    if self._has_ring:
      raise ValueError('hidden states need at_test_time(longest=0)')
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
    ValueError if memory is a Ring, whose slots have no such order.
    """
    return self._maps(layers.MAPS, tokens, memory, lengths)

  def attention_terms(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The terms of the scores behind `attention_maps`, and the new memory.

    See `layers.score_terms`, of each layer: float32 [N, 4, B, H, T, S].
    """
    return self._maps(layers.TERMS, tokens, memory, lengths)

  def _maps(self, what, tokens, memory, lengths):
    if self._has_ring:
      raise ValueError('attention maps need at_test_time(longest=0)')
    _, memory, maps = self.watched(tokens, memory, lengths, False, what)
    return maps, memory

  def watched(self, tokens, memory, lengths, train, what='') -> Any:
    """`states`, and what each layer shows, [N, ...] (see `layers.show`)."""
    c, (B, T), M = self.config, tokens.shape, self.config.mem_len
    h = self.inputs(tokens, lengths, train)
    positions = self.positions(M + T, train)
    past = memory if M else Memory(self._empty_states(B), None)
    words = None
    if train and (c.dropout or c.dropatt):
      key, shape = self.make_rng('dropout'), (c.n_layer, PLACES, 2)
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

    `arguments` are the further arguments of every layer; words, uint32
    [N, PLACES, 2] or None, are those of each.
    """
    c = self.config
    if self.is_initializing():
      for n, layer in enumerate(self.layers):
        h, _ = layer(h, _slice(states, n), *arguments)
      return h, (states, ())

    on_gpu = target.device().platform == 'gpu'
    unroll = c.unroll or (c.n_layer if on_gpu else 1)
    apply = self.layers[0].clone(parent=None).apply
    mutable = [what] if what else []

    def run(h, layer):
      params, past, own = layer
      given = h, past, *arguments, own
      (h, new), shown = apply({'params': params}, *given, mutable=mutable)
      return h, (new, shown)

    if c.remat != 'none':
      # The barrier keeps recomputation from being merged with the forward
      # pass, and is slow. Two loops cannot be merged; layers outside one can.
      loops = unroll < c.n_layer and c.n_layer % unroll == 0
      policy = POLICIES[c.remat]
      run = jax.checkpoint(run, policy=policy, prevent_cse=not loops)
    params = [layer.variables['params'] for layer in self.layers]
    if unroll < c.n_layer:
      # The stack is a copy, for which the smaller dtype will do.
      params = [weights.cast(own, c.dtype) for own in params]
      each = _stack(params), states, words
      return jax.lax.scan(run, h, each, unroll=unroll)
    found = []
    for n in range(c.n_layer):
      own = _slice((states, words), n)
      h, new = run(h, (params[n], *own))
      found.append(new)
    return h, _stack(found)


def tokens_left(T: int, lengths: jax.Array | None) -> jax.Array:
  """How many tokens follow each token in a row of n real ones.

  n - 1 - i for token i, 0 for padding: int32 [T], or [B, T] with lengths.
  """
  n = T if lengths is None else jnp.asarray(lengths)[:, None]
  return jnp.maximum(n - 1 - jnp.arange(T), 0)


def _each(words):
  """The dropout words for each place of a layer."""
  return [None] * PLACES if words is None else list(words)


def _slice(tree, n):
  """Row n of every leaf."""
  return jax.tree.map(lambda leaf: leaf[n], tree)


def _stack(trees):
  """Stacks a list of trees along a new first axis of the leaves."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
