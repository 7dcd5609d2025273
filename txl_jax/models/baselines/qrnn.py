"""Quasi-recurrent network (Bradbury et al. 2016) as a language model.

Gates are convolutions over the inputs, so only elementwise operations are
sequential in time. The language model is that of Merity et al. 2018.

Shapes: B batch, T segment; a layer has input width J, state width H and a
window of w inputs.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import embedding, initial
from txl_jax.models.baselines import recurrent
from txl_jax.models.config import model_name
from txl_jax.ops import matmul
from txl_jax.parallel.placement import OUTPUTS
from txl_jax.program.settings import key, size


@dataclasses.dataclass(frozen=True)
class Config(recurrent.Config):
  """Keys of `QRNN`, the section `model` of a config."""

  name: str = model_name('qrnn', 'QRNN (Bradbury et al. 2016)')
  window: int = size(
    2,
    'w: number of inputs in the convolution window of the first layer, '
    'including the newest; other layers have a window of 1.',
  )
  zoneout: float = key(
    0.0,
    'Probability that a state unit is not updated (Krueger et al. 2017); at '
    'inference, updates are multiplied by 1 - zoneout instead.',
    at_least=0,
    at_most=0.999,
  )


class State(flax.struct.PyTreeNode):
  """Recurrent state of a layer."""

  cell: Any  # c [B, H], float32 or a wider compute dtype
  inputs: Any  # the last w - 1 inputs [B, w - 1, J]; () if w is 1


def pool(new: jax.Array, update: jax.Array, cell: jax.Array) -> jax.Array:
  """Returns c_t = (1 - update_t) c_(t-1) + update_t new_t, [T, B, H].

  `new` and `update` are [T, B, H]; `cell`, [B, H], is the initial c.
  """

  def step(cell, position):
    new, update = position
    cell += update * (new - cell)
    return cell, cell

  cell = matmul.varying_alike(cell, new, update)
  return jax.lax.scan(step, cell, (new, update))[1]


class Layer(nn.Module):
  """One layer with fo-pooling.

    z, f, o = tanh(W_z * x), sigmoid(W_f * x), sigmoid(W_o * x)
    c_t = f_t c_(t-1) + (1 - f_t) z_t,  h_t = o_t c_t

  where * is a convolution over the w newest inputs, with a bias. In training,
  zoneout sets f to 1 with probability p; at inference, to f + p (1 - f).
  """

  config: Config
  width: int  # H
  window: int  # w

  @nn.compact
  def __call__(
    self, x: jax.Array, state: State, lengths: jax.Array | None, train: bool
  ) -> tuple[jax.Array, State]:
    """x [B, T, J], State -> h [B, T, H], State; lengths as in `models.base`."""
    c, H, w = self.config, self.width, self.window
    _, T, J = x.shape
    init = initial.normal(c.init_std)
    dtype = c.state_dtype
    kernel = self.param('kernel', init, (w, J, 3, H), jnp.float32)
    bias = self.param('bias', nn.initializers.zeros, (3, H), jnp.float32)
    kernel = embedding.Dropout()(kernel, c.weight_drop, train=train)
    kernel, bias = kernel.astype(c.operand_dtype), bias.astype(dtype)
    windows, inputs = x[None], ()  # [w, B, T, J], oldest first
    if w > 1:
      padded = jnp.concatenate([state.inputs, x], axis=1)  # [B, w - 1 + T, J]
      windows = jnp.stack([padded[:, n : n + T] for n in range(w)])
      inputs = attention.update_memory(state.inputs, x, lengths)
    gates = matmul.einsum('wbtj,wjgh->tbgh', windows, kernel)
    gates = (gates + bias[None, None]).astype(state.cell.dtype)
    z, f, o = (gates[:, :, n] for n in range(3))  # [T, B, H]
    update = (1 - c.zoneout) * jax.nn.sigmoid(-f)  # 1 - f
    update = embedding.Dropout()(update, c.zoneout, train=train)
    if lengths is not None:
      real = jnp.arange(T)[:, None] < lengths[None]  # [T, B]
      update = jnp.where(real[..., None], update, 0)
    cells = pool(jnp.tanh(z), update, state.cell)
    h = (jax.nn.sigmoid(o) * cells).astype(dtype)
    return h.swapaxes(0, 1), State(cells[-1], inputs)


class QRNN(recurrent.Recurrent):
  """QRNN language model, see `Layer` and `recurrent.Recurrent`."""

  Config = Config
  SHARDING = (
    *recurrent.Recurrent.SHARDING,
    (r'layers_\d+/kernel', (None, None, None, OUTPUTS)),  # [w, J, 3, H]
  )

  def setup(self) -> None:
    super().setup()
    self.layers = [
      Layer(self.config, H, 1 if n else self.config.window)
      for n, H in enumerate(recurrent.widths(self.config))
    ]

  def init_memory(self, batch_size: int) -> Any:
    """A zero State for each layer."""
    c, B = self.config, batch_size
    wide = attention.widened(c.dtype)
    cells = [jnp.zeros([B, H], wide) for H in recurrent.widths(c)]
    inputs = [()] * c.n_layer
    if c.window > 1:
      inputs[0] = jnp.zeros([B, c.window - 1, c.d_model], c.state_dtype)
    return tuple(map(State, cells, inputs))
