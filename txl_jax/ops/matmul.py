"""Matrix products of states and weights, in the fastest layout of each device.

Pure functions on plain arrays. Shapes: B batch, S positions.

On a CPU with bfloat16 instructions, XLA uses them only for a product that
accumulates bfloat16 operands in float32, with the contracted axis last in the
first operand and both operands in row-major layout. All other bfloat16
products are computed from float32 copies, and elementwise operations in
bfloat16 are emulated. With compute dtype bfloat16, a CPU therefore uses

  operand_dtype  bfloat16 with such instructions and one device, else float32
  state_dtype    float32, the dtype of states between products

On GPUs and TPUs both are the compute dtype.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core
from jax.experimental.layout import Layout, with_layout_constraint

from txl_jax import attention
from txl_jax.program import target_device


def operand_dtype(dtype: Any) -> jnp.dtype:
  """The dtype of the operands of products, given the compute dtype."""
  device = target_device.device()
  # XLA would gather sharded operands.
  sharded = jax.sharding.get_abstract_mesh().size > 1
  narrow = device.multiplies_bfloat16 and not sharded
  widened = device.platform == 'cpu' and not narrow
  return attention.widened(dtype) if widened else jnp.dtype(dtype)


def state_dtype(dtype: Any) -> jnp.dtype:
  """The dtype of states between products, given the compute dtype."""
  on_cpu = target_device.device().platform == 'cpu'
  return attention.widened(dtype) if on_cpu else jnp.dtype(dtype)


def decoding_dtype(dtype: Any) -> jnp.dtype:
  """The compute dtype for decoding token by token, given that of training.

  With AVX512-BF16, vector-matrix products were slower in bfloat16 than in
  float32: see docs/benchmarks.md.
  """
  device = target_device.device()
  slower = device.platform == 'cpu' and target_device.cpu_units() != 'amx_bf16'
  return attention.widened(dtype) if slower else jnp.dtype(dtype)


def einsum(
  form: str,
  x: jax.Array,
  y: jax.Array,
  *,
  dtype: jax.typing.DTypeLike | None = None,
  preferred_element_type: jax.typing.DTypeLike | None = None,
) -> jax.Array:
  """`jnp.einsum` of two operands; each letter must be in two terms or more.

  Operands are cast to dtype; by default, to bfloat16 if either is bfloat16,
  else not at all. On a CPU, a bfloat16 product has operands of `operand_dtype`
  and a float32 result.
  """
  if dtype is None and jnp.bfloat16 in (x.dtype, y.dtype):
    dtype = jnp.dtype(jnp.bfloat16)
  if dtype == jnp.bfloat16 and target_device.device().platform == 'cpu':
    dtype = operand_dtype(dtype)
    preferred_element_type = jnp.float32
    if dtype == jnp.bfloat16:
      x, y = varying_alike((x, y))
      return _product(form, _Options(dtype, x.dtype, y.dtype), x, y)
  if dtype is not None:
    x, y = x.astype(dtype), y.astype(dtype)
  return jnp.einsum(form, x, y, preferred_element_type=preferred_element_type)


def dot_general(memory: int, dtype: Any) -> Callable[..., jax.Array] | None:
  """The `dot_general` for `flax.linen.DenseGeneral`; None is Flax's default.

  The first `memory` of the S states of x [B, S, ...], if S is larger, are
  constants: their gradient is 0 or, on a GPU, unused. Operands are cast to
  dtype.
  """
  platform = target_device.device().platform
  if platform == 'tpu' and memory:
    return _without_memory(memory, jnp.dtype(dtype))
  # On a GPU, XLA removes unused gradients by itself; there, the gradients of
  # `_product` would only add copies.
  return _dot_general(memory, jnp.dtype(dtype)) if platform == 'cpu' else None


# Cached, so that modules with equal fields are equal and compile once.
@functools.cache
def _without_memory(memory, dtype) -> Any:
  """A `dot_general` that is JAX's but for the gradient of the memory, 0."""

  def product(x, kernel, dimensions, precision=None):
    def multiply(x, kernel):
      return jax.lax.dot_general(x, kernel, dimensions, precision)

    def forward(x, kernel):
      return multiply(x, kernel), (x, kernel)

    def backward(kept, g):
      x, kernel = kept
      M = memory if memory < x.shape[1] else 0
      _, of_x = jax.vjp(lambda x: multiply(x, kernel), x[:, M:])
      _, of_kernel = jax.vjp(lambda kernel: multiply(x, kernel), kernel)
      (dx,) = of_x(g[:, M:])
      dx = jnp.pad(dx, [(0, 0), (M, 0)] + [(0, 0)] * (dx.ndim - 2))
      return dx, *of_kernel(g)

    run = jax.custom_vjp(multiply)
    run.defvjp(forward, backward)
    return run(*varying_alike((x.astype(dtype), kernel.astype(dtype))))

  return product


