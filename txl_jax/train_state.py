"""Everything on the devices that the next training step depends on."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from txl_jax import metrics, sharding
from txl_jax.models import base


@flax.struct.dataclass
class TrainState:
  """State of training, saved and restored whole.

  Attributes:
    step: int32, updates made so far.
    params: float32 parameters.
    opt_state: of the optimiser.
    memory: of the model, for the rows of a batch.
    sums: metrics since the last line of the log.
    lr_scale: float32, what the schedule is multiplied by (`optim.Plateau`).
  """

  step: jax.Array
  params: Any
  opt_state: Any
  memory: Any
  sums: metrics.Sums
  lr_scale: jax.Array


def init_params(model, key):
  """Fresh parameters of a model: a pytree of float32 arrays."""
  tokens = jnp.zeros([1, 1], jnp.int32)
  memory = model.init_memory(1)
  return model.init(key, tokens, tokens, memory, train=False)['params']


def create(model, optimiser, batch_size, key):
  """The state before the first step.

  Args:
    model: see `models.base`.
    optimiser: an optax transformation.
    batch_size: B, rows of the memory.
    key: PRNG key of the initial parameters.
  """
  params = init_params(model, key)
  return TrainState(
    step=jnp.zeros([], jnp.int32),
    params=params,
    opt_state=optimiser.init(params),
    memory=model.init_memory(batch_size),
    sums=metrics.zeros(),
    lr_scale=jnp.ones([], jnp.float32),
  )


def shardings(abstract, mesh):
  """A TrainState of shardings for a TrainState of arrays or their shapes."""
  everywhere = jax.tree.map(lambda _: sharding.replicated(mesh), abstract)
  rows = lambda leaf: sharding.rows(mesh, base.row_axis(leaf))
  return everywhere.replace(memory=jax.tree.map(rows, abstract.memory))
