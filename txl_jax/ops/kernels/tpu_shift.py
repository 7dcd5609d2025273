"""Relative attention on any TPU, whose shift alone is a Pallas kernel.

A TPU stores arrays in tiles of 8 x 128, where the reshapes of
`attention.relative_shift` move every number several times. In this kernel,
each row rotates by its own amount in registers; all else is plain operations.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_jax.ops.kernels import base, xla
from txl_jax.ops.kernels import tpu_tiles as tiles
from txl_jax.program import target_device


def why_not(case: base.Case) -> str:
  """Why it does not support a case; '' if it does."""
  return '' if case.device.platform == 'tpu' else 'it needs a TPU'


def attend(
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  per_head: Callable[[Callable], Callable] = lambda shift: shift,
) -> jax.Array:
  """`xla.attend`.

  `per_head` wraps a function of scores [B, H, T, S] so that each device calls
  it with its own rows and heads; the compiler does not partition a kernel.
  """
  shifts = xla.Shifts(per_head(left), per_head(right))
  return xla.attend(inputs, span=span, rate=rate, key=key, shifts=shifts)


def left(x: jax.Array) -> jax.Array:
  """`attention.relative_shift`, except for entries that are always masked."""
  return _rotated(x, 1 - x.shape[-2], 1)


def right(x: jax.Array) -> jax.Array:
  """The transpose of `left`; x is 0 where the key is after the query."""
  return _rotated(x, x.shape[-2] - 1, -1)


def to_slots(x: jax.Array, at: jax.Array, C: int) -> jax.Array:
  """The first C columns of x [..., T, any]; row i rotates by `at` + i + 1.

  That is from distances to slots, see `ops.ring`; 128 must divide C.
  """
  return _rotated(x, at + 1, 1, C)


def _rotated(x, first, step, S=None):
  """Rotates row i of x [..., T, any] to the right by first + i step.

  The step is 1 or -1. The first S columns, by default all, are followed by 0 to
  127 columns of zeros, which take part.
  """
  *lead, T, width = x.shape
  S = S or width
  N, W = math.prod(lead), tiles.count(S, 128) * 128
  # Blocks of at most 1 MiB, of which some are in VMEM at once.
  n = max(8, min(256, 2 ** int(math.log2(2**18 // W or 1))))
  block = pl.BlockSpec((1, n, W), lambda b, i, _: (b, i, 0))
  interpret = target_device.device().platform == 'cpu'
  strided = not interpret and tiles.strided()
  kernel = functools.partial(_kernel, S, step, strided)
  moved = pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(N, tiles.count(T, n)),
      in_specs=[block],
      out_specs=block,
    ),
    out_shape=base.result(x, (N, T, S), x.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel')
    ),
    interpret=interpret,
    name='relative_shift',
  )(jnp.asarray(first, jnp.int32).reshape(1), x.reshape(N, T, width))
  return moved.reshape(*lead, T, S)


def _kernel(S, step, strided, first, x, out):
  """One block of rows; rotations need numbers of 32 bits."""
  _, n, W = x.shape
  z = x[0].astype(jnp.float32)
  if S < W:  # what the block has beyond the array is undefined
    z = jnp.where(lax.broadcasted_iota(jnp.int32, (n, W), 1) < S, z, 0)
  z = pltpu.roll(z, (first[0] + step * n * pl.program_id(1)) % W, 1)
  z = (
    tiles.rotate(z, strided)
    if step > 0
    else tiles.flip(tiles.rotate_back(z, strided), strided)
  )
  out[0] = z.astype(out.dtype)
