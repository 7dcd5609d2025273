"""The interface of every language model here.

A model is a file with a dataclass of its keys, the section `model` of a
config (see `settings`), and a Linen module, a `LanguageModel`:

  states(tokens, memory, *, lengths, train) -> final states [B, T, D], memory;
    or through(tokens, memory, lengths, train) -> the states of every layer,
    memory
  init_memory(batch_size) -> memory
  row_axes() -> for each leaf of a memory, the batch axis

  tokens    int32 [B, T], or [B, E + T] with a context
  targets   int32 [B, T]; a target of -1 is not scored
  memory    any pytree of arrays, () for none: an argument and a return value
            everywhere
  lengths   int32 [B]: row b holds tokens[b, :lengths[b]]; what follows is
            padding that never enters memory; None means no padding
  progress  float32 scalar, step / steps: for losses that end on a schedule
  context   int32 [B]: the targets of row b begin after that many tokens, which
            are only read: a model without a memory may have it, and tokens are
            then left-aligned: context, segment, padding; None for none

Everything else is inherited. The methods that read no parameters are pure: call
them on the unbound module. With train=True `apply` needs a 'dropout' key.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax.models import config as config_lib
from txl_jax.models import initial, vocabulary
from txl_jax.ops import dropout
from txl_jax.program import errors, settings

# In `row_axes`, marks an array that all rows share.
SHARED = -1


class LMOutput(flax.struct.PyTreeNode):
  """What a language model returns for one segment."""

  nll: jax.Array  # float32 [B, T], -log p(target) in nats, 0 for a target of -1
  memory: Any  # after this segment
  # float32 [2], added to the mean nll in training: sums that are divided by the
  # `counts` of the whole batch.
  aux: jax.Array


def counts(targets: jax.Array) -> jax.Array:
  """How many targets of int32 [B, T], and pairs of neighbours, are scored.

  float32 [2], at least 1.
  """
  scored = targets >= 0
  n = jnp.sum(scored), jnp.sum(scored[:, 1:] & scored[:, :-1])
  return jnp.maximum(jnp.stack(n), 1).astype(jnp.float32)


class Dropout(nn.Module):
  """Dropout of x [B, T, ...] under the 'dropout' key of the module.

  Locked, it has one mask for all positions, see `ops.dropout.drop`.
  """

  @nn.compact
  def __call__(self, x, rate, *, train, locked=False):
    if not train or rate == 0.0:
      return x
    return dropout.drop(x, rate, self.make_rng('dropout'), locked)


class LanguageModel(nn.Module):
  """What all models share; by default, a model has no memory."""

  vocab_size: int
  config: Any  # an instance of Config, the dataclass of the model's keys
  # What the logits behind nll are divided by.
  temperature: float = dataclasses.field(default=1.0, kw_only=True)

  Config: ClassVar[type[config_lib.Config]]
  # Whether embeddings are multiplied by sqrt(D).
  SCALES_EMBEDDINGS: ClassVar[bool] = False
  # Whether it has `attention_maps`, see `models.inspection`.
  ATTENDS: ClassVar[bool] = False
  # Whether positions are those within a segment, not distances: then a text
  # cannot be read in other segments than in training, nor token by token.
  ABSOLUTE: ClassVar[bool] = False
  # (regular expression, axes of each dimension) for the paths of parameters,
  # see `parallel.mesh`; each parameter must match one.
  SHARDING: ClassVar[Sequence[tuple[str, tuple]]] = vocabulary.SHARDING
  # Regular expressions for the paths of matrices without weight decay.
  NOT_DECAYED: ClassVar[Sequence[str]] = ()

  def setup(self) -> None:
    c = self.config
    scale = c.d_model**0.5 if self.SCALES_EMBEDDINGS else 1.0
    arguments = self.vocab_size, c, scale, self.temperature
    self.vocabulary = vocabulary.Vocabulary(*arguments)
    self.drop = Dropout()
    tiny = 1e-12 * scale if c.dropped_words == 'tiny' else 0.0
    rate = c.word_dropout
    self.drop_words = vocabulary.WordDropout(self.vocab_size, rate, tiny)

  def init_memory(self, batch_size: int) -> Any:
    """A memory for that many rows, as it is before the first token."""
    del batch_size
    return ()

  def row_axes(self) -> Any:
    """A pytree like a memory: the batch axis of each leaf, by default 0.

    The axis may combine batch and heads; SHARED if a leaf has no rows.
    """
    memory = jax.eval_shape(lambda: self.init_memory(1))
    return jax.tree.map(lambda _: 0, memory)

  def reset_memory(self, memory: Any, rows: jax.Array) -> Any:
    """The memory with the given rows (bool [B]) as before the first token."""

    def reset(axis, old, new):
      if axis == SHARED:
        return old
      others = [i for i in range(old.ndim) if i != axis]
      each = jnp.repeat(rows, old.shape[axis] // len(rows))
      return jnp.where(jnp.expand_dims(each, others), new, old)

    empty = self.init_memory(len(rows))
    return jax.tree.map(reset, self.row_axes(), memory, empty)

  def repeat_rows(self, memory: Any, times: int) -> Any:
    """A memory with every row repeated `times` times in succession."""
    return jax.tree.map(
      lambda axis, x: jnp.repeat(x, times, axis), self.row_axes(), memory
    )

  def segments_of(self) -> int:
    """T, if a call may read several segments of T tokens, none of them padded.

    It returns what calls with one segment after the other would, but their
    states share matrix products. 0 if a call reads one segment.
    """
    return 0

  def rewinds(self) -> int:
    """How many tokens `rewind` can take back at most, 0 for none."""
    return 0

  def remembers(self) -> bool:
    """Whether a segment sees anything of the segments before it."""
    return bool(jax.tree.leaves(self.row_axes()))

  def reach(self, trained: int | None = None) -> float:
    """The most tokens that a segment may have; infinity for any number.

    Given T of the training, the most that the model can predict well: T if
    positions are absolute, for those beyond it have never been trained.
    """
    return trained if self.ABSOLUTE and trained else math.inf

  def embed(
    self, tokens: jax.Array, *, train: bool, positions: Any = None
  ) -> jax.Array:
    """int32 [B, T] -> [B, T, D], the input of the first layer.

    Positions, [T, D] or [B, T, D], are added before the last dropout.
    """
    x = self.vocabulary.embed(tokens)
    x = self.drop_words(x, tokens, train=train)
    if positions is not None:
      x += positions
    return self._drop_ends(x, self.config.dropout_embed, train)

  def _drop_ends(self, x: jax.Array, rate: float, train: bool) -> jax.Array:
    """Dropout of embeddings or final states [B, T, D]; -1 is model.dropout."""
    c = self.config
    rate = c.dropout if rate < 0 else rate
    return self.drop(x, rate, train=train, locked=c.locked_dropout)

  def states(
    self,
    tokens: jax.Array,
    memory: Any,
    *,
    lengths: jax.Array | None = None,
    train: bool = False,
  ) -> tuple[jax.Array, Any]:
    """int32 [B, T] -> final states [B, T, D] and the new memory."""
    (*_, h), memory = self.through(tokens, memory, lengths, train)
    return h, memory

  def through(
    self, tokens: jax.Array, memory: Any, lengths: Any, train: bool
  ) -> tuple[tuple[jax.Array, ...], Any]:
    """The embeddings, the output of each layer, and the new memory."""
    h, memory = self.states(tokens, memory, lengths=lengths, train=train)
    return (h,), memory

  def __call__(
    self,
    tokens: jax.Array,
    targets: jax.Array,
    memory: Any,
    *,
    train: bool,
    lengths: jax.Array | None = None,
    progress: jax.Array | None = None,
    context: jax.Array | None = None,
  ) -> LMOutput:
    """Nll of the targets; see above for the arguments."""
    states, memory = self.states(tokens, memory, lengths=lengths, train=train)
    states = self.of_segment(states, targets, context)
    return self.output(states, targets, memory, train=train)

  def of_segment(self, states: Any, targets: Any, context: Any) -> jax.Array:
    """Of states [B, E + T, D], those that predict targets [B, T]."""
    if context is None:
      return states
    cut, T = jax.lax.dynamic_slice_in_dim, targets.shape[1]
    return jax.vmap(lambda x, n: cut(x, n, T))(states, context)

  def output(
    self, states: jax.Array, targets: jax.Array, memory: Any, *, train: bool
  ) -> LMOutput:
    """The output for final states [B, T, D] and the memory after them."""
    c = self.config
    h = self.drop(states, c.dropout_final_plain, train=train)
    h = self._drop_ends(h, c.dropout_final, train)
    nll = self.vocabulary.nll(h, targets)
    aux = jnp.zeros([2], nll.dtype)
    if train and (c.activation_reg > 0 or c.temporal_activation_reg > 0):
      large = h if c.activation_reg_dropped else states
      aux += penalty(c, states, large, targets >= 0)
    return LMOutput(nll, memory, aux)

  def logits(
    self,
    tokens: jax.Array,
    memory: Any,
    *,
    lengths: jax.Array | None = None,
    last: bool = False,
  ) -> tuple[jax.Array, Any]:
    """Next-token logits, or log-probabilities, and the new memory.

    float32 [B, T, V]; with `last`, [B, V] after each row's last token.
    """
    h, memory = self.states(tokens, memory, lengths=lengths, train=False)
    if last and lengths is None:
      h = h[:, -1]
    elif last:
      at = jnp.maximum(jnp.asarray(lengths) - 1, 0)[:, None, None]
      h = jnp.take_along_axis(h, at, axis=1)[:, 0]
    return self.vocabulary.logits(h), memory

  def hidden(
    self, tokens: jax.Array, memory: Any, *, lengths: jax.Array | None = None
  ) -> tuple[tuple[jax.Array, ...], Any]:
    """The input of the first layer, the output of each, and the new memory.

    For N layers these are N + 1 arrays [B, T, width], without dropout. The
    last one is the final states, which the softmax reads; a model that has no
    `through` returns only that. The memory is as for `states`.
    """
    return self.through(tokens, memory, lengths, False)

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> 'LanguageModel':
    """The model for evaluation and generation, where the weights are frozen.

    The overrides are keys of its config that may change AT_TEST_TIME. Given the
    number of tokens of the longest segment, it may keep what it has computed
    from past states (see `frozen`), with room for several segments in one call
    (see `segments_of`).
    """
    del longest, several
    allowed = settings.keys(settings.overrides(type(self.config)))
    for name, value in overrides.items():
      if name not in allowed:
        errors.refuse(name, value, ', '.join(allowed) or 'no override')
    config = self.config.replace(**overrides)
    return self.clone(config=config).with_keys(attention='xla')

  def at_temperature(self, temperature: float) -> 'LanguageModel':
    """The model whose nll is that of logits / temperature; without tails."""
    return self.clone(temperature=temperature)

  def with_keys(self, **values: Any) -> 'LanguageModel':
    """The model with these values of the keys that its config has."""
    known = {k: x for k, x in values.items() if hasattr(self.config, k)}
    return self.clone(config=self.config.replace(**known))

  def frozen(self, params: Any) -> dict[str, Any]:
    """The variables for `apply` with parameters that no longer change.

    What depends on these alone is computed here, once for many calls.
    """
    return {'params': params}

  def inference_params(self, params: Any) -> Any:
    """The parameters without those that are only for training."""
    return params


class Wrapper(LanguageModel):
  """A model used in another way, with the same parameters."""

  model: Any = None  # a LanguageModel

  def setup(self) -> None:
    nn.share_scope(self, self.model)

  @property
  def SHARDING(self) -> Any:  # pyright: ignore
    """The sharding rules of the model."""
    return self.model.SHARDING

  def at_temperature(self, temperature: float) -> LanguageModel:
    return self.clone(model=self.model.at_temperature(temperature))

  def with_keys(self, **values: Any) -> LanguageModel:
    model = self.model.with_keys(**values)
    return self.clone(model=model, config=model.config)

  def inference_params(self, params: Any) -> Any:
    return self.model.inference_params(params)


def penalty(
  config: Any, states: jax.Array, large: jax.Array, scored: jax.Array
) -> jax.Array:
  """Penalises large and fast-changing final states (Merity et al. 2017).

    activation_reg mean(large_t^2)
    + temporal_activation_reg mean((states_t - states_(t-1))^2)

  The means are over features and scored positions, bool [B, T]; both positions
  of a pair are scored and in one segment. States are [B, T, D], `large` the
  same, after dropout or not; the result is the `LMOutput.aux` of both terms,
  float32 [2], or wider where the states are.
  """
  wide = jnp.promote_types(states.dtype, jnp.float32)
  states, large = states.astype(wide), large.astype(wide)

  def square(x, scored):
    return jnp.sum(jnp.where(scored[..., None], x**2, 0)) / x.shape[2]

  steps = states[:, 1:] - states[:, :-1]
  slow = square(steps, scored[:, 1:] & scored[:, :-1])
  size, change = config.activation_reg, config.temporal_activation_reg
  return jnp.stack([size * square(large, scored), change * slow])


@functools.partial(jax.jit, static_argnames='model')
def init_params(model: LanguageModel, key: jax.Array) -> Any:
  """Fresh parameters of a model: a pytree of float32 arrays.

  This compiles fastest within a program in which the key is a constant: the
  keys of all parameters are then constants, too.
  """
  return initial.together(lambda: _initial(model, key), key)


def param_shapes(model: LanguageModel) -> Any:
  """Shapes and dtypes of `init_params`, at less than half of its time."""
  return jax.eval_shape(lambda: _traced_once(model, jax.random.key(0)))


def _initial(model, key):
  tokens = jnp.zeros([1, 1], jnp.int32)
  arguments = tokens, tokens, model.init_memory(1)
  keys = {'params': key, 'dropout': key}
  return model.init(keys, *arguments, train=True)['params']


_traced_once = jax.jit(_initial, static_argnames='model')


@functools.partial(jax.jit, static_argnames='model')
def freeze(model: LanguageModel, params: Any) -> dict[str, Any]:
  """`LanguageModel.frozen`, compiled."""
  return model.frozen(params)
