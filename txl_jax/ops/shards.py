"""Arrays within `jax.shard_map`, where JAX checks how each of them varies."""

from typing import Any

import jax
import jax.numpy as jnp


def varying_alike(arrays: Any, *others: Any) -> Any:
  """Arrays that vary over the same axes of `jax.shard_map`, with the others.

  A custom gradient must vary as its array does, and so must the state of a
  loop. Of an array that was the same on all shards JAX then sums the gradient.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if jax.sharding.AxisType.Manual not in mesh.axis_types:
    return arrays
  leaves = jax.tree.leaves((arrays, others))
  none: Any = sum(jnp.sum(jnp.ravel(x)[:0], dtype=float) for x in leaves)
  return jax.tree.map(lambda x: x + none.astype(x.dtype), arrays)
