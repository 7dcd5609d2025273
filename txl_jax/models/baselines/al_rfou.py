"""The character Transformer of Al-Rfou et al. 2018, without memory.

Shapes
  B batch, T segment, N layers, D model width, V vocabulary, L rows of the
  position table of a layer.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import initial, inspection
from txl_jax.models.baselines import vaswani
from txl_jax.models.config import model_name
from txl_jax.ops import softmax
from txl_jax.parallel import vocab_parallel
from txl_jax.parallel.placement import VOCABULARY
from txl_jax.program import errors
from txl_jax.program.settings import count, key, size


@dataclasses.dataclass(frozen=True)
class Config(vaswani.Absolute):
  """The section `model` of a config for `AlRfou`."""

  name: str = model_name(
    'al_rfou',
    'Transformer with learned positions in every layer (Al-Rfou et al. 2018)',
  )
  table_len: int = size(
    512,
    'L: positions in the table of each layer; no segment or window may be '
    'longer.',
  )
  layer_losses: bool = key(
    False,
    'In training every layer predicts, with an output of its own; layer l < N '
    'stops after l / 2 N of the training.',
  )
  second_target: float = count(
    0.0,
    'In training the token after the next is predicted too, by another output '
    'of every layer that predicts; this is the weight of that loss (0.5 in the '
    'paper), 0 is off.',
  )


class Layer(vaswani.Layer):
  """A layer that adds its own positions to what it reads."""

  def setup(self) -> None:
    super().setup()
    c = self.config
    init, shape = initial.normal(c.init_std), (c.table_len, c.d_model)
    self.table = self.param('positions', init, shape, jnp.float32)

  def __call__(self, x, memory, positions, filled, lengths, bits=None):
    """Reads x + the last n rows of the table, for a row of n real tokens."""
    c, T = self.config, x.shape[1]
    if c.table_len < T:
      allowed = f'at least {T}, the tokens of a segment or window, or fewer'
      errors.refuse('model.table_len', c.table_len, allowed)
    table = jnp.asarray(self.table, x.dtype)[c.table_len - T :]
    if lengths is not None:
      table = table[T - 1 - vaswani.tokens_left(T, lengths)]
    rest = memory, positions, filled, lengths, bits
    return super().__call__(x + table, *rest)


class Auxiliary(nn.Module):
  """The auxiliary outputs of training, and the sum of their losses.

  The output `next` of each layer l < N predicts the next token, the output
  `second` of each layer that predicts the one after it; they share no weights.
  """

  vocab_size: int  # V
  config: Any

  def setup(self) -> None:
    c = self.config
    n = c.n_layer - 1 if c.layer_losses else 0
    self.next = self._outputs('next', n)
    self.second = self._outputs('second', n + 1 if c.second_target else 0)

  def _outputs(self, name, n):
    """Weights [n, V, D] and biases [n, V] of n layers, () if n is 0."""
    c, V = self.config, self.vocab_size
    if not n:
      return ()
    init, zeros = initial.normal(c.init_std), nn.initializers.zeros
    shape, wide = (n, V, c.d_model), jnp.float32
    weights = self.param(f'{name}_weights', init, shape, wide)
    return weights, self.param(f'{name}_biases', zeros, (n, V), wide)

  def __call__(self, outputs, targets, progress):
    """The losses as an `LMOutput.aux`, float32 [2].

    The outputs of the layers are [N, B, T, D], the targets int32 [B, T]. Losses
    of layers that no longer predict are not computed, nor are their gradients.
    """
    if self.is_initializing():  # when no layer shows its output
      return jnp.zeros([2], jnp.float32)
    c = self.config
    rate = c.dropout if c.dropout_final < 0 else c.dropout_final
    shared = (1,) if c.locked_dropout else ()
    key = self.make_rng('dropout') if rate else None
    # The token after the next counts if both it and the next one are scored.
    later = jnp.where(targets < 0, -1, jnp.roll(targets, -1, axis=1))
    later = later.at[:, -1].set(-1)
    dtype = c.operand_dtype
    zero = jnp.zeros([2], jnp.promote_types(dtype, jnp.float32))

    def loss(h, n, weights):
      """Losses of layer n, whose outputs have these weights, () for none."""
      if key is not None:
        h = attention.dropout(h, rate, jax.random.fold_in(key, n), shared)
      total = zero
      losses = (1.0, targets), (c.second_target, later)
      for i, output in enumerate(weights):
        weight, target = losses[i]
        if output:
          total = total.at[i].add(weight * sum_nll(h, target, output, dtype))
      return total

    N, total = c.n_layer, zero
    if c.second_target:
      last = jax.tree.map(lambda x: x[-1], ((), self.second))
      total += loss(outputs[-1], N - 1, last)
    if not self.next:
      return total
    before = jax.tree.map(lambda x: x[: N - 1], (self.next, self.second))
    now = jnp.float32(0) if progress is None else progress

    def add(total, layer):
      h, n, weights = layer
      on, off = on_until(n + 1, N, now), lambda *_: zero
      return total + jax.lax.cond(on, loss, off, h, n, weights), None

    each = outputs[: N - 1], jnp.arange(N - 1), before
    return jax.lax.scan(add, total, each)[0]


def on_until(l: Any, N: int, progress: Any) -> jax.Array:
  """Whether layer l of N still predicts: progress < l / 2 N.

  Progress, a quotient in float32, may have been rounded to either side.
  """
  return progress < jnp.float32(l) / (2 * N) - 1e-7


def sum_nll(
  h: jax.Array, targets: jax.Array, output: Any, dtype: Any
) -> jax.Array:
  """Nll summed over targets, for h [B, T, D] and output ([V, D], [V])."""
  (weights, biases), D = output, h.shape[-1]
  no_tails = dict(tail_weights=jnp.zeros([0, D]), tail_biases=jnp.zeros([0]))
  plain = softmax.Output([weights], [biases], [None], **no_tails)
  flat = h.reshape(-1, D), targets.reshape(-1)
  nll = vocab_parallel.nll(*flat, plain, tail_order='ascending', dtype=dtype)
  return jnp.sum(nll)


class AlRfou(vaswani.AbsoluteTransformer):
  """Learned positions in every layer, see `models.base` and `Config`.

  Each layer reads h + positions and is plain otherwise. With its auxiliary
  losses, training minimises

    sum over layers l of [CE_1(l) + second_target CE_2(l)]

  where CE_k is the mean cross entropy of the token k places ahead, and layers
  l < N drop out of the sum after l / 2 N of the training.
  """

  Config = Config
  LAYER = Layer
  SHARDING = (
    *vaswani.AbsoluteTransformer.SHARDING,
    (r'layers_\d+/positions', (None, 'fsdp')),  # [L, D]
    (r'auxiliary/\w+_weights', (None, VOCABULARY, None)),  # [layers, V, D]
    (r'auxiliary/\w+_biases', (None, VOCABULARY)),  # [layers, V]
  )

  def setup(self) -> None:
    super().setup()
    self.auxiliary = Auxiliary(self.vocab_size, self.config)

  def reach(self, trained: int | None = None) -> float:
    """See `base.LanguageModel`: the rows of the tables, those trained."""
    return min(super().reach(trained), self.config.table_len)

  def inference_params(self, params: Any) -> Any:
    return {name: x for name, x in params.items() if name != 'auxiliary'}

  def __call__(self, tokens, targets, memory, *, train, progress=None, **rows):
    """Nll of the targets; see `models.base` for the arguments."""
    c = self.config
    if not train or not (c.layer_losses or c.second_target):
      return super().__call__(tokens, targets, memory, train=train, **rows)
    lengths, context = rows.get('lengths'), rows.get('context')
    arguments = tokens, memory, lengths, train
    h, memory, outputs = self.forward(*arguments, inspection.OUTPUTS)
    cut = functools.partial(self.of_segment, targets=targets, context=context)
    # While parameters are made, no outputs are shown.
    h, outputs = cut(h), jax.tree.map(jax.vmap(cut), outputs)
    out = self.output(h, targets, memory, train=train)
    aux = self.auxiliary(outputs, targets, progress)
    return out.replace(aux=out.aux + aux)
