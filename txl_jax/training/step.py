"""One training step: a pure function, and its jit over a mesh.

Shapes: B batch, T segment, A accumulated parts, K steps in a call.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from txl_jax import models, settings
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import averaging, metrics, optim
from txl_jax.training import state as state_lib
from txl_jax.training.options import Config


def train_step(
  state: state_lib.TrainState,
  batch: dict[str, Any],
  *,
  model: base.LanguageModel,
  optimiser: optax.GradientTransformation,
  schedule: Callable[[jax.Array], jax.Array],
  key: jax.Array,
  steps: int,
  accumulate: int = 1,
  averager: averaging.Averager | None = None,
  skip_nonfinite: bool = False,
) -> state_lib.TrainState:
  """One update.

  The loss is the mean nll over the scored tokens of the whole batch, plus
  the model's aux. With A = accumulate > 1 the rows a, a + A, a + 2 A, … are
  part a; the gradients of the parts are summed one after the other, each
  part with its own rows of the memory, so the update is that of the batch.

  Args:
    state: before the step.
    batch: dict of inputs, targets [B, T], lengths [B] or None, reset [B].
    model: to be trained.
    optimiser: from `optim.optimiser`.
    schedule: from `optim.schedule`.
    key: dropout uses fold_in(key, step).
    steps: of the whole training.
    accumulate: A, a divisor of B.
    averager: that which the state was made with.
    skip_nonfinite: see `_keep_nonfinite_out`.
  """
  tokens = jnp.sum(batch['targets'] >= 0)

  def loss(params, part, memory, key):
    out: Any = model.apply(
      {'params': params},
      part['inputs'],
      part['targets'],
      memory,
      train=True,
      lengths=part['lengths'],
      progress=jnp.float32(state.step) / steps,
      rngs={'dropout': key},
    )
    nll = jnp.sum(out.nll)
    return nll / tokens + out.aux / accumulate, (nll, out.memory)

  gradient = jax.grad(loss, has_aux=True)
  memory = model.reset_memory(state.memory, batch['reset'])
  key = jax.random.fold_in(key, state.step)
  if accumulate == 1:
    grads, (nll, memory) = gradient(state.params, batch, memory, key)
  else:
    axes = model.row_axes()
    grads, nll, memory = _accumulate(
      gradient, state.params, batch, memory, axes, key, accumulate
    )
  updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
  lr = schedule(state.step) * state.lr_scale
  params = jax.tree.map(lambda p, u: p - lr * u, state.params, updates)
  average = state.average
  if averager:
    average = averager.update(average, params, state.step)
  new = state.replace(
    params=params, opt_state=opt_state, memory=memory, average=average
  )
  grad_norm, skipped = optax.tree.norm(grads), False
  if skip_nonfinite:
    empty = model.init_memory(len(batch['reset']))
    new, skipped = _keep_nonfinite_out(state, new, nll, grad_norm, empty)
  sums = metrics.add(state.sums, nll, tokens, grad_norm, state.step, skipped)
  return new.replace(step=state.step + 1, sums=sums)


def _keep_nonfinite_out(old, new, nll, grad_norm, empty):
  """The new state, or the old one where the loss or gradient is not finite.

  Parameters, optimiser and average then stay as they were. A memory after a
  loss that is not finite is emptied. Besides: whether the update was left out.
  """

  def choose(condition, tree, other):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)

  skipped = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
  kept = choose(skipped, old.replace(memory=()), new.replace(memory=()))
  memory = choose(jnp.isfinite(nll), new.memory, empty)
  return kept.replace(memory=memory), skipped


def _accumulate(gradient, params, batch, memory, axes, key, A):
  """Gradients and nll summed over A parts, and the memory of all rows.

  The gradient is a function (params, batch, memory, key) -> grads, (nll,
  memory); axes are those of the memory's rows. Part a uses fold_in(key, a).
  """

  # Every A-th row goes into a part: rows that are divided among devices in
  # blocks stay where they are.
  def split(axis, x):
    shape = (*x.shape[:axis], x.shape[axis] // A, A, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis + 1, 0)

  def merge(axis, x):  # x is [A, ...]
    x = jnp.moveaxis(x, 0, axis + 1)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

  def body(carry, part):
    grads, nll = carry
    batch, memory, a = part
    more, (part_nll, memory) = gradient(
      params, batch, memory, jax.random.fold_in(key, a)
    )
    return (jax.tree.map(jnp.add, grads, more), nll + part_nll), memory

  parts = (
    jax.tree.map(functools.partial(split, 0), batch),
    jax.tree.map(split, axes, memory),
    jnp.arange(A),
  )
  zeros = jax.tree.map(jnp.zeros_like, params)
  (grads, nll), memories = jax.lax.scan(body, (zeros, jnp.float32(0)), parts)
  return grads, nll, jax.tree.map(merge, axes, memories)


class Built(NamedTuple):
  """What a config makes of training.

  `create` makes the state before the first step, `abstract` are its shapes
  (with shardings, if there is a mesh), `step` is that of `jit_train_step`, or
  None without a mesh.
  """

  model: base.LanguageModel
  schedule: Callable[[Any], jax.Array]
  create: Callable[[], state_lib.TrainState]
  abstract: state_lib.TrainState
  step: Any


def build(config: Config, vocab_size: int, mesh: Mesh | None) -> Built:
  """The model, the state and the step of a config; no mesh, no step."""
  model = models.build(config.model, vocab_size)
  schedule = optim.schedule(config.optim, config.train.steps)
  optimiser = optim.optimiser(config.optim, model.NOT_DECAYED)
  averager = averaging.averager(config.optim)
  key = jax.random.key(config.seed)
  B, first = config.train.batch_size, jax.random.fold_in(key, 0)
  create = functools.partial(
    state_lib.create, model, optimiser, B, first, averager
  )
  abstract, step = jax.eval_shape(create), None
  if mesh is not None:
    placed = state_lib.shardings(abstract, mesh, model)
    abstract = mesh_lib.with_shardings(abstract, placed)
    step = jit_train_step(
      mesh,
      abstract,
      config.train.steps_per_dispatch,
      model=model,
      optimiser=optimiser,
      schedule=schedule,
      key=jax.random.fold_in(key, 1),
      steps=config.train.steps,
      accumulate=config.train.accumulate,
      averager=averager,
      skip_nonfinite=config.train.nonfinite == 'skip',
    )
  return Built(model, schedule, create, abstract, step)


def check_rows(config: Config, parts: int) -> None:
  """Raises a UserError unless batches can be divided into parts of a mesh."""
  B, A = config.train.batch_size, config.train.accumulate
  if B % (A * parts):
    allowed = f'multiples of {A * parts} (train.accumulate {A} x {parts}, '
    allowed += 'the parts of the mesh that batches are divided over)'
    settings.refuse('train.batch_size', B, allowed)


def jit_train_step(
  mesh: Mesh,
  abstract: state_lib.TrainState,
  steps_per_dispatch: int = 1,
  **arguments: Any,
) -> Any:
  """`train_step` compiled for a mesh; the state given to it is used up.

  Above 1, steps_per_dispatch is K: a batch has an axis K before its own.
  """
  states = state_lib.shardings(abstract, mesh, arguments['model'])
  one = steps_per_dispatch == 1

  def step(state, batch):
    with mesh_lib.ambient(mesh):
      if one:
        return train_step(state, batch, **arguments)

      def body(state, batch):
        return train_step(state, batch, **arguments), None

      return jax.lax.scan(body, state, batch)[0]

  return jax.jit(
    step,
    in_shardings=(states, mesh_lib.rows(mesh, 0 if one else 1)),
    out_shardings=states,
    donate_argnums=0,
  )
