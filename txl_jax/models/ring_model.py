"""Inference with a Transformer whose weights are frozen.

The memory is a ring buffer of keys and values instead of states (`ops.ring`),
so no state is projected twice. Values that depend only on the weights, such as
projected position tables, are computed once and reused.

Shapes
  B batch, T segment, n segments in a call, M memory, C slots of the ring,
  N layers, H heads, K head width, D model width.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
from flax import traverse_util

from txl_jax.models import base, stack
from txl_jax.ops import matmul, ring
from txl_jax.ops.kernels import base as kernels
from txl_jax.ops.kernels import dispatch, proof
from txl_jax.program import target_device

# Maximum queries of several segments that attend at once.
_MAX_QUERIES = 128


class Ring(flax.struct.PyTreeNode):
  """A key-value cache: keys and values of past positions, per layer."""

  states: Any  # for each layer, keys and values, each [B H, C, K]
  at: Any  # int32 [], the next slot to write
  filled: Any  # int32 [B], positions each row has written, at most M + C


def joint_segment_len(model: base.LanguageModel) -> int:
  """T if a call may read several segments of T tokens, else 0.

  A call with tokens [B, n T], without padding, equals n successive calls, but
  the segments share matrix products.
  """
  return model.longest if isinstance(model, WithRing) and model.several else 0


def joint_tokens(model: base.LanguageModel) -> int:
  """How many tokens such a call reads at most, unless a segment has more."""
  return 2048 if isinstance(model, WithOrderedKeys) else 512


def rewindable(model: base.LanguageModel) -> int:
  """The most tokens that `WithRing.rewind` can undo; 0 without a ring."""
  return model.longest if isinstance(model, WithRing) else 0


def with_ring(
  model: Any, longest: int | None, several: bool
) -> base.LanguageModel:
  """Wraps a `transformer_xl.TransformerXL` in `WithRing`, if possible.

  Returns it unchanged if it has no memory, if its positions are absolute, if
  `longest` is None or 0, or with pre_norm and memory_init='zeros'. For the
  arguments see `base.LanguageModel.at_test_time`.
  """
  c = model.config
  # A ring starts with zero keys and values. They are those of zero states
  # unless a norm, which has a bias, comes before the projections.
  nonzero_start = c.pre_norm and c.memory_init == 'zeros'
  if not (longest and c.mem_len) or model.ABSOLUTE or nonzero_start:
    return model
  # With a parent, Flax would make it a submodule of the model.
  fields: Any = dict(model=model, longest=longest, several=several, parent=None)
  ordered = WithOrderedKeys(model.vocab_size, c, **fields)
  if several and ordered.works():
    return ordered
  return WithRing(model.vocab_size, c, **fields)


class WithRing(base.Wrapper):
  """A Transformer at inference, whose memory is a Ring.

  The model is a transformer_xl.TransformerXL. Results are the same, but there
  is nothing to inspect (`models.inspection`): slots are not in the order of
  positions.
  """

  longest: int = dataclasses.field(kw_only=True)  # T of the longest segment
  # Whether one call may read several such segments.
  several: bool = dataclasses.field(kw_only=True)

  @property
  def vocabulary(self) -> Any:
    """The embedding and softmax of the model."""
    return self.model.vocabulary

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> base.LanguageModel:
    return self.model.at_test_time(longest, several, **overrides)

  @property
  def _slots(self) -> int:
    """C: M and the queries that attend at once, in whole segments."""
    c, M, T = self.config, self.config.mem_len, self.longest
    # More queries make better use of each product, but every query scores all
    # C slots. These bounds keep the waste below an eighth of the memory, and
    # the scores [H, T, C] smaller than the rings of all layers.
    on_tpu = target_device.device().platform == 'tpu'
    most = 2 * _MAX_QUERIES if on_tpu else _MAX_QUERIES
    queries = min(most, M // 8, c.n_layer * c.d_head)
    new = max(queries // T if self.several else 1, 1) * T
    # The kernel that moves scores to slots needs a multiple of 128.
    unit = 128 if on_tpu else T
    return -(-(M + new) // unit) * unit

  def frozen(self, params: Any) -> dict[str, Any]:
    """See `base.LanguageModel`.

    The position tables of all layers are projected, the kernels of queries,
    keys and values are joined, and on a GPU these and those of the feed-forward
    layers are transposed.
    """
    variables = self.model.frozen(params)
    tables = self.apply(variables, method='ring_tables')
    params, transposed = _for_decoding(variables['params'])
    return {'params': params, 'frozen': {'tables': tables, **transposed}}

  def ring_tables(self) -> tuple[Any, ...]:
    """The PositionTerms of each layer; each r is a `ring.table`."""
    shared = self.model.positions(self._slots, False)
    tables = []
    for layer in self.model.layers:
      terms = layer.attention.position_terms(layer.positions(shared))
      tables.append(terms._replace(r=self._table(terms.r)))
    return tuple(tables)

  def _table(self, r: jax.Array) -> jax.Array:
    """Lays out the position table [C, H, K] of a layer."""
    # A TPU multiplies many queries faster than it copies their scores.
    on_tpu = target_device.device().platform == 'tpu'
    return ring.table(
      r, 0 if on_tpu and self.several else self.config.clamp_len
    )

  def init_memory(self, batch_size: int) -> Ring:
    """A Ring, empty or full of zero states."""
    c = self.config
    shape = batch_size * c.n_head, self._slots, c.d_head
    pairs = self.row_axes().states
    states = jax.tree.map(lambda _: jnp.zeros(shape, c.operand_dtype), pairs)
    filled = self.model.filled_at_start(batch_size)
    return Ring(states, jnp.zeros([], jnp.int32), filled)

  def row_axes(self) -> Ring:
    return Ring(((0, 0),) * self.config.n_layer, base.SHARED, 0)

  def rewind(self, memory: Any, counts: jax.Array) -> Any:
    """The memory before the last counts[b] tokens of each row, int32 [B]."""
    states, at = ring.rewind(memory.states, memory.at, counts)
    return Ring(states, at, memory.filled - counts)

  def states(
    self,
    tokens: jax.Array,
    memory: Ring,
    *,
    lengths: jax.Array | None = None,
    train: bool = False,
  ) -> tuple[jax.Array, Ring]:
    """int32 [B, n T] -> final states [B, n T, D] and the new memory.

    n > 1 needs `several`. Raises ValueError if n > 1 with lengths, or if the
    last segment is partial.
    """
    del train
    c = self.config
    count = tokens.shape[1]
    C = self._slots
    T = min(count, self.longest)
    n = count // T
    if n * T < count or (n > 1 and lengths is not None):
      raise ValueError(
        f'a segment of {count} tokens; allowed: at most {T}, as set by '
        f'at_test_time(longest={T}), or several unpadded segments of {T}'
      )
    h = self.model.inputs(tokens, lengths, False)
    attend = self._attention(memory, T, n)
    tables = self.get_variable('frozen', 'tables') or self.ring_tables()
    states = []
    for layer, rings, terms in zip(self.model.layers, memory.states, tables):
      x = layer.normed(h)
      attended, rings = attend(layer.attention, x, rings, terms)
      h = layer.after_attention(h, attended)
      states.append(rings)
    filled = jnp.minimum(memory.filled + count, c.mem_len + C)
    memory = Ring(tuple(states), self._after(memory.at, count), filled)
    if lengths is not None:
      memory = self.rewind(memory, T - lengths)
    return h, memory

  def _after(self, at: jax.Array, count: int) -> jax.Array:
    """The slot `at` of a Ring after `count` more tokens."""
    return (at + count) % self._slots

  def _attention(self, memory: Ring, T: int, n: int) -> Callable[..., Any]:
    """Attention of n segments of T.

    A function of a layer's attention, its input [B, n T, D], rings and
    PositionTerms, which returns [B, n T, D] and the new rings.
    """
    c, C = self.config, self._slots
    before = jnp.arange(n) * T  # tokens of the call before each segment
    at = (memory.at + before) % C
    filled = memory.filled[None] + before[:, None]  # [n, B]
    filled = jnp.minimum(filled, c.mem_len)
    visible = functools.partial(ring.visibility, T=T, C=C, span=c.span)
    mask = jax.vmap(visible)(at=at, filled=filled)  # [n, B, T, C]
    # g segments attend at once: a divisor of n, with room beside the memory.
    g = max(x for x in range(1, n + 1) if n % x == 0 and c.mem_len + x * T <= C)
    mask = jnp.moveaxis(mask.reshape(n // g, g, -1, T, C), 1, 2)
    mask, at = mask.reshape(n // g, -1, g * T, C), at[::g]
    return functools.partial(_over_rings, at=at, mask=mask)


class WithOrderedKeys(WithRing):
  """A WithRing whose keys stay in the order of positions, the newest last.

  For the kernel `tpu_cached`: slot 0 is always the next one to write.
  """

  def works(self) -> bool:
    """Whether this device has the kernel, and it does what it should."""
    c, T = self.config, self.longest
    if c.attention != 'tpu_shift':
      return False
    params = base.param_shapes(self.model)
    tables = functools.partial(self.apply, method='ring_tables')
    if any(x.b is not None for x in jax.eval_shape(tables, {'params': params})):
      return False
    device, dtype = target_device.device(), c.operand_dtype.name
    case = kernels.Case(device, dtype, T, self._slots, c.d_head, rate=0.0)
    N = max(joint_tokens(self), T)
    return proof.reads_segments(case, c.mem_len, c.span, N)

  @property
  def _slots(self) -> int:
    from txl_jax.ops.kernels import tpu_cached

    unit = tpu_cached.UNIT
    return -(-(self.config.mem_len + self.longest) // unit) * unit

  def _table(self, r: jax.Array) -> jax.Array:
    from txl_jax.ops.kernels import tpu_cached

    return tpu_cached.table(r)

  def rewind(self, memory: Any, counts: jax.Array) -> Any:
    states = ring.rolled(memory.states, counts)
    return Ring(states, memory.at, memory.filled - counts)

  def _after(self, at: jax.Array, count: int) -> jax.Array:
    return at

  def _attention(self, memory: Ring, T: int, n: int) -> Callable[..., Any]:
    c = self.config
    sizes = dict(T=T, M=c.mem_len, span=c.span)
    return functools.partial(_over_keys, filled=memory.filled, **sizes)


def _over_keys(
  layer_attention: Any,
  x: jax.Array,
  kept: tuple[jax.Array, jax.Array],
  terms: Any,
  *,
  filled: jax.Array,
  **sizes: Any,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Like `_over_rings`, for keys and values in the order of positions."""
  new = _project(layer_attention, x)
  r, u, v_bias, _ = terms
  B, _, H, _ = new[0].shape
  old = [y.reshape(B, H, *y.shape[1:]) for y in kept]
  with jax.named_scope('attention.attend'):
    out, *states = dispatch.attend_cached(
      *new, *old, r, u, v_bias, filled, **sizes
    )
  k, v = (y.reshape(x.shape) for y, x in zip(states, kept))
  return layer_attention.o(out), (k, v)


