"""Efficient layers: matrix products, dtypes, the loop, rematerialisation."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax.models import initial
from txl_jax.ops import matmul
from txl_jax.program import target_device


class Product(nn.DenseGeneral):
  """A DenseGeneral whose kernel may be stored transposed, [*outputs, inputs].

  Such a kernel, for inference on GPUs, is in the collection `frozen` instead of
  `params`; only the last axis of x is then contracted.
  """

  def __call__(self, inputs: Any) -> jax.Array:
    kernel = self.get_variable('frozen', 'kernel')
    if kernel is None:
      return super().__call__(inputs)
    y = jnp.tensordot(inputs.astype(self.dtype), kernel, (-1, -1))
    if self.use_bias:
      bias = self.get_variable('params', 'bias').astype(self.dtype)
      y += jnp.expand_dims(bias, range(y.ndim - bias.ndim))
    return y


def product(
  config: Any, outputs: Any, *, memory: int = 0, **options: Any
) -> Product:
  """W x + b: [..., *inputs] -> [..., *outputs], W [*inputs, *outputs].

  The options are those of `nn.DenseGeneral`, such as the axes of inputs. The
  first `memory` of the S positions of x [B, S, ...] are constants, see
  `ops.matmul.dot_general`.
  """
  dtype = config.operand_dtype
  init = initial.normal(config.init_std)
  if dot_general := matmul.dot_general(memory, dtype):
    # This dot_general casts the operands itself.
    options |= dict(dot_general=dot_general, promote_dtype=_unpromoted)
  return Product(outputs, dtype=dtype, kernel_init=init, **options)


def _unpromoted(*arrays: Any, **unused: Any) -> Any:
  """Replaces Flax's `promote_dtype`: returns the arrays unchanged."""
  del unused
  return arrays


def cast(params: Any, config: Any) -> Any:
  """Casts the parameters of matrix products; returns all parameters.

  Kernels get `config.operand_dtype`, biases `config.state_dtype`.
  """
  dtypes = {'kernel': config.operand_dtype, 'bias': config.state_dtype}

  def each(path, x):
    *modules, name = (part.key for part in path)
    multiplies = name in dtypes and {'attention', 'ff'} & {*modules}
    return x.astype(dtypes[name]) if multiplies else x

  return jax.tree_util.tree_map_with_path(each, params)


# For each value of model.remat, which results the backward pass keeps.
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
  kinds: Sequence[str] = (),
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
  """For each layer n: h, memory[n] = layer(h, memory[n], *arguments, bits[n]).

  h is [B, T, D], memory [N, B, M, D]; the bits for dropout are uint32
  [N, any, 2], or None. The third result is what the layers sow in each
  collection of `kinds`, stacked: [N, ...]. While parameters are initialised,
  memory is returned unchanged, and nothing is sown.
  """
  if layers[0].is_initializing():
    for n, layer in enumerate(layers):
      h, _ = layer(h, memory[n], *arguments)
    return h, memory, {}

  config = layers[0].config
  # Layers differ in their weights only: one, unbound, is applied with each's.
  apply = layers[0].clone(parent=None).apply

  def one(h, layer):
    params, past, bits = layer
    inputs = h, past, *arguments, bits
    (h, new), sown = apply({'params': params}, *inputs, mutable=[*kinds])
    # Each kind is sown once, by the layer or a module of it.
    return h, (new, {kind: jax.tree.leaves(sown[kind])[0] for kind in kinds})

  weights = [layer.variables['params'] for layer in layers]
  h, (memory, shown) = loop(one, h, weights, (memory, bits), config)
  return h, memory, shown


def _unrolled(N, h):
  """The default of model.unroll, given N layers and the states h."""
  if target_device.device().platform == 'gpu':
    return N
  # XLA for CPUs fuses sums of few numbers with all that leads to them: programs
  # of unrolled layers would grow with N^2, and compile for minutes.
  small = sum(x.size for x in jax.tree.leaves(h)) < 4096
  # On a TPU, a loop copies what layers keep for the backward pass, and their
  # gradients, to stacks and back: up to a fifth of a step (docs/scaling.md).
  return 1 if small else min(N, 24)


def loop(
  layer: Callable[..., Any],
  h: Any,
  weights: Sequence[Any],
  others: tuple,
  config: Any,
) -> tuple[Any, Any]:
  """Applies N layers to h in turn; also returns their outputs, [N, ...].

  `layer` is a function (h, (weights, *others)) -> (h, output); h is a pytree.
  `weights` are N pytrees, one for each layer; `others` are pytrees of arrays
  [N, ...], further arguments of each layer.
  """
  N = len(weights)
  unroll = config.unroll or _unrolled(N, h)
  if remat := POLICIES.get(config.remat):
    # Outside a scan, XLA may merge the recomputation with the forward pass;
    # prevent_cse inserts a slow barrier against that.
    loops = unroll < N and N % unroll == 0
    layer = jax.checkpoint(layer, policy=remat, prevent_cse=not loops)

  def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

  if unroll < N:
    together = stacked([cast(params, config) for params in weights])
    return jax.lax.scan(layer, h, (together, *others), unroll=unroll)
  outputs = []
  for n, params in enumerate(weights):
    h, output = layer(h, (params, *jax.tree.map(lambda x, n=n: x[n], others)))
    outputs.append(output)
  if target_device.device().platform == 'tpu':
    # XLA would build the stacks in VMEM, whole, while the layers need it.
    end = jax.lax.stop_gradient(h)
    outputs, _ = jax.lax.optimization_barrier((outputs, end))
  return h, stacked(outputs)
