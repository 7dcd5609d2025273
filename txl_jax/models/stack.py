"""What makes layers fast: products, their dtypes, loops, recomputation."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax

from txl_jax.models import initial
from txl_jax.ops import layer_loop, matmul


def product(
  config: Any, outputs: Any, *, memory: int = 0, **options: Any
) -> nn.DenseGeneral:
  """W x + b: [..., *inputs] -> [..., *outputs], W [*inputs, *outputs].

  The options are those of `nn.DenseGeneral`, such as the axes of inputs. The
  first `memory` states of x [B, S, ...] are those of memory, see
  `ops.matmul`.
  """
  dtype, init = config.operand_dtype, initial.normal(config.init_std)
  if dot_general := matmul.dot_general(memory, dtype):
    # It rounds the operands by itself.
    options |= dict(dot_general=dot_general, promote_dtype=_unpromoted)
  return nn.DenseGeneral(outputs, dtype=dtype, kernel_init=init, **options)


def _unpromoted(*arrays: Any, dtype: Any = None, inexact: bool = True) -> Any:
  """Returns the arrays as they are, in place of Flax's `promote_dtype`."""
  del dtype, inexact
  return arrays


def cast(params: Any, config: Any) -> Any:
  """The parameters of a model or layer, those of products as they are used.

  Kernels get the dtype of operands, biases that of states.
  """
  dtypes = {'kernel': config.operand_dtype, 'bias': config.state_dtype}

  def each(path, x):
    *modules, name = (part.key for part in path)
    multiplies = name in dtypes and {'attention', 'ff'} & {*modules}
    return x.astype(dtypes[name]) if multiplies else x

  return jax.tree_util.tree_map_with_path(each, params)


# The choices of remat: what is kept for the backward pass.
POLICIES = {
  'scores': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'layer': jax.checkpoint_policies.nothing_saveable,
}


def run(
  layers: Sequence[nn.Module],
  h: jax.Array,
  memory: jax.Array,
  arguments: tuple,
  bits: jax.Array | None,
  shown: str = '',
) -> tuple[jax.Array, jax.Array, Any]:
  """For each layer n: h, memory[n] = layer(h, memory[n], *arguments, bits[n]).

  h is [B, T, D], memory [N, B, M, D], bits for dropout uint32 [N, any, 2] or
  None. The third result is what the layers show (see `inspection.show`),
  [N, ...], or None. Layers that are being initialised leave memory as it is.
  """
  if layers[0].is_initializing():
    for n, layer in enumerate(layers):
      h, _ = layer(h, memory[n], *arguments)
    return h, memory, None

  config, mutable = layers[0].config, [shown] if shown else []
  apply = layers[0].clone(parent=None).apply

  def one(h, layer):
    params, past, bits = layer
    inputs = h, past, *arguments, bits
    (h, new), seen = apply({'params': params}, *inputs, mutable=mutable)
    return h, (new, seen)

  weights = [layer.variables['params'] for layer in layers]
  h, (memory, seen) = layer_loop.run(
    one,
    h,
    weights,
    (memory, bits),
    unroll=config.unroll,
    remat=POLICIES.get(config.remat),
    cast=functools.partial(cast, config=config),
  )
  return h, memory, next(iter(jax.tree.leaves(seen)), None)
