"""Everything on the devices that the next training step depends on."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from txl_jax.models import base
from txl_jax.parallel import placement
from txl_jax.training import averaging, metrics

_ITEMS = ('params', 'memory', 'average')


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


def fresh(state: TrainState) -> str:
  """Lists the parts of a run that are fresh if it begins with parameters."""
  items = ('opt_state', 'optimiser'), ('average', 'average')
  items = *items, ('memory', 'memory (empty)')
  found = [x for k, x in items if jax.tree.leaves(getattr(state, k))]
  return ', '.join([*found, 'step', 'schedule', 'record'])


def split(state: TrainState) -> dict[str, Any]:
  """The items of a checkpoint: what can be restored without the rest.

  params, training, and memory and average where there is one.
  """
  items: dict[str, Any] = {name: getattr(state, name) for name in _ITEMS}
  items['memory'] = {'rows': state.memory}  # orbax saves no array on its own
  items['training'] = state.replace(**dict.fromkeys(_ITEMS, ()))
  return {name: x for name, x in items.items() if jax.tree.leaves(x)}


def join(items: dict[str, Any]) -> TrainState:
  """The TrainState of which `split` made the items."""
  memory = items.get('memory', {'rows': ()})['rows']
  parts = {name: items.get(name, ()) for name in _ITEMS} | {'memory': memory}
  return items['training'].replace(**parts)


def shardings(
  abstract: TrainState, mesh: placement.AnyMesh, model: base.LanguageModel
) -> TrainState:
  """A TrainState of shardings for a TrainState of arrays or their shapes."""
  everywhere = jax.tree.map(lambda _: placement.replicated(mesh), abstract)
  names = ('params', 'opt_state', 'average')
  ruled = {
    name: placement.by_rules(getattr(abstract, name), mesh, model.SHARDING)
    for name in names
  }
  rows = jax.tree.map(lambda i: placement.rows(mesh, i), model.row_axes())
  return everywhere.replace(**ruled, memory=rows)
