"""Long short-term memory (Hochreiter and Schmidhuber 1997) as a language model.

With weight_drop, locked_dropout and activation regularisation, it is AWD-LSTM
(Merity et al. 2017).

Shapes: B batch, T segment; a layer has input width J and state width H.
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
from txl_jax.program.settings import OTHER, count


@dataclasses.dataclass(frozen=True)
class Config(recurrent.Config):
  """Keys of `LSTM`, the section `model` of a config."""

  name: str = model_name('lstm', 'LSTM (Hochreiter and Schmidhuber 1997)')
  forget_bias: float = count(
    1.0,
    'Initial bias of the forget gates; 1 makes them remember from the start '
    '(Jozefowicz et al. 2015).',
    may_change=OTHER,
  )


class State(flax.struct.PyTreeNode):
  """Recurrent state of a layer."""

  hidden: Any  # h [B, H], in the compute dtype
  cell: Any  # c [B, H], float32 or a wider compute dtype


class Layer(nn.Module):
  """One LSTM layer.

  i, f, g, o = W x_t + U h_(t-1) + b
  c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g),  h_t = sigmoid(o) tanh(c_t)
  """

  config: Config
  width: int  # H

  @nn.compact
  def __call__(
    self, x: jax.Array, state: State, lengths: jax.Array | None, train: bool
  ) -> tuple[jax.Array, State]:
    """x [B, T, J], State -> h [B, T, H], State; lengths as in `models.base`."""
    c, H = self.config, self.width
    _, T, J = x.shape
    init = initial.normal(c.init_std)
    dtype = c.state_dtype

    def bias_init(key, shape, dtype):
      del key
      return jnp.zeros(shape, dtype).at[1].set(c.forget_bias)

    W = self.param('input', init, (J, 4, H), jnp.float32)
    U = self.param('hidden', init, (H, 4, H), jnp.float32)
    b = self.param('bias', bias_init, (4, H), jnp.float32)
    U = embedding.Dropout()(U, c.weight_drop, train=train)
    W, U = (w.astype(c.operand_dtype) for w in (W, U))
    b = b.astype(dtype)
    # One product computes the input terms of all positions.
    inputs = matmul.einsum('tbj,jgh->tbgh', x.swapaxes(0, 1), W) + b[None, None]
    real = None  # bool [T, B, 1], False for padding
    if lengths is not None:
      real = (jnp.arange(T)[:, None] < lengths[None])[..., None]

    def step(old, position):
      inputs, real = position
      gates = inputs + matmul.einsum('bj,jgh->bgh', old.hidden, U)
      gates = gates.astype(old.cell.dtype)
      i, f, g, o = (gates[:, n] for n in range(4))  # [B, H]
      remembered = jax.nn.sigmoid(f) * old.cell
      cell = remembered + jax.nn.sigmoid(i) * jnp.tanh(g)
      hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
      new = State(hidden.astype(dtype), cell)
      if real is not None:
        new = jax.tree.map(lambda a, b: jnp.where(real, a, b), new, old)
      return new, new.hidden

    state = matmul.varying_alike(state, inputs)
    state, h = jax.lax.scan(step, state, (inputs, real))
    return h.swapaxes(0, 1), state


class LSTM(recurrent.Recurrent):
  """LSTM language model, see `Layer` and `recurrent.Recurrent`."""

  Config = Config
  SHARDING = (
    *recurrent.Recurrent.SHARDING,
    (r'layers_\d+/(input|hidden)', (None, None, OUTPUTS)),  # [J or H, 4, H]
  )

  def setup(self) -> None:
    super().setup()
    self.layers = [Layer(self.config, H) for H in recurrent.widths(self.config)]

  def init_memory(self, batch_size: int) -> Any:
    """A zero State for each layer."""
    c = self.config
    wide = attention.widened(c.dtype)
    shapes = [(batch_size, H) for H in recurrent.widths(c)]
    return tuple(
      State(jnp.zeros(s, c.state_dtype), jnp.zeros(s, wide)) for s in shapes
    )
