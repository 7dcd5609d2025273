"""Transformers at test time, when weights are frozen.

Memory is then a ring of keys and values instead of states (`txl_jax.ops.ring`),
so that no state is projected twice; and what depends on the weights alone is
computed once, for many calls.

Shapes
  B batch, T segment, n segments in a call, M memory, C slots of the ring,
  N layers, H heads, K head width, D model width.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax import traverse_util

from txl_jax.models import base, inspection, stack
from txl_jax.ops import ring
from txl_jax.program import target_device

# The most tokens of several segments that attend to the ring at once.
_AT_ONCE = 128


class Ring(flax.struct.PyTreeNode):
  """Keys and values of the past inputs of every layer."""

  states: Any  # for each layer a pair [B H, C, K]
  at: Any  # int32 [], the slot to be written next
  filled: Any  # int32 [B], how many real states each row has had, at most M + C


class WithRing(inspection.Inspected):
  """A Transformer whose memory is a Ring at test time.

  This needs relative positions and the longest segment in `at_test_time`;
  without them memory is as in training. The model is a
  `transformer_xl.TransformerXL`, whose attributes are used here.
  """

  longest: int = 0  # T of the longest segment; 0 if memory is a Memory
  several: bool = True  # whether several such segments may come at once

  @property
  def has_ring(self) -> bool:
    """Whether memory is a Ring."""
    # A zero state has zero keys and values, but not after a norm.
    c = self.config
    zeros_behind_norm = c.pre_norm and c.memory_init == 'zeros'
    never = self.ABSOLUTE or zeros_behind_norm
    return bool(self.longest and c.mem_len and not never)

  @property
  def _slots(self):
    """C: M plus what attends at once, in whole segments; so none is cut."""
    c, M, T = self.config, self.config.mem_len, self.longest
    # Products with few queries are slow, but each of them sees all slots, and
    # their scores must be smaller than the ring.
    most = min(_AT_ONCE, M // 8, c.n_layer * c.d_head)
    new = max(most // T if self.several else 1, 1) * T
    return -(-(M + new) // T) * T

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> base.LanguageModel:
    model = super().at_test_time(**overrides)
    return model.clone(longest=longest or 0, several=several)

  def frozen(self, params: Any) -> dict[str, Any]:
    """See `base.LanguageModel`.

    If memory is a Ring, the position tables of all layers are projected, the
    kernels of queries, keys and values are joined, and on a GPU those of
    products have their output axes first.
    """
    variables = super().frozen(stack.cast(params, self.config))
    if not self.has_ring:
      return variables
    tables = self.apply(variables, method='ring_tables')
    params, kernels = _arranged(variables['params'])
    return {'params': params, 'frozen': {'tables': tables, **kernels}}

  def ring_tables(self) -> tuple[Any, ...]:
    """The position terms of each layer, whose r is a `ring.table`."""
    shared, tables = self.positions(self._slots, False), []
    for layer in self.layers:
      terms = layer.attention.position_terms(layer.positions(shared))
      tables.append(terms._replace(r=ring.table(terms.r)))
    return tuple(tables)

  def init_ring(self, batch_size: int) -> Ring:
    """A Ring, empty or full of zero states."""
    c = self.config
    shape = batch_size * c.n_head, self._slots, c.d_head
    pairs = self.ring_axes().states
    states = jax.tree.map(lambda _: jnp.zeros(shape, c.operand_dtype), pairs)
    return Ring(states, jnp.zeros([], jnp.int32), self.start(batch_size))

  def ring_axes(self) -> Ring:
    """Like `row_axes`, of a Ring."""
    return Ring(((0, 0),) * self.config.n_layer, base.SHARED, 0)

  def repeat_rows(self, memory: Any, times: int) -> Any:
    if not self.has_ring:
      return super().repeat_rows(memory, times)
    B = len(memory.filled)

    def repeat(x):
      x = x.reshape(B, -1, *x.shape[1:])  # [B, H, C, K]
      return jnp.repeat(x, times, axis=0).reshape(-1, *x.shape[2:])

    states = jax.tree.map(repeat, memory.states)
    return Ring(states, memory.at, jnp.repeat(memory.filled, times))

  def segments_of(self) -> int:
    return self.longest if self.has_ring and self.several else 0

  def rewinds(self) -> int:
    return self.longest if self.has_ring else 0

  def rewind(self, memory: Any, counts: jax.Array) -> Any:
    """The memory without the last counts[b] tokens of row b, int32 [B]."""
    states, at = ring.rewind(memory.states, memory.at, counts)
    return Ring(states, at, memory.filled - counts)

  def forward_ring(
    self, tokens: jax.Array, memory: Ring, lengths: Any, shown: str
  ) -> tuple[jax.Array, Ring, None]:
    """int32 [B, n T] -> final states [B, n T, D], the new memory, None.

    See `segments_of`. ValueError if the layers are asked to show something:
    the slots of a Ring are not in the order of their states.
    """
    if shown:
      raise ValueError('layers show nothing with at_test_time(longest=...)')
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
    visible = functools.partial(ring.visibility, T=T, C=C, span=c.span)
    mask = jax.vmap(visible)(at=at, filled=filled)  # [n, B, T, C]
    # As many segments at once as the ring has room for besides the memory.
    g = max(x for x in range(1, n + 1) if n % x == 0 and c.mem_len + x * T <= C)
    mask = jnp.moveaxis(mask.reshape(n // g, g, -1, T, C), 1, 2)
    mask, at = mask.reshape(n // g, -1, g * T, C), at[::g]
    tables = self.get_variable('frozen', 'tables') or self.ring_tables()
    states = []
    with nn.intercept_methods(_product):
      for n, layer in enumerate(self.layers):
        arguments = layer.normed(h), memory.states[n], tables[n], at, mask
        attended, rings = _attention(layer.attention, *arguments)
        h = layer.after_attention(h, attended)
        states.append(rings)
    filled = jnp.minimum(memory.filled + count, c.mem_len + C)
    memory = Ring(tuple(states), (memory.at + count) % C, filled)
    if lengths is not None:
      memory = self.rewind(memory, T - lengths)
    return h, memory, None


def _attention(
  attention: Any, x: jax.Array, rings: Any, terms: Any, at: Any, mask: Any
) -> tuple[jax.Array, Any]:
  """Attention over rings of keys and values: [B, n T, D], and the new rings.

  x is [B, n T, D], n parts one after the other, each of one segment or of
  several; at [n] and mask [n, B, T, C] are those of each part, which sees what
  the parts before it have written.
  """
  (n, B, T, _), (r, u, v_bias, b) = mask.shape, terms

  def attend(rings, part):
    (q, *new), at, mask = part
    k, v = (ring.write(old, x, at) for old, x in zip(rings, new))
    scores = ring.scores(q, k, r, u, v_bias, at, b)  # [B, H, T, C]
    return (k, v), ring.attend(scores, v, mask)

  def cut(y):  # [B, n T, H, K] -> [n, B, H, T, K]
    return jnp.moveaxis(y.reshape(B, n, T, *y.shape[2:]), (1, 2), (0, 3))

  parts = [cut(y) for y in _project(attention, x)], at, mask
  rings, out = jax.lax.scan(attend, rings, parts)
  out = jnp.moveaxis(out, (0, 3), (1, 2))  # [B, n, T, H, K]
  return attention.o(out.reshape(B, n * T, *out.shape[3:])), rings


def _project(attention, x):
  """[B, any, D] -> queries, keys, values; one product if kernels are joined."""
  kinds = attention.variables.items()
  joined = {kind: x['qkv'] for kind, x in kinds if 'qkv' in x}
  if not joined:
    return attention.q(x), *attention.project(x)
  product = attention.q.clone(features=(3, *attention.q.features), parent=None)
  together = product.apply(joined, x)  # [B, any, 3, H, K]
  return [together[..., n, :, :] for n in range(3)]


def _product(call, args, kwargs, context):
  """Intercepts each `stack.product` whose kernel is [*outputs, inputs]."""
  module: Any = context.module
  kernel = None
  if isinstance(module, nn.DenseGeneral):
    kernel = module.get_variable('frozen', 'kernel')
  if kernel is None:
    return call(*args, **kwargs)
  y = jnp.tensordot(args[0].astype(module.dtype), kernel, (-1, -1))
  if module.use_bias:
    y += module.get_variable('params', 'bias').astype(module.dtype)
  return y


def _arranged(params):
  """Parameters with joined kernels for queries, keys and values, in two parts.

  The second has the kernels that are [*outputs, inputs], the first the rest.
  """
  flat: dict[str, Any] = {**traverse_util.flatten_dict(params, sep='/')}
  first = {}
  for name in [x for x in flat if x.endswith('attention/q/kernel')]:
    path = name.removesuffix('q/kernel')
    kernels = [flat.pop(f'{path}{x}/kernel') for x in 'qkv']
    flat[f'{path}qkv/kernel'] = jnp.stack(kernels, axis=1)  # [D, 3, H, K]
  if target_device.device().platform == 'gpu':
    # There, a product with one row, that of a generated token, becomes sums:
    # along the last axis they are one kernel that reads memory in order.
    ends = 'attention/qkv/kernel', 'ff/w1/kernel', 'ff/w2/kernel'
    names = [x for x in flat if x.endswith(ends)]
    first = {x: jnp.moveaxis(flat.pop(x), 0, -1) for x in names}
  return [traverse_util.unflatten_dict(x, sep='/') for x in (flat, first)]
