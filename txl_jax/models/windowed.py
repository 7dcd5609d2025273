"""Sliding windows for models without memory, the paper's slow baseline.

Shapes: B batch, T segment, W window, V vocabulary.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base
from txl_jax.ops import matmul
from txl_jax.program import errors


class Window(flax.struct.PyTreeNode):
  """The memory: the last tokens of each row."""

  tokens: Any  # int32 [B, W], newest last
  filled: Any  # int32 [B], the number of real tokens


class Windowed(base.Wrapper):
  """Predicts each token from the W tokens before it.

  The model, which has no memory, reads a new window for each token and uses
  only the last position, so one token costs as much as a segment of W tokens
  (Al-Rfou et al. 2018; Dai et al. 2019, Table 9).
  """

  window: int = dataclasses.field(kw_only=True)  # W

  def init_memory(self, batch_size: int) -> Window:
    """An empty Window."""
    tokens = jnp.zeros([batch_size, self.window], jnp.int32)
    return Window(tokens, jnp.zeros([batch_size], jnp.int32))

  def row_axes(self) -> Window:
    return Window(0, 0)

  def __call__(self, tokens, targets, memory, *, train, lengths=None, **unused):
    """Scores the targets; see `models.base` for the arguments.

    Each window is scored as a segment of one token, its last one, whose context
    is the rest of the window.
    """
    del unused  # progress and context

    def score(model, memory, column):
      token, real, target = column
      memory = _slide(memory, token[:, None], real)
      window, last = _left_aligned(memory)
      lengths = memory.filled
      target = target[:, None]
      out = model(
        window, target, (), train=train, lengths=lengths, context=last
      )
      return memory, out.nll[:, 0]

    columns = tokens, _real(tokens, lengths), targets
    memory, nll = self._over_time(score, memory, columns)
    return base.LMOutput(nll.T, memory, jnp.zeros([2], nll.dtype))

  def logits(self, tokens, memory, *, lengths=None, last=False):
    if last:
      memory = _slide(memory, tokens, jnp.sum(_real(tokens, lengths), axis=1))
      return _newest(self.model, memory), memory

    def read(model, memory, column):
      token, real = column
      memory = _slide(memory, token[:, None], real)
      return memory, _newest(model, memory)

    columns = tokens, _real(tokens, lengths)
    memory, logits = self._over_time(read, memory, columns)
    return jnp.swapaxes(logits, 0, 1), memory

  def _over_time(self, body: Any, memory: Window, arrays: Any) -> Any:
    """Scans body(model, memory, column) over the columns of arrays [B, T]."""
    scan = nn.scan(
      body, variable_broadcast='params', split_rngs={'params': False}
    )
    memory = matmul.varying_alike(memory, arrays)
    return scan(self.model, memory, [x.T for x in arrays])


def around(model: base.LanguageModel, window: int, name: str) -> Windowed:
  """The Windowed of a model without memory, in test mode.

  UserError, which names the window `name`, if the model's positions end before.
  """
  if window > model.reach():
    errors.refuse(name, window, f'at most {model.reach()} for this model')
  return Windowed(model.vocab_size, model.config, model=model, window=window)


def _real(tokens: jax.Array, lengths: jax.Array | None) -> jax.Array:
  """bool [B, T], False for padding."""
  if lengths is None:
    return jnp.ones(tokens.shape, bool)
  return jnp.arange(tokens.shape[1])[None] < lengths[:, None]


def _slide(memory: Window, tokens: jax.Array, lengths: jax.Array) -> Window:
  """Appends tokens[b, :lengths[b]], of int32 [B, T], to the window of row b."""
  lengths = lengths.astype(jnp.int32)  # bool if T is a single token
  filled = jnp.minimum(memory.filled + lengths, memory.tokens.shape[1])
  return Window(attention.update_memory(memory.tokens, tokens, lengths), filled)


def _left_aligned(memory: Window) -> tuple[jax.Array, jax.Array]:
  """Tokens [B, W], real ones first, and the index [B] of the last real token.

  A causal model does not see the padding after it.
  """
  roll = jax.vmap(jnp.roll)
  return roll(memory.tokens, memory.filled), jnp.maximum(memory.filled - 1, 0)


def _newest(model: Any, memory: Window) -> jax.Array:
  """Logits [B, V] of the token after the window."""
  window, _ = _left_aligned(memory)
  return model.logits(window, (), lengths=memory.filled, last=True)[0]
