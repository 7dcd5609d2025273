"""Everything on the devices that the next training step depends on."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import metrics


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
    average: an `averaging.Average` of the parameters, or () for none.
  """

  step: jax.Array
  params: Any
  opt_state: Any
  memory: Any
  sums: metrics.Sums
  lr_scale: jax.Array
  average: Any = ()


def create(model, optimiser, batch_size, key, averager=None):
  """The state before the first step.

  Args:
    model: see `models.base`.
    optimiser: an optax transformation.
    batch_size: B, rows of the memory.
    key: PRNG key of the initial parameters.
    averager: from `averaging.averager`.
  """
  params = base.init_params(model, key)
  return TrainState(
    step=jnp.zeros([], jnp.int32),
    params=params,
    opt_state=optimiser.init(params),
    memory=model.init_memory(batch_size),
    sums=metrics.zeros(),
    lr_scale=jnp.ones([], jnp.float32),
    average=averager.init(params) if averager else (),
  )


def placed(abstract, mesh):
  """The shapes of a TrainState with the shardings they have on a mesh."""
  place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  return jax.tree.map(place, abstract, shardings(abstract, mesh))


def split(state):
  """The items of a checkpoint: what can be restored without the rest.

  They are params, training, memory, and average; the last two only where
  there is one.

  Args:
    state: a TrainState of arrays or their shapes.

  Returns:
    A dict of pytrees.
  """
  items = {
    'params': state.params,
    'training': state.replace(params=(), memory=(), average=()),
  }
  parts = {'memory': state.memory, 'average': state.average}
  return items | {name: part for name, part in parts.items() if part}


def join(items):
  """The TrainState of which `split` made the items."""
  return items['training'].replace(
    params=items['params'],
    memory=items.get('memory', ()),
    average=items.get('average', ()),
  )


def shardings(abstract, mesh):
  """A TrainState of shardings for a TrainState of arrays or their shapes."""
  everywhere = jax.tree.map(lambda _: mesh_lib.replicated(mesh), abstract)
  rows = lambda leaf: mesh_lib.rows(mesh, base.row_axis(leaf))
  rules = lambda tree: mesh_lib.by_rules(tree, mesh)
  return everywhere.replace(
    params=rules(abstract.params),
    opt_state=rules(abstract.opt_state),
    average=rules(abstract.average),
    memory=jax.tree.map(rows, abstract.memory),
  )
