"""Varying axes of arrays in `jax.shard_map`, which JAX checks."""

from typing import Any

import jax
import jax.numpy as jnp


def varying_alike(arrays: Any, *others: Any) -> Any:
  """Makes `arrays` vary over all mesh axes over which any argument varies.

  shard_map requires this of custom gradients and loop carries. For an array
  that was replicated before, JAX sums its gradient over the shards.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if jax.sharding.AxisType.Manual not in mesh.axis_types:
    return arrays
  leaves = jax.tree.leaves((arrays, others))
  zero: Any = sum(jnp.sum(jnp.ravel(x)[:0], dtype=float) for x in leaves)
  return jax.tree.map(lambda x: x + zero.astype(x.dtype), arrays)
