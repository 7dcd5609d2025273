"""One training step: a pure function, compiled for a mesh of devices.

Shapes: B batch, T segment, A microbatches (train.accumulate).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.training import averaging, optim
from txl_jax.training import state as state_lib
from txl_jax.training.state import TrainState
from txl_jax.training.train_config import Config


class Built(NamedTuple):
  """The model, its learning rate schedule and the jitted training step."""

  model: base.LanguageModel
  schedule: Callable[[Any], jax.Array]
  create: Callable[[], TrainState]  # makes the initial state
  abstract: TrainState  # its shapes, with shardings if there is a mesh
  step: Any  # from `jit_train_step`; None without a mesh


def build(config: Config, vocab_size: int, mesh: Mesh | None) -> Built:
  """Builds the model, state and step of a config; no step without a mesh."""
  train = config.train
  key = jax.random.key(config.seed)
  # MODELS[config.model.name](vocab_size, config.model), or its variant.
  model = models.build(config.model, vocab_size)
  scoring.check_context(model, train.context, 'train.context')
  schedule = optim.schedule(config.optim, train.steps)
  optimiser = optim.optimiser(config.optim, train.steps, model.NOT_DECAYED)
  averager = averaging.averager(config.optim)
  initial = model, optimiser, train.batch_size, jax.random.fold_in(key, 0)
  create = functools.partial(state_lib.create, *initial, averager)
  with mesh_lib.ambient(mesh):  # the dtype of states is that of its devices
    abstract = jax.eval_shape(create)
  step = None
  if mesh is not None:
    placed = state_lib.shardings(abstract, mesh, model)
    abstract = placement.with_shardings(abstract, placed)
    step = jit_train_step(
      mesh,
      abstract,
      model=model,
      optimiser=optimiser,
      key=jax.random.fold_in(key, 1),
      steps=train.steps,
      accumulate=train.accumulate,
      averager=averager,
      half_loss=train.loss == 'half',
    )
  return Built(model, schedule, create, abstract, step)


def jit_train_step(mesh: Mesh, abstract: TrainState, **options: Any) -> Any:
  """Jits `train_step` for a mesh; the state passed to it is donated."""
  states = state_lib.shardings(abstract, mesh, options['model'])

  def step(state, batch):
    with mesh_lib.ambient(mesh):
      return train_step(state, batch, **options)

  inputs = states, placement.by_rows(mesh)
  return jax.jit(
    step, in_shardings=inputs, out_shardings=states, donate_argnums=0
  )


def train_step(
  state: TrainState,
  batch: dict[str, Any],
  *,
  model: base.LanguageModel,
  optimiser: optax.GradientTransformation,
  key: jax.Array,
  steps: int,
  accumulate: int,
  averager: averaging.Averager | None = None,
  half_loss: bool = False,
) -> TrainState:
  """Updates the parameters once.

  The loss is the mean nll over the scored tokens of the batch, plus the model's
  two aux sums, each divided by its count over the batch (`base.counts`). If
  A = accumulate > 1, a divisor of B, gradients of A microbatches are summed.

  The batch is the dict of a `data.streams.Batch`, whose lengths, context and
  rate_scale, here also a scalar, may be None or missing. The optimiser is any
  of optax, for `jit_train_step` one whose state has scalars and the shapes of
  parameters; one that accepts extra arguments, as that of `optim` does, gets
  the step and the scale of its rate. The dropout key is fold_in(key, step).
  `steps` is the total number of steps; `averager` must be the one that created
  the state. With half_loss, only the last half of each row is scored.
  """
  batch = {k: x for k, x in batch.items() if x is not None}
  rate_scale = jnp.max(batch.pop('rate_scale', jnp.float32(1)))
  if half_loss:
    batch['targets'] = _last_half(batch['targets'])
  tokens = jnp.sum(batch['targets'] >= 0)
  counts = base.counts(batch['targets'])

  def loss(params, part, memory, key):
    memory = model.reset_memory(memory, part['reset'])
    # A user's model may not accept a context.
    context: Any = {'context': part['context']} if 'context' in part else {}
    out: Any = model.apply(
      {'params': params},
      part['inputs'],
      part['targets'],
      memory,
      train=True,
      lengths=part.get('lengths'),
      progress=jnp.float32(state.step) / steps,
      rngs={'dropout': key},
      **context,
    )
    nll = jnp.sum(out.nll)
    mean = nll / tokens.astype(nll.dtype)
    return mean + jnp.sum(out.aux / counts), (nll, out.memory)

  gradient = jax.grad(loss, has_aux=True)
  if accumulate > 1:
    gradient = _accumulated(gradient, accumulate, model.row_axes())
  key = jax.random.fold_in(key, state.step)
  grads, (nll, memory) = gradient(state.params, batch, state.memory, key)
  grads, params, whole = _for_update(grads, state.params, model)
  optimiser = optax.with_extra_args_support(optimiser)
  rate: Any = dict(step=state.step, scale=state.lr_scale * rate_scale)
  # Optax promotes dtypes implicitly, which a user's program may forbid.
  with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
    updates, opt_state = optimiser.update(
      grads, state.opt_state, params, **rate
    )
  params = whole(optax.apply_updates(params, updates))
  new = state.replace(params=params, opt_state=opt_state, memory=memory)
  if averager:
    average = averager.update(state.average, params, state.step)
    new = new.replace(average=average)
  grad_norm = optim.norm(grads)
  sums = state.sums.add(nll, tokens, grad_norm, state.step)
  return new.replace(step=state.step + 1, sums=sums)


def _for_update(grads, params, model):
  """Gradients and parameters, each device's part of what data replicates.

  And the function that makes parameters whole again.
  """
  mesh, whole = mesh_lib.own(), lambda x: x
  if mesh.empty:
    return placement.for_update(grads, mesh, None), params, whole
  parts = placement.of_update(params, mesh, model.SHARDING)
  shardings = placement.by_rules(params, mesh, model.SHARDING)
  if parts != shardings:
    constrain = jax.lax.with_sharding_constraint
    whole = lambda x: constrain(x, shardings)
    # Without the sum in between, the TPU compiler (jax 0.10.2) splits products
    # into the parts of all devices and passes on their sums one by one.
    grads, params = constrain(whole(grads), parts), constrain(params, parts)
  return placement.for_update(grads, mesh, parts), params, whole


def _last_half(targets: jax.Array) -> jax.Array:
  """Sets the first n // 2 of a row's n targets [B, T] to -1 (not scored).

  Targets of -1 at the end of a row are padding and do not count.
  """
  position = jnp.arange(targets.shape[1])[None]
  n = jnp.max(jnp.where(targets >= 0, position + 1, 0), axis=1, keepdims=True)
  return jnp.where(position < n // 2, -1, targets)


def _accumulated(gradient: Any, A: int, axes: Any) -> Any:
  """Wraps `gradient` to sum over A microbatches, one after the other.

  `gradient` is a function (params, batch, memory, key) -> grads, (nll, memory).
  Microbatch a consists of rows a, a + A, a + 2 A, … of the batch and of the
  memory, whose row axes are `axes`, and has the key fold_in(key, a).
  """

  # Devices hold contiguous blocks of rows; taking every A-th row keeps all
  # rows on their devices.
  def split(axis, x):
    return x.reshape(*x.shape[:axis], -1, A, *x.shape[axis + 1 :])

  def merge(axis, x):
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

  def summed(params, batch, memory, key):
    # The memory is a scan carry, so it is updated in place.
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
