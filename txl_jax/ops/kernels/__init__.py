"""Relative attention with memory, as plain operations or a fused kernel.

dispatch  `relative_attention`: the choice of an implementation, and of devices
proof     whether a kernel computes what plain operations do
base      arguments of an implementation
xla       plain operations for any device, and their gradient; `cpu`, for CPUs
fused     code common to `triton` and `tpu`: gradient, biases and dropout
triton    a kernel for NVIDIA GPUs from Ampere on
tpu       a kernel for TPUs from v4 on; `tpu_shift`, one for the shift alone;
          `tpu_cached`, one for several segments at test time
"""

from txl_jax.ops.kernels.base import Case, Inputs, Unable
from txl_jax.ops.kernels.dispatch import (
  IMPLEMENTATIONS,
  case_of,
  choose,
  relative_attention,
)
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
