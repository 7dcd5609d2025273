"""Relative attention with memory, by plain operations or a kernel.

base    what an implementation is given
api     `relative_attention`, and the choice among implementations
fused   what kernels share: their gradient, biases and dropout
xla     plain operations, everywhere, and their gradient
triton  a kernel for NVIDIA GPUs from Ampere on
tpu     a kernel for TPUs
"""

from txl_jax.ops.kernels.api import IMPLEMENTATIONS, choose, relative_attention
from txl_jax.ops.kernels.base import Case, Inputs, Unable

__all__ = [
  'IMPLEMENTATIONS',
  'Case',
  'Inputs',
  'Unable',
  'choose',
  'relative_attention',
]
