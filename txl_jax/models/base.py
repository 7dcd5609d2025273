"""The interface of all language models.

A model is a Linen module, a subclass of `LanguageModel`, with a dataclass
`Config` of its keys, the section `model` of a config. It implements

  states(tokens, memory, *, lengths, train) -> final states [B, T, D], memory

and, if it has a memory,

  init_memory(batch_size) -> memory
  row_axes() -> the batch axis of each leaf of a memory

and inherits everything else. Arguments:

  tokens    int32 [B, T], or [B, E + T] with a context
  targets   int32 [B, T]; a target of -1 is not scored
  memory    a pytree of arrays, () if the model has none
  lengths   int32 [B]: tokens[b, :lengths[b]] are real, the rest of row b is
            padding and never enters memory; None means no padding
  progress  float32 scalar, step / steps, for losses that end on a schedule
  context   int32 [B], only for models without memory: the first context[b]
            tokens of row b are read but not scored. Rows are left-aligned:
            context, segment, padding. None means no context

Methods that read no parameters are pure and work on the unbound module. With
train=True, `apply` needs a 'dropout' key.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax.models import config as config_lib
from txl_jax.models import embedding, initial
from txl_jax.parallel import placement
from txl_jax.program import errors, settings

# In `row_axes`: the array has no batch axis, all rows share it. Only at test
# time: `train_step` cuts every array of a memory into microbatches.
SHARED = -1


class LMOutput(flax.struct.PyTreeNode):
  """Output of a language model for one segment."""

  nll: jax.Array  # float32 [B, T], -log p(target) in nats, 0 for a target of -1
  memory: Any  # the memory after this segment
  # float32 [2], sums over tokens and over pairs of neighbours: training divides
  # them by the `counts` of the whole batch and adds them to the mean nll.
  aux: jax.Array


def counts(targets: jax.Array) -> jax.Array:
  """Numbers of scored targets of int32 [B, T], and of adjacent scored pairs.

  Returns float32 [2]; both counts are at least 1, so they can be divisors.
  """
  scored = targets >= 0
  sums = jnp.sum(scored), jnp.sum(scored[:, 1:] & scored[:, :-1])
  return jnp.maximum(jnp.stack(sums), 1).astype(jnp.float32)


class LanguageModel(nn.Module):
  """Base class of all models; without overrides, a model has no memory."""

  vocab_size: int  # V
  config: Any  # an instance of the class attribute Config
  temperature: float = 1.0  # divides the logits in `nll`

  Config: ClassVar[type[config_lib.Config]]
  # Whether to multiply embeddings by sqrt(D).
  SCALES_EMBEDDINGS: ClassVar[bool] = False
  # Whether layers show their attention, see `models.inspection`.
  ATTENDS: ClassVar[bool] = False
  # Whether positions are absolute, counted within a segment. Tokens then cannot
  # be read one at a time, and `reach` is the segment length of training.
  ABSOLUTE: ClassVar[bool] = False
  # Sharding rules, (regular expression for the end of a parameter path, mesh
  # axes of each dimension), see `placement.by_rules`; every parameter has one.
  SHARDING: ClassVar[Sequence[tuple[str, tuple]]] = embedding.SHARDING
  # Regular expressions matching the paths of matrices without weight decay.
  NOT_DECAYED: ClassVar[Sequence[str]] = ()

  def setup(self) -> None:
    V, c = self.vocab_size, self.config
    scale = c.d_model**0.5 if self.SCALES_EMBEDDINGS else 1.0
    # The keys of dropout depend on the names of these two.
    self.drop = embedding.Dropout()
    tiny = 1e-12 * scale if c.dropped_words == 'tiny' else 0.0
    self.drop_words = embedding.WordDropout(V, c.word_dropout, tiny)
    self.vocabulary = embedding.Embedding(
      V, c, scale, self.temperature, self.drop, self.drop_words
    )

  def states(
    self,
    tokens: jax.Array,
    memory: Any,
    *,
    lengths: jax.Array | None = None,
    train: bool = False,
  ) -> tuple[jax.Array, Any]:
    """int32 [B, T] -> final states [B, T, D], and the new memory.

    Each model has its own; `inspection.show` shows the input of each layer.
    """
    raise NotImplementedError

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
    """Scores the targets: the model's `states`, then `Embedding.loss`.

    The arguments are those of the module docstring.
    """
    del progress
    h, memory = self.states(tokens, memory, lengths=lengths, train=train)
    h = without_context(h, targets, context)
    nll, aux = self.vocabulary.loss(h, targets, train=train)
    return LMOutput(nll, memory, aux)

  def logits(
    self,
    tokens: jax.Array,
    memory: Any,
    *,
    lengths: jax.Array | None = None,
    last: bool = False,
  ) -> tuple[jax.Array, Any]:
    """Next-token logits float32 [B, T, V], and the new memory.

    With `last`, [B, V]: only the logits after each row's last real token. An
    adaptive softmax gives log-probabilities.
    """
    h, memory = self.states(tokens, memory, lengths=lengths, train=False)
    if last and lengths is None:
      h = h[:, -1]
    elif last:
      index = jnp.maximum(jnp.asarray(lengths) - 1, 0)[:, None, None]
      h = jnp.take_along_axis(h, index, axis=1)[:, 0]
    return self.vocabulary.logits(h), memory

  def init_memory(self, batch_size: int) -> Any:
    """The memory before the first token, for batch_size rows."""
    del batch_size
    return ()

  def row_axes(self) -> Any:
    """The batch axis of each leaf of a memory, by default 0.

    The axis may combine batch and heads; SHARED means no batch axis.
    """
    memory = jax.eval_shape(lambda: self.init_memory(1))
    return jax.tree.map(lambda _: 0, memory)

  def reset_memory(self, memory: Any, rows: jax.Array) -> Any:
    """Resets the rows selected by bool [B] to their state in `init_memory`."""

    def leaf(axis, old, empty):
      if axis == SHARED:
        return old
      other_axes = [i for i in range(old.ndim) if i != axis]
      mask = jnp.repeat(rows, old.shape[axis] // len(rows))
      return jnp.where(jnp.expand_dims(mask, other_axes), empty, old)

    empty = self.init_memory(len(rows))
    return jax.tree.map(leaf, self.row_axes(), memory, empty)

  def remembers(self) -> bool:
    """Whether the model has a memory of earlier segments."""
    return bool(jax.tree.leaves(self.row_axes()))

  def reach(self, trained: int | None = None) -> float:
    """The maximum segment length in tokens; infinity if there is none.

    With absolute positions, at most `trained`, the segment length of training.
    """
    return trained if self.ABSOLUTE and trained else math.inf

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> 'LanguageModel':
    """The model for inference, with frozen weights.

    `overrides` replace keys that may change AT_TEST_TIME; any other key raises
    UserError. Given the length of the longest segment, memory may be a cache of
    keys and values, with room for several segments per call if `several`.
    """
    del longest, several
    allowed = settings.keys(settings.overrides(type(self.config)))
    for name in overrides:
      if name not in allowed:
        errors.refuse('override', name, ', '.join(allowed) or 'none')
    return self.clone(config=self.config.replace(**overrides))

  def at_temperature(self, temperature: float) -> 'LanguageModel':
    """The model with nll of logits / temperature; not for adaptive softmax."""
    return self.clone(temperature=temperature)

  def with_keys(self, **values: Any) -> 'LanguageModel':
    """The model with some keys replaced; keys it does not have are ignored."""
    known = {k: x for k, x in values.items() if hasattr(self.config, k)}
    return self.clone(config=self.config.replace(**known))

  def frozen(self, params: Any) -> dict[str, Any]:
    """The variables for `apply` at inference.

    Values that depend only on the parameters are computed here once and reused.
    """
    return {'params': params}

  def inference_params(self, params: Any) -> Any:
    """The parameters without those used only in training."""
    return params


class Wrapper(LanguageModel):
  """Base of wrappers that call a model differently; parameters are shared."""

  model: Any = None  # a LanguageModel

  def setup(self) -> None:
    nn.share_scope(self, self.model)

  @property
  def SHARDING(self) -> Any:  # pyright: ignore
    """The sharding rules of the model."""
    return self.model.SHARDING

  def at_test_time(
    self, longest: int | None = None, several: bool = True, **overrides: Any
  ) -> LanguageModel:
    del longest, several
    return self._around(self.model.at_test_time(**overrides))

  def at_temperature(self, temperature: float) -> LanguageModel:
    return self._around(self.model.at_temperature(temperature))

  def with_keys(self, **values: Any) -> LanguageModel:
    return self._around(self.model.with_keys(**values))

  def _around(self, model: LanguageModel) -> LanguageModel:
    return self.clone(model=model, config=model.config)

  def inference_params(self, params: Any) -> Any:
    return self.model.inference_params(params)


def without_context(
  states: jax.Array, targets: jax.Array, context: jax.Array | None
) -> jax.Array:
  """Cuts states [B, E + T, D] to the [B, T, D] that predict the targets."""
  if context is None:
    return states
  T = targets.shape[1]
  cut = jax.lax.dynamic_slice_in_dim
  return jax.vmap(functools.partial(cut, slice_size=T))(states, context)


@functools.partial(jax.jit, static_argnames='model')
def init_params(model: LanguageModel, key: jax.Array) -> Any:
  """Initialises the parameters of a model: a pytree of float32 arrays.

  It compiles fastest inside a jitted function in which the key is a constant,
  because the keys of all parameters are then constants too.
  """
  return initial.together(lambda: _initial(model, key), key)


def param_shapes(model: LanguageModel) -> Any:
  """Shapes and dtypes of `init_params`, in less than half of its trace time."""
  return jax.eval_shape(lambda: _traced_once(model, jax.random.key(0)))


def _initial(model: LanguageModel, key: jax.Array) -> Any:
  tokens = jnp.zeros([1, 1], jnp.int32)
  memory = model.init_memory(1)
  keys = {'params': key, 'dropout': key}
  return model.init(keys, tokens, tokens, memory, train=True)['params']


_traced_once = jax.jit(_initial, static_argnames='model')


@functools.partial(jax.jit, static_argnames='model')
def freeze(model: LanguageModel, params: Any) -> dict[str, Any]:
  """`LanguageModel.frozen`, compiled."""
  return model.frozen(params)


def memory_shardings(
  model: LanguageModel, mesh: placement.AnyMesh | None
) -> Any:
  """Shardings that divide a memory's rows over a mesh; None without a mesh."""
  if mesh is None:
    return None
  return jax.tree.map(lambda i: placement.by_rows(mesh, i), model.row_axes())


@functools.partial(
  jax.jit, static_argnames=('model', 'batch_size'), keep_unused=True
)
def start_memory(model: LanguageModel, variables: Any, batch_size: int) -> Any:
  """`init_memory`, placed on devices like the memory that calls return.

  With another placement, the second call would compile again.
  """
  del variables
  return model.init_memory(batch_size)
