"""The train state: all device arrays that the next step depends on."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from txl_jax.models import base
from txl_jax.parallel import placement
from txl_jax.training import averaging

_ITEMS = ('params', 'memory', 'average')
_HIGH = 2**30  # `Sums.tokens` are its multiples, and the rest


class Sums(flax.struct.PyTreeNode):
  """Sums over the steps since the last log line, kept on the device."""

  nll: jax.Array  # float32, nats, over all scored tokens
  tokens: jax.Array  # int32 [2], see `token_count`
  grad_norm: jax.Array  # float32, global norms before clipping
  steps: jax.Array  # int32
  bad_step: jax.Array  # int32, first step that is not finite, or -1

  @classmethod
  def zeros(cls) -> 'Sums':
    """Sums over zero steps."""
    # Each field needs its own buffer: one buffer cannot be donated twice.
    tokens = jnp.zeros([2], jnp.int32)
    nll, norm = jnp.float32(0), jnp.float32(0)
    return cls(nll, tokens, norm, jnp.int32(0), jnp.int32(-1))

  def add(self, nll: Any, tokens: Any, grad_norm: Any, step: Any) -> 'Sums':
    """Adds the scalars of one step; tokens must be below 2^30."""
    bad = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
    low = self.tokens[1] + tokens
    return self.replace(
      nll=self.nll + nll.astype(jnp.float32),
      tokens=jnp.stack([self.tokens[0] + low // _HIGH, low % _HIGH]),
      grad_norm=self.grad_norm + grad_norm.astype(jnp.float32),
      steps=self.steps + 1,
      bad_step=jnp.where((self.bad_step < 0) & bad, step, self.bad_step),
    )

  def token_count(self) -> int:
    """Number of scored tokens, which may exceed int32; on the host."""
    high, low = np.asarray(self.tokens).tolist()
    return high * _HIGH + low


class TrainState(flax.struct.PyTreeNode):
  """State of training; a checkpoint contains all of it."""

  step: jax.Array  # int32, updates made so far
  params: Any  # float32
  opt_state: Any  # state of the optimiser
  memory: Any  # the model's memory, one row for each row of a batch
  sums: Sums  # metrics since the last log line
  lr_scale: jax.Array  # float32, factor of the schedule, see `optim.Plateau`
  average: Any = ()  # an `averaging.Average` of the parameters, or ()


def create(
  model: base.LanguageModel,
  optimiser: optax.GradientTransformation,
  batch_size: int,
  key: jax.Array,
  averager: averaging.Averager | None = None,
) -> TrainState:
  """The state before the first step; `key` initialises the parameters."""
  params = base.init_params(model, key)
  return TrainState(
    step=jnp.zeros([], jnp.int32),
    params=params,
    opt_state=optimiser.init(params),
    memory=model.init_memory(batch_size),
    sums=Sums.zeros(),
    lr_scale=jnp.ones([], jnp.float32),
    average=averager.init(params) if averager else (),
  )


def not_loaded(state: TrainState) -> str:
  """Lists the parts that are not loaded with the parameters, for a log line."""
  items = ('opt_state', 'optimiser'), ('average', 'average')
  items = *items, ('memory', 'memory (empty)')
  names = [name for k, name in items if jax.tree.leaves(getattr(state, k))]
  return ', '.join([*names, 'step', 'schedule', 'log'])


def split(state: TrainState) -> dict[str, Any]:
  """Splits a state into checkpoint items that can be restored separately.

  The items are params, training, and where they exist memory and average.
  """
  items: dict[str, Any] = {name: getattr(state, name) for name in _ITEMS}
  items['memory'] = {'rows': state.memory}  # Orbax cannot save a bare array
  items['training'] = state.replace(**dict.fromkeys(_ITEMS, ()))
  return {name: x for name, x in items.items() if jax.tree.leaves(x)}


def join(items: dict[str, Any]) -> TrainState:
  """Joins the items of `split` into a TrainState."""
  memory = items.get('memory', {'rows': ()})['rows']
  parts = {name: items.get(name, ()) for name in _ITEMS} | {'memory': memory}
  return items['training'].replace(**parts)


def shardings(
  abstract: TrainState, mesh: placement.AnyMesh, model: base.LanguageModel
) -> TrainState:
  """A TrainState whose leaves are the shardings of `abstract`."""
  everywhere = jax.tree.map(lambda _: placement.replicated(mesh), abstract)
  rules = model.SHARDING
  return everywhere.replace(
    params=placement.by_rules(abstract.params, mesh, rules),
    average=placement.by_rules(abstract.average, mesh, rules),
    opt_state=placement.of_update(abstract.opt_state, mesh, rules),
    memory=base.memory_shardings(model, mesh),
  )