def _over_rings(
  layer_attention: Any,
  x: jax.Array,
  rings: tuple[jax.Array, jax.Array],
  terms: Any,
  *,
  at: jax.Array,
  mask: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Attention over rings of keys and values: [B, G L, D], and the new rings.

  x [B, G L, D] is G groups of L tokens, one segment or more. Each group first
  writes its keys and values to the slots from at[i], int32 [G], and then
  attends to the slots in mask[i], bool [G, B, L, C], so also to those of the
  groups before it.
  """
  G, B, L, _ = mask.shape
  r, u, v_bias, b = terms
  to_slots = dispatch.to_slots(layer_attention.config.attention)

  def attend(rings, group):
    (q, *new), at, mask = group
    k, v = (ring.write(old, x, at) for old, x in zip(rings, new))
    # [B, H, L, C]
    scores = ring.scores(q, k, r, u, v_bias, at, b, to_slots=to_slots)
    return (k, v), ring.attend(scores, v, mask)

  def cut(y):  # [B, G L, H, K] -> [G, B, H, L, K]
    return jnp.moveaxis(y.reshape(B, G, L, *y.shape[2:]), (1, 2), (0, 3))

  groups = [cut(y) for y in _project(layer_attention, x)], at, mask
  rings = matmul.varying_alike(rings, groups)
  with jax.named_scope('attention.attend'):
    rings, out = jax.lax.scan(attend, rings, groups)
  out = jnp.moveaxis(out, (0, 3), (1, 2))  # [B, G, L, H, K]
  return layer_attention.o(out.reshape(B, G * L, *out.shape[3:])), rings


def _project(attention: Any, x: jax.Array) -> Sequence[jax.Array]:
  """[B, any, D] -> queries, keys, values; one product if frozen."""
  variables = attention.variables.items()
  joined = {
    kind: modules['qkv'] for kind, modules in variables if 'qkv' in modules
  }
  if not joined:
    return attention.q(x), *attention.project(x)
  c = attention.config
  heads = 3, c.n_head, c.d_head
  product = stack.product(c, heads, use_bias=False, parent=None)
  together = cast(jax.Array, product.apply(joined, x))  # [B, any, 3, H, K]
  return [together[..., n, :, :] for n in range(3)]


def _for_decoding(params: Any) -> tuple[Any, Any]:
  """Joins the query, key and value kernels.

  Returns the parameters and, separately, the kernels that are stored
  transposed, see `stack.Product`.
  """
  flat: dict[str, Any] = {**traverse_util.flatten_dict(params, sep='/')}
  transposed = {}
  for name in [x for x in flat if x.endswith('attention/q/kernel')]:
    path = name.removesuffix('q/kernel')
    kernels = [flat.pop(f'{path}{x}/kernel') for x in 'qkv']
    flat[f'{path}qkv/kernel'] = jnp.stack(kernels, axis=1)  # [D, 3, H, K]
  if target_device.device().platform == 'gpu':
    # For a single token, XLA turns a matrix product into a reduction. Over the
    # last axis, this is one kernel with contiguous reads.
    ends = 'attention/qkv/kernel', 'ff/w1/kernel', 'ff/w2/kernel'
    names = [x for x in flat if x.endswith(ends)]
    transposed = {x: jnp.moveaxis(flat.pop(x), 0, -1) for x in names}
  params, kernels = (
    traverse_util.unflatten_dict(x, sep='/') for x in (flat, transposed)
  )
  return params, kernels
