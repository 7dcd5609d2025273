"""A memory of keys and values, for Transformers whose weights are frozen.

Shapes: B rows, M past states, C slots, N layers, H heads, K head width.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import ring
from txl_jax.models import base


class Ring(flax.struct.PyTreeNode):
  """Keys and values of the past inputs of every layer, see `txl_jax.ring`."""

  states: Any  # two of [B H, C, K] for each layer
  at: Any  # int32 [], the slot to be written next
  filled: Any  # int32 [B], how many real states each row has had, at most M + C

  @classmethod
  def zeros(cls, config: Any, C: int, filled: jax.Array) -> 'Ring':
    """A ring in which each row has had `filled`, int32 [B], zero states."""
    c = config
    shape = len(filled) * c.n_head, C, c.d_head
    pair = lambda: (jnp.zeros(shape, c.dtype), jnp.zeros(shape, c.dtype))
    states = tuple(pair() for _ in range(c.n_layer))
    return cls(states, jnp.zeros([], jnp.int32), filled)

  @classmethod
  def row_axes(cls, n_layer: int) -> 'Ring':
    """See `base.LanguageModel`."""
    return cls(((0, 0),) * n_layer, base.SHARED, 0)

  def reset(self, rows: jax.Array, start: jax.Array) -> 'Ring':
    """The given rows (bool [B]) reset to `start` states, as in a fresh ring."""
    heads = len(self.states[0][0]) // len(rows)
    clear = jnp.repeat(rows, heads)[:, None, None]
    states = jax.tree.map(lambda x: jnp.where(clear, 0, x), self.states)
    filled = jnp.where(rows, start, self.filled)
    return self.replace(states=states, filled=filled)

  def repeat(self, times: int) -> 'Ring':
    """The ring with every row repeated `times` times in succession."""
    B = len(self.filled)

    def repeat(x):
      x = x.reshape(B, -1, *x.shape[1:])  # [B, H, C, K]
      return jnp.repeat(x, times, axis=0).reshape(-1, *x.shape[2:])

    states = jax.tree.map(repeat, self.states)
    return self.replace(states=states, filled=jnp.repeat(self.filled, times))

  def rewind(self, counts: jax.Array) -> 'Ring':
    """The ring without the last counts[b] states of row b, int32 [B]."""
    states, at = ring.rewind(self.states, self.at, counts)
    return Ring(states, at, self.filled - counts)
