"""What Transformers have in common, whatever tells them positions.

Shapes
  B batch, T segment, M memory, S = M + T, N layers, H heads, K head width,
  D model width, V vocabulary.

A model of this family is a `Transformer` whose layers are of its own class
LAYER, with its own ATTENTION; see `inputs` and `positions` of both.
"""

from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, layers

# The choices of remat: what is kept for the backward pass.
POLICIES = {
  'scores': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'layer': jax.checkpoint_policies.nothing_saveable,
}


class Memory(flax.struct.PyTreeNode):
  """The past states of every layer.

  They are the inputs of the N layers, [N, B, M, D], oldest first; or what a
  model that caches keys and values keeps of them: two of [N, B, M, H, K].
  """

  states: Any
  filled: Any  # int32 [B], how many slots of each row hold real states


class Layer(nn.Module):
  """One layer; its input is what memory keeps.

  Post-norm: y = LN(x + Attn(x)), z = LN(y + FF(y)). Pre-norm: the same with
  the norm before each sublayer, memory un-normalised, no final norm.
  """

  ATTENTION: ClassVar[type[layers.Attention]] = layers.Attention

  config: Any
  cache: bool  # whether memory holds keys and values instead of inputs

  def inputs(self, x: jax.Array, lengths: jax.Array | None) -> jax.Array:
    """x [B, T, D] as the layer reads it, the same by default."""
    del lengths
    return x

  def positions(self, shared: Any) -> Any:
    """What its attention is given of the positions that all layers share."""
    return shared

  @nn.compact
  def __call__(self, x, memory, shared, mask, lengths, train):
    """One segment: x [B, T, D] -> [B, T, D], and this layer's new memory.

    Memory is [B, M, D], the inputs of this layer before the segment; with
    `cache` their keys and values instead, each [B, M, H, K]. `shared` is
    `Transformer.positions`, the mask bool [B or 1, T, S]; lengths are as in
    `base.push`.
    """
    c = self.config

    def drop(y):
      locked = c.locked_dropout
      return layers.Dropout()(y, c.dropout, train=train, locked=locked)

    def join(old, new):
      return jnp.concatenate([old, new], axis=1)

    attend = self.ATTENTION(c, name='attention')
    feed = layers.FeedForward(c, name='ff')
    norm1 = layers.LayerNorm(c, name='norm1')
    norm2 = layers.LayerNorm(c, name='norm2')
    positions = self.positions(shared)
    x = self.inputs(x, lengths)
    query = norm1(x) if c.pre_norm else x
    if self.cache:
      new = attend.project(query)
      k, v = jax.tree.map(join, memory, new)
    else:
      new = x
      old = norm1(memory) if c.pre_norm else memory
      k, v = attend.project(join(old, query))
    memory = jax.tree.map(lambda m, y: base.push(m, y, lengths), memory, new)
    y = x + drop(attend(query, k, v, positions, mask, train=train))
    if not c.pre_norm:
      y = norm1(y)
    z = y + drop(feed(norm2(y) if c.pre_norm else y, train=train))
    if not c.pre_norm:
      z = norm2(z)
    layers.show(self, layers.OUTPUTS, lambda: z)
    return z, memory


