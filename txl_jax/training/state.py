"""Everything on the devices that the next training step depends on."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import averaging, metrics


class TrainState(flax.struct.PyTreeNode):
  """State of training, saved and restored whole."""

  step: jax.Array  # int32, updates made so far
  params: Any  # float32
  opt_state: Any  # of the optimiser
  memory: Any  # of the model, for the rows of a batch
  sums: metrics.Sums  # since the last line of the log
  lr_scale: jax.Array  # float32, times the schedule: see `optim.Plateau`
  average: Any = ()  # an `averaging.Average` of the parameters, or none


def create(
  model: base.LanguageModel,
  optimiser: optax.GradientTransformation,
  batch_size: int,
  key: jax.Array,
  averager: averaging.Averager | None = None,
) -> TrainState:
  """The state before the first step; the key is that of the parameters."""
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


def split(state: TrainState) -> dict[str, Any]:
  """The items of a checkpoint: what can be restored without the rest.

  params, training, and memory and average where there is one.
  """
  items = {
    'params': state.params,
    'training': state.replace(params=(), memory=(), average=()),
  }
  parts = {'memory': state.memory, 'average': state.average}
  return items | {k: x for k, x in parts.items() if jax.tree.leaves(x)}


def join(items: dict[str, Any]) -> TrainState:
  """The TrainState of which `split` made the items."""
  return items['training'].replace(
    params=items['params'],
    memory=items.get('memory', ()),
    average=items.get('average', ()),
  )


def shardings(
  abstract: TrainState, mesh: mesh_lib.AnyMesh, model: base.LanguageModel
) -> TrainState:
  """A TrainState of shardings for a TrainState of arrays or their shapes."""
  everywhere = jax.tree.map(lambda _: mesh_lib.replicated(mesh), abstract)
  params, opt_state, average = (
    mesh_lib.by_rules(tree, mesh, model.SHARDING)
    for tree in (abstract.params, abstract.opt_state, abstract.average)
  )
  memory = () if abstract.memory == () else model.row_axes()
  return everywhere.replace(
    params=params,
    opt_state=opt_state,
    average=average,
    memory=jax.tree.map(lambda axis: mesh_lib.rows(mesh, axis), memory),
  )
