"""A loop over N layers of equal form, each with weights of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from txl_jax.program import target_device


def run(
  layer: Callable[..., Any],
  h: Any,
  weights: Sequence[Any],
  others: tuple,
  *,
  unroll: int,
  remat: Callable[..., bool] | None,
  cast: Callable[[Any], Any],
) -> tuple[Any, Any]:
  """h after N layers, and what each of them returns besides, [N, ...].

  Args:
    layer: function (h, (weights, *others)) -> (h, anything), for one layer.
    h: pytree, what the first layer reads.
    weights: N pytrees, those of each layer.
    others: pytrees of arrays [N, ...], further arguments of each layer.
    unroll: layers per iteration; 0 is all of them on a GPU, 1 elsewhere.
    remat: the policy of `jax.checkpoint` for a layer; None recomputes nothing.
    cast: function of the weights of a layer, applied where they are stacked:
      the stack is a copy, for which a smaller dtype will do.
  """
  N, on_gpu = len(weights), target_device.device().platform == 'gpu'
  unroll = unroll or (N if on_gpu else 1)
  if remat is not None:
    # The barrier keeps recomputation from being merged with the forward
    # pass, and is slow. Two loops cannot be merged; layers outside one can.
    loops = unroll < N and N % unroll == 0
    layer = jax.checkpoint(layer, policy=remat, prevent_cse=not loops)
  if unroll < N:
    stacked = _stack([cast(own) for own in weights])
    return jax.lax.scan(layer, h, (stacked, *others), unroll=unroll)
  found = []
  for n, own in enumerate(weights):
    h, more = layer(h, (own, *jax.tree.map(lambda x, n=n: x[n], others)))
    found.append(more)
  return h, _stack(found)


def _stack(trees):
  """Pytrees, leaf by leaf along a new first axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
