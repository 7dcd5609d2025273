"""Relative attention as a layer: projections and the two global biases.

Shapes
  B batch, T segment, S = memory + T, H heads, K head width, D model width.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention


class Biases(nn.Module):
  """The global content and position biases u and v, each [H, K]."""

  config: Any

  @nn.compact
  def __call__(self):
    """(u, v)."""
    c = self.config
    init = nn.initializers.normal(c.init_std)
    shape = (c.n_head, c.d_head)
    u = self.param('u', init, shape, jnp.float32)
    v = self.param('v', init, shape, jnp.float32)
    return u.astype(c.dtype), v.astype(c.dtype)


class RelativeAttention(nn.Module):
  """Projections around `attention.relative_attention`, no biases on them."""

  config: Any

  def setup(self) -> None:
    c = self.config
    shared: dict[str, Any] = dict(
      use_bias=False,
      kernel_init=nn.initializers.normal(c.init_std),
      dtype=jnp.dtype(c.dtype),
    )
    heads = (c.n_head, c.d_head)
    self.q = nn.DenseGeneral(heads, **shared)
    self.k = nn.DenseGeneral(heads, **shared)
    self.v = nn.DenseGeneral(heads, **shared)
    self.r = nn.DenseGeneral(heads, **shared)
    self.o = nn.DenseGeneral(c.d_model, axis=(-2, -1), **shared)

  def project(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, any, D] -> keys and values, each [B, any, H, K]."""
    return self.k(states), self.v(states)

  def __call__(self, x, k, v, R, biases, mask, *, train):
    """x [B, T, D], k, v [B, S, H, K], R [S, D] and mask [B or 1, T, S]."""
    rate = self.config.dropatt if train else 0.0
    key = self.make_rng('dropout') if rate else None
    q, r, (u, v_bias) = self.q(x), self.r(R), biases
    out = attention.relative_attention(
      q, k, v, r, u, v_bias, mask, dropout_rate=rate, dropout_key=key
    )  # [B, T, H, K]
    return self.o(out)  # [B, T, D]
