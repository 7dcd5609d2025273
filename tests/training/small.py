"""Small batches and what else the tests of training steps share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from txl_jax.configs import common
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.training import optim
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

V, B, T = 11, 16, 4
FIELDS = dict(name='transformer_xl', n_layer=2, d_model=8, n_head=2, d_head=3)
FIELDS |= dict(d_ff=10, mem_len=4)


def mesh_of(devices):
  """The mesh of the first devices, all of them for data."""
  return mesh_lib.make_mesh(devices=jax.devices()[:devices])


def fresh(state, mesh, model):
  """A copy on the mesh, to be given away."""
  copy = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
  return jax.device_put(copy, state_lib.shardings(copy, mesh, model))


def jitted(state, devices, model, **options):
  """The step of a model on devices, and a function that makes its start."""
  mesh = mesh_of(devices)
  abstract = jax.eval_shape(lambda: state)
  step = step_lib.jit_train_step(mesh, abstract, model=model, **options)
  rows = placement.by_rows(mesh)

  def call(state, batch):
    return step(state, jax.device_put(batch, rows))

  return call, functools.partial(fresh, state, mesh, model)


def kind(tree):
  """Shapes and dtypes."""
  return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def make_batch(seed, width=T, padded=False, reset=False):
  """What a step reads, B rows; padded rows are of any length."""
  rng = np.random.default_rng(seed)
  inputs, targets = rng.integers(0, V, [2, B, width], np.int32)
  targets[rng.random([B, width]) < 0.3] = -1
  lengths = None
  if padded:
    lengths = rng.integers(0, width + 1, [B], np.int32)
    targets[np.arange(width) >= lengths[:, None]] = -1
  reset = np.full([B], reset) if isinstance(reset, bool) else reset
  return dict(inputs=inputs, targets=targets, lengths=lengths, reset=reset)


def sgd(rate=lambda t: 0.5, **changes):
  """Gradient descent at a rate, with changes to the section `optim`."""
  config = common.get_config().optim
  config.update(dict(name='sgd', lr=1.0, schedule='constant', **changes))
  rule = optim.optimiser(config, 10)

  def update(gradients, state, params, *, step, scale):
    more = dict(step=step, scale=scale * rate(step))
    return rule.update(gradients, state, params, **more)

  return optax.GradientTransformationExtraArgs(rule.init, update)