@functools.cache
def _dot_general(memory, dtype) -> Any:
  def product(x, kernel, dimensions, precision=None):
    (x_axes, kernel_axes), _ = dimensions  # contracted
    a, *others = ''.join(map(chr, range(97, 97 + x.ndim))), *'ABCDEFGH'
    b = [others[n] for n in range(kernel.ndim)]
    for i, j in zip(x_axes, kernel_axes):
      b[j] = a[i]
    rows = [n for i, n in enumerate(a) if i not in x_axes]
    columns = [n for j, n in enumerate(b) if j not in kernel_axes]
    form = f'{a},{"".join(b)}->{"".join(rows + columns)}'
    options = _Options(dtype, x.dtype, kernel.dtype, memory, precision)
    return _product(form, options, *varying_alike((x, kernel)))

  return product


class _Options(NamedTuple):
  """Options of `_product`."""

  dtype: Any  # of the operands in the product
  x_dtype: Any  # of the argument x and of its gradient
  y_dtype: Any
  memory: int = 0  # see `dot_general`
  precision: jax.lax.PrecisionLike = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(form, options, x, y):
  """An einsum whose gradients are single matrix products.

  The gradients derived by JAX permute axes and contract several axes, so XLA on
  a CPU copies kernels and gradients; and they include that of the memory.
  """
  return _forward(form, options, x, y)[0]


def _forward(form, options, x, y):
  x, y = x.astype(options.dtype), y.astype(options.dtype)
  return _multiply(form, x, y, options.precision), (x, y)


def _backward(form, options, kept, g):
  x, y = kept
  a, b, c = _terms(form)
  M = options.memory if 0 < options.memory < x.shape[1] else 0
  g = g.astype(options.dtype)
  back = functools.partial(_multiply, precision=options.precision)
  dx = back(f'{c},{b}->{a}', g[:, M:] if M else g, y)
  if M:
    dx = jnp.pad(dx, [(0, 0), (M, 0)] + [(0, 0)] * (dx.ndim - 2))
  dy = back(f'{a},{c}->{b}', x, g)
  return dx.astype(options.x_dtype), dy.astype(options.y_dtype)


_product.defvjp(_forward, _backward)


def _terms(form):
  """The einsum terms of both operands and of the result."""
  operands, c = form.split('->')
  return *operands.split(','), c


def _multiply(form, x, y, precision):
  """An einsum as one (batched) matrix product; bfloat16 sums are float32."""
  a, b, c = _terms(form)
  batch = [n for n in c if n in a and n in b]
  contracted = [n for n in b if n in a and n not in c]
  sizes = dict(zip(a + b, x.shape + y.shape))
  narrow = x.dtype == jnp.bfloat16
  rest = c[len(batch) :]
  if narrow and rest and rest[0] in b:
    # Swap the operands, so that the result is not transposed.
    x, y, a, b = y, x, b, a
  rows, columns = ([n for n in c if n in t and n not in batch] for t in (a, b))

  def matrix(array, letters, others, last):
    groups = [others, contracted] if last else [contracted, others]
    groups = [batch, *groups] if batch else groups
    order = [letters.index(n) for group in groups for n in group]
    shape = [math.prod(sizes[n] for n in group) for group in groups]
    return in_order(array.transpose(order).reshape(shape), narrow)

  last = [t.endswith(''.join(contracted)) for t in (a, b)]
  last[0] |= narrow
  x, y = matrix(x, a, rows, last[0]), matrix(y, b, columns, last[1])
  single = narrow and x.shape[-2] == 1
  if single:  # XLA would compute a one-row product from float32 copies
    x = jnp.concatenate([x, x], axis=-2)
  n = len(batch) and 1
  dims = (([n + last[0]], [n + last[1]]), ([0][:n], [0][:n]))
  wide = attention.widened(x.dtype)
  out = jax.lax.dot_general(x, y, dims, precision, preferred_element_type=wide)
  out = in_order(out, narrow)  # or XLA could swap the operands
  out = out[..., :1, :] if single else out
  axes = [*batch, *rows, *columns]
  out = out.reshape([sizes[n] for n in axes])
  return out.transpose([axes.index(n) for n in c])


def in_order(array: jax.Array, wanted: bool) -> jax.Array:
  """Constrains an array within a trace to row-major layout, if wanted."""
  if not wanted or not isinstance(array, core.Tracer):
    return array
  return with_layout_constraint(array, Layout(tuple(range(array.ndim))))


def with_barrier(x: jax.Array) -> jax.Array:
  """Returns x behind a barrier, so that XLA does not merge its products.

  On a GPU, XLA would compute one large product and copy slices of it.
  """
  on_gpu = target_device.device().platform == 'gpu'
  return jax.lax.optimization_barrier(x) if on_gpu else x


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
