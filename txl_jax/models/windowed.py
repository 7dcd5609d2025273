"""A model without memory that sees a moving window: the paper's slow baseline.

Shapes: B batch, T segment, W window, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base


class Window(flax.struct.PyTreeNode):
  """The last tokens of every row."""

  tokens: Any  # int32 [B, W], the newest one last
  filled: Any  # int32 [B], how many of them are real


class Windowed(base.Wrapper):
  """Each token is predicted from the W tokens before it, and nothing else.

  The model reads every window anew and only its last position counts, so a
  token costs as much as a segment of W tokens costs the model itself (Al-Rfou
  et al. 2018; Dai et al. 2019, Table 9). The model has no memory.
  """

  window: int = 1  # W

  def init_memory(self, batch_size: int) -> Window:
    """An empty Window."""
    tokens = jnp.zeros([batch_size, self.window], jnp.int32)
    return Window(tokens, jnp.zeros([batch_size], jnp.int32))

  def row_axes(self) -> Window:
    return Window(0, 0)

  def __call__(
    self, tokens, targets, memory, *, train, lengths=None, **no_context
  ):
    """Nll of the targets; see `models.base` for the arguments.

    A window is the context of a segment of one token, and this token.
    """

    def score(model, memory, column):
      token, real, target = column
      memory = _slide(memory, token[:, None], real)
      window, last = _left_aligned(memory)
      out = model(
        window,
        target[:, None],
        (),
        train=train,
        lengths=memory.filled,
        context=last,
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
    memory, each = self._over_time(read, memory, columns)
    return jnp.swapaxes(each, 0, 1), memory

  def _over_time(self, body, memory, arrays) -> Any:
    """Scans over the T columns of arrays [B, T], calling the model."""
    scan = nn.scan(
      body, variable_broadcast='params', split_rngs={'params': False}
    )
    return scan(self.model, memory, [x.T for x in arrays])


def _real(tokens, lengths):
  """bool [B, T]: which tokens are not padding."""
  if lengths is None:
    return jnp.ones(tokens.shape, bool)
  return jnp.arange(tokens.shape[1]) < lengths[:, None]


def _slide(memory, tokens, lengths):
  """The window after tokens[b, :lengths[b]] in each row of int32 [B, T]."""
  lengths = lengths.astype(jnp.int32)  # bool if T is a single token
  filled = jnp.minimum(memory.filled + lengths, memory.tokens.shape[1])
  return Window(attention.update_memory(memory.tokens, tokens, lengths), filled)


def _left_aligned(memory):
  """Tokens [B, W], the first real one first, and the index of the last, [B].

  A causal model does not see what comes after that.
  """
  roll = jax.vmap(jnp.roll)
  return roll(memory.tokens, memory.filled), jnp.maximum(memory.filled - 1, 0)


def _newest(model, memory):
  """Logits [B, V] after the window."""
  window, _ = _left_aligned(memory)
  return model.logits(window, (), lengths=memory.filled, last=True)[0]