class Transformer(base.LanguageModel):
  """A Transformer, see `models.base` and `models.transformer_config`."""

  # Whether memory holds keys and values of the past states instead of these:
  # the same function where the weights are frozen, without projecting M states
  # again for every segment or token.
  cache_projections: bool = False

  LAYER: ClassVar[type[Layer]] = Layer
  ATTENDS = True
  SCALES_EMBEDDINGS = True
  SHARDING = (*base.LanguageModel.SHARDING, *layers.SHARDING)

  def setup(self) -> None:
    super().setup()
    # One set of weights per layer, side by side: a stack of them would be
    # copied out slice by slice in every step.
    c = self.config
    self.layers = [self.LAYER(c, cache=self._caches) for _ in range(c.n_layer)]

  @property
  def _caches(self):
    # A zero state has zero keys and values, but behind a norm it has not.
    c = self.config
    zeros_behind_norm = c.pre_norm and c.memory_init == 'zeros'
    return self.cache_projections and not zeros_behind_norm

  def at_test_time(self, **overrides: Any) -> base.LanguageModel:
    """See `base.LanguageModel`; memory holds keys and values."""
    return super().at_test_time(**overrides).clone(cache_projections=True)

  def without_remat(self) -> 'Transformer':
    """See `base.LanguageModel`."""
    return self.clone(config=self.config.replace(remat='none'))

  def init_memory(self, batch_size: int) -> Any:
    """A Memory: empty, or full of zero states; () where M is 0."""
    c = self.config
    if not c.mem_len:
      return ()
    start = c.mem_len if c.memory_init == 'zeros' else 0
    filled = jnp.full([batch_size], start, jnp.int32)
    return Memory(self._empty_states(batch_size), filled)

  def row_axes(self) -> Any:
    """See `base.LanguageModel`."""
    if not self.config.mem_len:
      return ()
    return Memory((1, 1) if self._caches else 1, 0)

  def _empty_states(self, B):
    c = self.config
    width = (c.n_head, c.d_head) if self._caches else (c.d_model,)
    empty = jnp.zeros((c.n_layer, B, c.mem_len, *width), c.dtype)
    return (empty, jnp.zeros_like(empty)) if self._caches else empty

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    """What the first layer reads, [B, T, D]."""
    del lengths
    return self.embed(tokens, train=train)

  def positions(self, S: int, train: bool) -> Any:
    """What positions give to all layers, a pytree of arrays without rows."""
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

  def attention_maps(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[jax.Array, Any]:
    """The probabilities that the layers give to keys, and the new memory.

    They are those of `states` without dropout, float32 [N, B, H, T, S]; the
    first M of the S keys are the slots of the memory, the newest one last.
    """
    arguments = tokens, memory, lengths, False
    _, memory, maps = self.watched(*arguments, layers.MAPS)
    return maps, memory

  def watched(self, tokens, memory, lengths, train, what='') -> Any:
    """`states`, and [N, ...] what every layer shows (see `layers.show`)."""
    c, (B, T), M = self.config, tokens.shape, self.config.mem_len
    h = self.inputs(tokens, lengths, train)
    positions = self.positions(M + T, train)
    past = memory if M else Memory(self._empty_states(B), None)
    mask = attention.visibility(T, M, past.filled, c.span)
    arguments = positions, mask, lengths, train
    rngs = {'dropout': self.make_rng('dropout')} if train else {}
    h, (states, shown) = self._run(h, past.states, arguments, rngs, what)
    shown = next(iter(jax.tree.leaves(shown)), None)
    if not M:
      return h, (), shown
    filled = past.filled + (T if lengths is None else lengths)
    return h, Memory(states, jnp.minimum(filled, M)), shown

  def _run(self, h, states, arguments, rngs, what):
    """h [B, T, D] after all layers, and of each its memory and what it shows.

    The arguments are what every layer is given besides, rngs a dict of keys:
    each layer has its own, made from them.
    """
    c = self.config
    if self.is_initializing():
      for n, layer in enumerate(self.layers):
        h, _ = layer(h, _slice(states, n), *arguments)
      return h, (states, ())

    apply = self.layers[0].clone(parent=None).apply
    mutable = [what] if what else []

    def run(h, layer):
      params, past, n = layer
      own = {name: jax.random.fold_in(key, n) for name, key in rngs.items()}
      more: Any = dict(rngs=own, mutable=mutable)
      (h, new), shown = apply({'params': params}, h, past, *arguments, **more)
      return h, (new, shown)

    if c.remat != 'none':
      run = jax.checkpoint(run, policy=POLICIES[c.remat])
    params = [layer.variables['params'] for layer in self.layers]
    if c.unroll < c.n_layer:
      each = _stack(params), states, jnp.arange(c.n_layer)
      return jax.lax.scan(run, h, each, unroll=c.unroll)
    found = []
    for n in range(c.n_layer):
      h, new = run(h, (params[n], _slice(states, n), n))
      found.append(new)
    return h, _stack(found)


def tokens_left(T: int, lengths: jax.Array | None) -> jax.Array:
  """How many tokens come after each one, in a row of n real tokens.

  n - 1 - i for token i, 0 for padding: int32 [T], or [B, T] with lengths.
  """
  n = T if lengths is None else jnp.asarray(lengths)[:, None]
  return jnp.maximum(n - 1 - jnp.arange(T), 0)


def _slice(tree, n):
  """Row n of every leaf."""
  return jax.tree.map(lambda leaf: leaf[n], tree)


def _stack(trees):
  """A list of trees -> one whose leaves have the list in front."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
