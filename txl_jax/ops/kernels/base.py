"""The contract of an implementation.

Each is a module of this folder with two functions:

  why_not(case) -> '' if it can compute a `Case`, or else the reason
  attend(inputs, *, span, rate, key) -> [B, T, H, K], differentiable

A kernel has, instead of `attend`, the two functions that `fused` asks for.
"""

from typing import NamedTuple

import jax

from txl_jax.program import target


class Unable(ValueError):
  """An implementation was asked for that cannot compute this, and why."""


class Inputs(NamedTuple):
  """The arrays; see `attention.relative_scores` for their meaning."""

  q: jax.Array  # [B, T, H, K]
  k: jax.Array  # [B, S, H, K], memory first
  v: jax.Array  # [B, S, H, K]
  r: jax.Array  # [S, H, K], farthest first
  u: jax.Array  # [H, K]
  v_bias: jax.Array  # [H, K]
  b: jax.Array | None  # [S, H]
  filled: jax.Array | None  # int32 [B], 0 to M; None is M


class Case(NamedTuple):
  """What the choice of an implementation depends on."""

  device: target.Device
  dtype: str
  T: int
  M: int
  K: int
  rate: float  # of dropout
