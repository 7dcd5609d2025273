"""Memories: pytrees of arrays that a model carries from segment to segment.

`LanguageModel.init_memory` makes one, each call of a model takes one and
returns the next, and `LanguageModel.row_axes` names the batch axis of each
leaf, which the functions here need. A Transformer-XL updates the memory of each
layer by `attention.update_memory`, which stops the gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# In `row_axes`: the array has no batch axis, all rows share it.
SHARED = -1


def reset(axes: Any, memory: Any, empty: Any, rows: jax.Array) -> Any:
  """Replaces the rows selected by bool [B] by those of `empty`.

  `memory` and `empty` are both for B rows.
  """

  def leaf(axis, old, new):
    if axis == SHARED:
      return old
    other_axes = [i for i in range(old.ndim) if i != axis]
    mask = jnp.repeat(rows, old.shape[axis] // len(rows))
    return jnp.where(jnp.expand_dims(mask, other_axes), new, old)

  return jax.tree.map(leaf, axes, memory, empty)


def repeat(axes: Any, memory: Any, one: Any, times: int) -> Any:
  """Repeats each row `times` times in succession; `one` is a memory of one row.

  Only the shapes of `one` are used.
  """

  def leaf(axis, x, row):
    if axis == SHARED:
      return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    rows = x.reshape(*before, -1, row.shape[axis], *after)
    return jnp.repeat(rows, times, axis).reshape(*before, -1, *after)

  return jax.tree.map(leaf, axes, memory, one)


@functools.partial(
  jax.jit, static_argnames=('model', 'batch_size'), keep_unused=True
)
def start(model: Any, variables: Any, batch_size: int) -> Any:
  """`init_memory`, placed on devices like the memory that calls return.

  With another placement, the second call would compile again.
  """
  del variables
  return model.init_memory(batch_size)
