"""One training step: a pure function, and its jit over a mesh.

Shapes: B batch, E context, T segment, A accumulated parts.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.evaluation import perplexity
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import settings
from txl_jax.training import averaging, metrics, optim
from txl_jax.training import state as state_lib
from txl_jax.training.options import Config
from txl_jax.training.state import TrainState


def train_step(
  state: TrainState,
  batch: dict[str, Any],
  *,
  model: base.LanguageModel,
  optimiser: optax.GradientTransformation,
  schedule: Callable[[jax.Array], jax.Array],
  key: jax.Array,
  steps: int,
  accumulate: int = 1,
  averager: averaging.Averager | None = None,
  half_loss: bool = False,
  table_schedule: Callable[[jax.Array], jax.Array] | None = None,
) -> TrainState:
  """One update of a model; optimiser and schedule are from `optim`.

  The loss is the mean nll over the scored tokens of the whole batch, plus the
  model's aux, over the counts of the whole batch. With A = accumulate > 1, a
  divisor of B, its gradient is the sum of those of A parts.

  The batch is a dict of inputs int32 [B, E + T], targets int32 [B, T], lengths
  int32 [B] or None, reset bool [B]; if there is a context, of context int32 [B]
  (see `data.streams`); and possibly of rate_scale, which the learning rate is
  multiplied by, float32 [] or [B]. Dropout draws with fold_in(key, step),
  `steps` is the number of steps of the whole training, and the averager is the
  one the state was made with. With half_loss only the last half of each row is
  scored. The table schedule is that of the parameters that `optim.is_table`
  names; None is the schedule of the others.
  """
  batch = {k: x for k, x in batch.items() if x is not None}
  rate_scale = jnp.max(batch.pop('rate_scale', jnp.float32(1)))
  if half_loss:
    batch['targets'] = _last_half(batch['targets'])
  tokens = jnp.sum(batch['targets'] >= 0)
  counts = base.counts(batch['targets'])

  def loss(params, part, memory, key):
    memory = model.reset_memory(memory, part['reset'])
    segment = part['inputs'], part['targets'], memory
    progress, rngs = jnp.float32(state.step) / steps, {'dropout': key}
    more: Any = dict(lengths=part.get('lengths'), progress=progress, rngs=rngs)
    if 'context' in part:  # models of one's own may not know it
      more['context'] = part['context']
    out: Any = model.apply({'params': params}, *segment, train=True, **more)
    nll = jnp.sum(out.nll)
    return nll / tokens + jnp.sum(out.aux / counts), (nll, out.memory)

  gradient = jax.grad(loss, has_aux=True)
  if accumulate > 1:
    gradient = _in_parts(gradient, accumulate, model.row_axes())
  key = jax.random.fold_in(key, state.step)
  grads, (nll, memory) = gradient(state.params, batch, state.memory, key)
  updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
  schedules, scale = (schedule, table_schedule or schedule), state.lr_scale
  rates = [rate(state.step) * scale * rate_scale for rate in schedules]

  params = jax.tree_util.tree_map_with_path(
    lambda path, p, update: p - rates[optim.is_table(path)] * update,
    state.params,
    updates,
  )
  new = state.replace(params=params, opt_state=opt_state, memory=memory)
  if averager:
    average = averager.update(state.average, params, state.step)
    new = new.replace(average=average)
  grad_norm = optax.tree.norm(grads)
  sums = metrics.add(state.sums, nll, tokens, grad_norm, state.step)
  return new.replace(step=state.step + 1, sums=sums)


def _last_half(targets):
  """Targets [B, T] of the last n - n // 2 of a row's n tokens, else -1.

  A row ends with its last target; padding comes after it.
  """
  at = jnp.arange(targets.shape[1])
  n = jnp.max(jnp.where(targets >= 0, at + 1, 0), axis=1, keepdims=True)
  return jnp.where(at < n // 2, -1, targets)


def _in_parts(gradient, A, axes):
  """A gradient summed over A parts of the rows, one after the other.

  It is a function (params, batch, memory, key) -> grads, (nll, memory). Each
  part has its own rows of the memory, whose row axes are `axes`; part a is the
  rows a, a + A, a + 2 A, … and uses fold_in(key, a).
  """

  # A part is every A-th row, so rows that are divided among devices in blocks
  # stay where they are.
  def split(axis, x):
    return x.reshape(*x.shape[:axis], -1, A, *x.shape[axis + 1 :])

  def merge(axis, x):
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

  def summed(params, batch, memory, key):
    # The memory is carried, so that parts are read and written in their place.
    def body(carry, a):
      sums, memory = carry

      def take(axis, x):
        return jax.lax.dynamic_index_in_dim(x, a, axis + 1, keepdims=False)

      def put(axis, x, new):
        return jax.lax.dynamic_update_index_in_dim(x, new, a, axis + 1)

      rows = jax.tree.map(functools.partial(take, 0), batch)
      past = jax.tree.map(take, axes, memory)
      part_key = jax.random.fold_in(key, a)
      grads, (nll, new) = gradient(params, rows, past, part_key)
      sums = jax.tree.map(jnp.add, sums, (grads, nll))
      return (sums, jax.tree.map(put, axes, memory, new)), None

    batch = jax.tree.map(functools.partial(split, 0), batch)
    memory = jax.tree.map(split, axes, memory)
    zeros = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
    carry, _ = jax.lax.scan(body, (zeros, memory), jnp.arange(A))
    (grads, nll), memory = carry
    return grads, (nll, jax.tree.map(merge, axes, memory))

  return summed


class Built(NamedTuple):
  """The parts of training, built from a config."""

  model: base.LanguageModel
  schedule: Callable[[Any], jax.Array]
  create: Callable[[], TrainState]  # the state before the first step
  abstract: TrainState  # its shapes, and with a mesh its shardings
  step: Any  # from `jit_train_step`; None without a mesh


def build(config: Config, vocab_size: int, mesh: Mesh | None) -> Built:
  """The model, the state and the step of a config; no step without a mesh."""
  train, key = config.train, jax.random.key(config.seed)
  model = models.build(config.model, vocab_size)
  perplexity.check_context(model, train.context, 'train.context')
  schedule = optim.schedule(config.optim, train.steps)
  optimiser = optim.optimiser(config.optim, model.NOT_DECAYED)
  averager = averaging.averager(config.optim)
  start = train.batch_size, jax.random.fold_in(key, 0), averager
  create = functools.partial(state_lib.create, model, optimiser, *start)
  abstract, step = jax.eval_shape(create), None
  if mesh is not None:
    placed = state_lib.shardings(abstract, mesh, model)
    abstract = placement.with_shardings(abstract, placed)
    step = jit_train_step(
      mesh,
      abstract,
      model=model,
      optimiser=optimiser,
      schedule=schedule,
      key=jax.random.fold_in(key, 1),
      steps=train.steps,
      accumulate=train.accumulate,
      averager=averager,
      half_loss=train.loss == 'half',
      table_schedule=optim.schedule(config.optim, train.steps, table=True),
    )
  return Built(model, schedule, create, abstract, step)


def check_rows(config: Config, parts: int) -> None:
  """Raises a UserError unless batches can be divided into parts of a mesh."""
  B, A = config.train.batch_size, config.train.accumulate
  if B % (A * parts):
    allowed = f'multiples of {A * parts} (train.accumulate {A} x {parts}, '
    allowed += 'the parts of the mesh that batches are divided over)'
    settings.refuse('train.batch_size', B, allowed)


def jit_train_step(mesh: Mesh, abstract: TrainState, **more: Any) -> Any:
  """`train_step` compiled for a mesh; the state given to it is used up."""
  states = state_lib.shardings(abstract, mesh, more['model'])

  def step(state, batch):
    with mesh_lib.ambient(mesh):
      return train_step(state, batch, **more)

  given = states, placement.rows(mesh)
  return jax.jit(
    step, in_shardings=given, out_shardings=states, donate_argnums=0
  )
