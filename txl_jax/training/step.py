"""One training step and one scoring call: pure functions, and their jit.

Shapes: B batch, T segment, A accumulated parts, K steps in a call of training,
G segments in a call of scoring.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from txl_jax import models
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import averaging, metrics, optim
from txl_jax.training import state as state_lib


def train_step(
  state,
  batch,
  *,
  model,
  optimiser,
  schedule,
  accumulate,
  key,
  averager=None,
  skip_nonfinite=False,
):
  """One update.

  The loss is the mean nll over the scored tokens of the whole batch, plus
  the model's aux. With A = accumulate > 1 the rows a, a + A, a + 2 A, … are
  part a; the gradients of the parts are summed one after the other, each
  part with its own rows of the memory, so the update is that of the batch.

  Args:
    state: a TrainState.
    batch: dict of inputs, targets [B, T], lengths [B] or None, reset [B].
    model: see `models.base`.
    optimiser: from `optim.optimiser`.
    schedule: from `optim.schedule`.
    accumulate: A, a divisor of B.
    key: PRNG key; dropout uses fold_in(key, step).
    averager: from `averaging.averager`, that which the state was made with.
    skip_nonfinite: leave the update out, here and in the optimiser's state
      and the average, where the loss or the gradient is not finite. A memory
      after a loss that is not is emptied.

  Returns:
    The next TrainState.
  """
  memory = model.reset_memory(state.memory, batch['reset'])
  key = jax.random.fold_in(key, state.step)
  tokens = jnp.sum(batch['targets'] >= 0)

  def loss(params, part, memory, key):
    out = model.apply(
      {'params': params},
      part['inputs'],
      part['targets'],
      memory,
      train=True,
      lengths=part['lengths'],
      rngs={'dropout': key},
    )
    nll = jnp.sum(out.nll)
    return nll / tokens + out.aux / accumulate, (nll, out.memory)

  gradient = jax.grad(loss, has_aux=True)
  if accumulate == 1:
    grads, (nll, memory) = gradient(state.params, batch, memory, key)
  else:
    grads, nll, memory = _accumulate(
      gradient, state.params, batch, memory, key, accumulate
    )
  updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
  lr = schedule(state.step) * state.lr_scale
  params = jax.tree.map(lambda p, u: p - lr * u, state.params, updates)
  average = state.average
  if averager:
    average = averager.update(average, params, state.step)
  grad_norm, skipped = optax.tree.norm(grads), False
  if skip_nonfinite:
    skipped = ~(jnp.isfinite(nll) & jnp.isfinite(grad_norm))
    params, opt_state, average = _choose(
      skipped,
      (state.params, state.opt_state, state.average),
      (params, opt_state, average),
    )
    B = len(batch['reset'])
    memory = _choose(jnp.isfinite(nll), memory, model.init_memory(B))
  sums = metrics.add(
    state.sums,
    nll=nll,
    tokens=tokens,
    grad_norm=grad_norm,
    step=state.step,
    skipped=skipped,
  )
  return state.replace(
    step=state.step + 1,
    params=params,
    opt_state=opt_state,
    memory=memory,
    sums=sums,
    average=average,
  )


def _choose(condition, tree, other):
  """The first of two pytrees where a scalar condition holds, or the second."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)


def _accumulate(gradient, params, batch, memory, key, A):
  """Gradients and nll summed over A parts, and the memory of all rows."""

  # Every A-th row goes into a part: rows that are divided among devices in
  # blocks stay where they are.
  def split(x, axis):
    shape = (*x.shape[:axis], x.shape[axis] // A, A, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis + 1, 0)

  def merge(x, axis):  # x is [A, ...]
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
    jax.tree.map(lambda x: split(x, 0), batch),
    jax.tree.map(lambda x: split(x, base.row_axis(x)), memory),
    jnp.arange(A),
  )
  zeros = jax.tree.map(jnp.zeros_like, params)
  (grads, nll), memories = jax.lax.scan(body, (zeros, jnp.float32(0)), parts)
  merged = jax.tree.map(
    lambda x, m: merge(m, base.row_axis(x)), memory, memories
  )
  return grads, nll, merged


def train_steps(state, batches, **arguments):
  """K updates, one after the other.

  Args:
    state: a TrainState.
    batches: as the batch of `train_step`, each array with an axis K before.
    **arguments: the keyword arguments of `train_step`.

  Returns:
    The TrainState after the last one.
  """
  step = lambda state, batch: (train_step(state, batch, **arguments), None)
  return jax.lax.scan(step, state, batches)[0]


class Built(NamedTuple):
  """What a config makes of training.

  Attributes:
    model: see `models.base`.
    schedule: from `optim.schedule`.
    create: function of nothing to the TrainState before the first step.
    abstract: its shapes; with shardings, if there is a mesh.
    step: from `jit_train_step`, or None without a mesh.
  """

  model: Any
  schedule: Callable
  create: Callable
  abstract: Any
  step: Any


def build(config, vocab_size, mesh):
  """The model, the state and the step of a config.

  Args:
    config: ConfigDict, validated.
    vocab_size: V.
    mesh: from `mesh.make_mesh`; None to ask for shapes alone.
  """
  model = models.build(config.model, vocab_size)
  schedule = optim.schedule(config.optim, config.train.steps)
  optimiser = optim.optimiser(config.optim)
  averager = averaging.averager(config.optim)
  key = jax.random.key(config.seed)
  create = functools.partial(
    state_lib.create,
    model,
    optimiser,
    config.train.batch_size,
    jax.random.fold_in(key, 0),
    averager,
  )
  abstract, step = jax.eval_shape(create), None
  if mesh is not None:
    abstract = state_lib.placed(abstract, mesh)
    step = jit_train_step(
      mesh,
      abstract,
      config.train.steps_per_dispatch,
      model=model,
      optimiser=optimiser,
      schedule=schedule,
      accumulate=config.train.accumulate,
      key=jax.random.fold_in(key, 1),
      averager=averager,
      skip_nonfinite=config.train.nonfinite == 'skip',
    )
  return Built(model, schedule, create, abstract, step)


def jit_train_step(mesh, abstract_state, steps_per_dispatch=1, **arguments):
  """`train_step` compiled for a mesh; the state given to it is used up.

  Args:
    mesh: from `mesh.make_mesh`.
    abstract_state: the TrainState, or its shapes.
    steps_per_dispatch: K; above 1 it is `train_steps` that is compiled.
    **arguments: the keyword arguments of `train_step`.

  Returns:
    A function (state, batch) -> state.
  """
  states = state_lib.shardings(abstract_state, mesh)
  one = steps_per_dispatch == 1

  def step(state, batch):
    with mesh_lib.ambient(mesh):
      return (train_step if one else train_steps)(state, batch, **arguments)

  return jax.jit(
    step,
    in_shardings=(states, mesh_lib.rows(mesh, 0 if one else 1)),
    out_shardings=states,
    donate_argnums=0,
  )
