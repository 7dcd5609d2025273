"""The interface that every language model here has.

A model is a Linen module with

  init_memory(batch_size) -> memory
  __call__(tokens, targets, memory, *, train, lengths=None) -> LMOutput
  logits(tokens, memory, *, lengths=None) -> (logits, memory)
  reset_memory(memory, rows) -> memory

  tokens   int32 [B, T]
  targets  int32 [B, T]; a target of -1 is not scored
  memory   a pytree, an argument and a return value everywhere; its leaves
           have their rows on axis `row_axis(leaf)`
  lengths  int32 [B]: row b holds tokens[b, :lengths[b]], what follows is
           padding that never enters memory; None is no padding
  rows     bool [B]: the rows whose memory is emptied

The number of tokens V is its attribute `vocab_size`. `init_memory` and
`reset_memory` are pure and read no parameters: call them on the unbound
module. With train=True a 'dropout' key is needed in `apply`.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class LMOutput:
  """What a language model returns for one segment.

  Attributes:
    nll: float32 [B, T], -log p(target) in nats, in text order; 0 where the
      target is -1.
    memory: the memory after this segment.
    aux: float32 scalar that training adds to the mean nll; 0 by default.
  """

  nll: jax.Array
  memory: Any
  aux: jax.Array


@flax.struct.dataclass
class Memory:
  """The past states of every layer.

  Attributes:
    states: [N, B, M, D], the inputs of the N layers, oldest first; or what
      a model that caches keys and values keeps of them: a tuple of two
      [N, B, M, H, K].
    filled: int32 [B], how many slots of each row hold real states.
  """

  states: Any
  filled: jax.Array


def row_axis(leaf):
  """Which axis of a leaf of a memory is the batch: 1, or 0 of a vector."""
  return min(leaf.ndim - 1, 1)


def push(memory, states, lengths=None):
  """The memory of one layer after a segment: the last M real states.

  No gradient passes from what is kept to what it was made from.

  Args:
    memory: [B, M, ...], the states before the segment.
    states: [B, T, ...], those of the segment.
    lengths: int32 [B], the real ones among the T; None if all are.

  Returns:
    [B, M, ...] in the dtype of memory.
  """
  M, T = memory.shape[1], states.shape[1]
  memory, states = jax.lax.stop_gradient((memory, states.astype(memory.dtype)))
  if lengths is None:
    if T >= M:
      return states[:, T - M :]
    return jnp.concatenate([memory[:, T:], states], axis=1)
  both = jnp.concatenate([memory, states], axis=1)  # [B, M + T, ...]
  last = lambda row, n: jax.lax.dynamic_slice_in_dim(row, n, M)
  return jax.vmap(last)(both, lengths)


def init_params(model, key):
  """Fresh parameters of a model: a pytree of float32 arrays."""
  tokens = jnp.zeros([1, 1], jnp.int32)
  memory = model.init_memory(1)
  return model.init(key, tokens, tokens, memory, train=False)['params']
