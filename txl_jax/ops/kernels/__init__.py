"""Relative attention with memory, by plain operations or a kernel.

  base    what an implementation is given
  api     `relative_attention`, and the choice among implementations
  fused   what kernels share: their gradient, biases and dropout
  xla     plain operations, everywhere, and their gradient
  triton  a kernel for NVIDIA GPUs from Ampere on
  tpu     a kernel for TPUs

>>> import jax.numpy as jnp
>>> from txl_jax import kernels
>>> B, T, M, H, K = 2, 4, 3, 2, 8
>>> x, r = jnp.ones([B, M + T, H, K]), jnp.ones([M + T, H, K])
>>> u = v_bias = jnp.zeros([H, K])
>>> out = kernels.relative_attention(
...   x[:, M:], x, x, r, u, v_bias, filled=jnp.array([3, 0]))
>>> out.shape
(2, 4, 2, 8)
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
