"""The character Transformer of Al-Rfou et al. 2018, without memory.

Shapes
  B batch, T segment, N layers, D model width, V vocabulary, L rows of each
  layer's position table.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, initial, inspection, stack
from txl_jax.models.baselines import vaswani
from txl_jax.models.config import model_name
from txl_jax.ops import softmax
from txl_jax.parallel import vocab_parallel
from txl_jax.parallel.placement import VOCABULARY
from txl_jax.program import errors
from txl_jax.program.settings import count, key, size


@dataclasses.dataclass(frozen=True)
class Config(vaswani.Absolute):
  """Keys of `AlRfou`, the section `model` of a config."""

  name: str = model_name(
    'al_rfou',
    'Transformer with learned positions in every layer (Al-Rfou et al. 2018)',
  )
  table_len: int = size(
    512,
    "L: rows of each layer's position table, the maximum length of a segment "
    'or window.',
  )
  layer_losses: bool = key(
    False,
    'In training, every layer predicts, through its own output layer; layer '
    'l < N stops after the fraction l / (2N) of training.',
  )
  second_target: float = count(
    0.0,
    'Weight of a second training loss, for the token after the next (0.5 in '
    'the paper); 0 is off. Each layer that predicts has a second output layer '
    'for it.',
  )


class Layer(vaswani.Layer):
  """A layer that adds its own position embeddings to its input."""

  def setup(self) -> None:
    super().setup()
    c = self.config
    init = initial.normal(c.init_std)
    shape = c.table_len, c.d_model
    self.table = self.param('positions', init, shape, jnp.float32)

  def __call__(self, x, memory, positions, filled, lengths, bits=None):
    """Adds the last n rows of the table to a row of n real tokens."""
    L, T = self.config.table_len, x.shape[1]
    if L < T:
      allowed = f'at least {T}, the tokens of the segment or window'
      errors.refuse('model.table_len', L, allowed)
    table = jnp.asarray(self.table, x.dtype)[L - T :]  # [T, D]
    if lengths is not None:
      table = table[T - 1 - vaswani.tokens_left(T, lengths)]  # [B, T, D]
    x += table.reshape(-1, *x.shape[1:])
    return super().__call__(x, memory, positions, filled, lengths, bits=bits)


class Auxiliary(nn.Module):
  """Auxiliary outputs and losses of training.

  The output layers `next`, one for each layer l < N, predict the next token.
  The output layers `second`, one for each layer that predicts, predict the
  token after it. All have separate weights.
  """

  vocab_size: int  # V
  config: Any

  def setup(self) -> None:
    c = self.config
    n = c.n_layer - 1 if c.layer_losses else 0
    self.next = self._outputs('next', n)
    self.second = self._outputs('second', n + 1 if c.second_target else 0)

  def _outputs(self, name: str, n: int) -> tuple[jax.Array, ...]:
    """Weights [n, V, D] and biases [n, V] of n layers, () if n is 0."""
    c, V = self.config, self.vocab_size
    if not n:
      return ()
    init = initial.normal(c.init_std)
    zeros = nn.initializers.zeros
    shape = n, V, c.d_model
    f32 = jnp.float32
    weights = self.param(f'{name}_weights', init, shape, f32)
    return weights, self.param(f'{name}_biases', zeros, (n, V), f32)

  def __call__(
    self, states: Any, targets: jax.Array, progress: jax.Array | None
  ) -> jax.Array:
    """The losses as an `LMOutput.aux`, float32 [2].

    States after each layer are [N, B, T, D], targets int32 [B, T]. A loss that
    has ended is skipped, forward and backward.
    """
    if self.is_initializing():  # layers then show no states
      return jnp.zeros([2], jnp.float32)
    c = self.config
    rate = c.or_dropout(c.dropout_final)
    shared = (1,) if c.locked_dropout else ()
    key = self.make_rng('dropout') if rate else None
    # The second target is scored only if the first is.
    second_targets = jnp.where(targets < 0, -1, jnp.roll(targets, -1, axis=1))
    second_targets = second_targets.at[:, -1].set(-1)
    dtype = c.operand_dtype
    zero = jnp.zeros([2], attention.widened(dtype))

    def layer_loss(h, n, outputs):
      """float32 [2], loss of layer n; outputs: next, second, each maybe ()."""
      if key is not None:
        h = attention.dropout(h, rate, jax.random.fold_in(key, n), shared)
      loss = zero
      weighted_targets = (1.0, targets), (c.second_target, second_targets)
      for i, output in enumerate(outputs):
        weight, ids = weighted_targets[i]
        if output:
          loss = loss.at[i].add(weight * sum_nll(h, ids, output, dtype))
      return loss

    N = c.n_layer
    total = zero
    if c.second_target:
      output = jax.tree.map(lambda x: x[-1], self.second)
      total += layer_loss(states[-1], N - 1, ((), output))
    if not self.next:
      return total
    outputs = jax.tree.map(lambda x: x[: N - 1], (self.next, self.second))
    progress = jnp.float32(0) if progress is None else progress

    def add(total, layer):
      h, n, outputs = layer
      on = on_until(n + 1, N, progress)
      skip = lambda *_: zero
      return total + jax.lax.cond(on, layer_loss, skip, h, n, outputs), None

    layers = states[: N - 1], jnp.arange(N - 1), outputs
    return jax.lax.scan(add, total, layers)[0]


def on_until(l: Any, N: int, progress: Any) -> jax.Array:
  """Whether layer l of N still predicts: progress < l / (2N).

  The margin allows for the rounding of `progress`, step / steps in float32.
  """
  return progress < jnp.float32(l) / (2 * N) - 1e-7


def sum_nll(
  h: jax.Array, targets: jax.Array, output: Any, dtype: Any
) -> jax.Array:
  """Nll summed over targets, for h [B, T, D] and output ([V, D], [V])."""
  weights, biases = output
  D = h.shape[-1]
  no_tails = jnp.zeros([0, D]), jnp.zeros([0])
  plain = softmax.Output([weights], [biases], [None], *no_tails)
  h = h.reshape(-1, D)
  ids = targets.reshape(-1)
  nll = vocab_parallel.nll(h, ids, plain, tail_order='ascending', dtype=dtype)
  return jnp.sum(nll)


class AlRfou(vaswani.AbsoluteTransformer):
  """The Transformer with learned positions added to the input of each layer.

  With auxiliary losses, training minimises

    sum over layers l of [CE_1(l) + second_target CE_2(l)]

  where CE_k is the mean cross entropy of the token k places ahead. Layers l < N
  are left out of the sum after the fraction l / (2N) of training.
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
    """See `base.LanguageModel.reach`; also at most L, the rows of the table."""
    return min(super().reach(trained), self.config.table_len)

  def inference_params(self, params: Any) -> Any:
    return {name: x for name, x in params.items() if name != 'auxiliary'}

  def __call__(self, tokens, targets, memory, *, train, progress=None, **rows):
    """Scores the targets; see `models.base` for the arguments."""
    c = self.config
    if not train or not (c.layer_losses or c.second_target):
      return super().__call__(tokens, targets, memory, train=train, **rows)
    lengths, context = rows.get('lengths'), rows.get('context')
    # `states`, and in `shown` those after each layer.
    h = self.inputs(tokens, lengths, train)
    h, _, shown = stack.run(
      self.layers,
      h,
      self._zeros(len(h)),
      (self.positions(h.shape[1], train), None, lengths),
      self.dropout_bits(train),
      [inspection.STATES],
    )

    def cut(states):
      return base.without_context(states, targets, context)

    nll, aux = self.vocabulary.loss(cut(h), targets, train=train)
    # During initialisation, layers show nothing.
    states = jax.tree.map(jax.vmap(cut), shown.get(inspection.STATES))
    aux += self.auxiliary(states, targets, progress)
    return base.LMOutput(nll, memory, aux)
