"""A loop over N layers of the same structure, each with its own weights."""

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
  """Applies N layers to h in turn; also returns their outputs, [N, ...].

  Args:
    layer: function (h, (weights, *others)) -> (h, output), for one layer.
    h: pytree, the input of the first layer.
    weights: N pytrees, the weights of each layer.
    others: pytrees of arrays [N, ...], further arguments of each layer.
    unroll: layers per iteration; 0 is all layers on a GPU, 1 elsewhere.
    remat: the policy of `jax.checkpoint` for a layer; None recomputes nothing.
    cast: applied to a layer's weights when they are copied into the stack.
  """
  N, on_gpu = len(weights), target_device.device().platform == 'gpu'
  unroll = unroll or (N if on_gpu else 1)
  if remat is not None:
    # Outside a scan, XLA may merge the recomputation with the forward pass;
    # prevent_cse inserts a slow barrier against that.
    loops = unroll < N and N % unroll == 0
    layer = jax.checkpoint(layer, policy=remat, prevent_cse=not loops)
  if unroll < N:
    stacked = _stack([cast(layer_weights) for layer_weights in weights])
    return jax.lax.scan(layer, h, (stacked, *others), unroll=unroll)
  outputs = []
  for n, layer_weights in enumerate(weights):
    arguments = jax.tree.map(lambda x, n=n: x[n], others)
    h, output = layer(h, (layer_weights, *arguments))
    outputs.append(output)
  return h, _stack(outputs)


def _stack(trees):
  """Stacks the leaves of pytrees along a new first axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
