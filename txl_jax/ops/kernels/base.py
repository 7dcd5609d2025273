"""Arguments of the implementations of relative attention."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax.program import target_device


class Unable(ValueError):
  """The chosen implementation does not support the arguments."""


class Inputs(NamedTuple):
  """Array arguments; see `attention.relative_scores`."""

  q: jax.Array  # [B, T, H, K]
  k: jax.Array  # [B, S, H, K], memory first
  v: jax.Array  # [B, S, H, K]
  r: jax.Array  # [S, H, K], farthest first
  u: jax.Array  # [H, K]
  v_bias: jax.Array  # [H, K]
  b: jax.Array | None  # [S, H]
  filled: jax.Array | None  # int32 [B], 0 to M; None means M


def result(x: jax.Array, shape: Sequence[int], dtype: Any) -> Any:
  """ShapeDtypeStruct of a kernel's result, with the varying mesh axes of x."""
  scalar = jax.eval_shape(lambda x: jnp.sum(x).astype(dtype), x)
  return scalar.update(shape=tuple(shape))


class Case(NamedTuple):
  """The properties of a call that determine its implementation."""

  device: target_device.Device
  dtype: str
  T: int
  M: int
  K: int
  rate: float  # of dropout


def why_not(case: Case) -> str:
  """Why no kernel can handle a case; '' if one might."""
  if case.dtype not in ('float32', 'bfloat16'):
    return f'it needs float32 or bfloat16, not {case.dtype}'
  if case.K > 128:
    return f'it needs heads of width 128 or less, not {case.K}'
  return ''
