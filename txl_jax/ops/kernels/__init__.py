"""Relative attention with memory, as plain operations or a fused kernel.

base    arguments of an implementation
api     `relative_attention`, and the choice of an implementation
fused   code common to all kernels: gradient, biases and dropout
xla     plain operations for any device, and their gradient
triton  a kernel for NVIDIA GPUs from Ampere on
tpu     a kernel for TPUs from v4 on; `tpu_shift`, one for the shift alone
proof   whether a kernel computes what plain operations do
"""

from txl_jax.ops.kernels.api import (
  IMPLEMENTATIONS,
  case_of,
  choose,
  relative_attention,
)
from txl_jax.ops.kernels.base import Case, Inputs, Unable
from txl_jax.ops.kernels.proof import check

__all__ = [
  'IMPLEMENTATIONS',
  'Case',
  'Inputs',
  'Unable',
  'case_of',
  'check',
  'choose',
  'relative_attention',
]
