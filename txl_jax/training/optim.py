"""Optimisers and learning rate schedules."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


def optimiser(config):
  """Clipping, then Adam or SGD, then weight decay; without the learning rate.

  Weight decay is decoupled (Loshchilov and Hutter 2019): weight_decay times
  the parameters that `decays` names is added to the update, so that with the
  learning rate lr a step takes lr weight_decay of each off it.

  Args:
    config: the section `optim` of a config.

  Returns:
    An optax transformation; its updates are to be scaled by -lr. They need
    the parameters where there is weight decay.
  """
  if config.name == 'adam':
    rule = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
  else:
    rule = optax.trace(decay=config.momentum, nesterov=config.nesterov)
  if config.state_dtype == 'bfloat16':
    rule = in_bfloat16(rule)
  if config.weight_decay > 0:
    decay = optax.add_decayed_weights(config.weight_decay, decays)
    rule = optax.chain(rule, decay)
  if config.clip > 0:
    return optax.chain(optax.clip_by_global_norm(config.clip), rule)
  return rule


class Rounded(NamedTuple):
  """State of `in_bfloat16`.

  Attributes:
    count: int32, updates made so far.
    state: of the rule, its float32 arrays in bfloat16.
  """

  count: jax.Array
  state: Any


def in_bfloat16(rule):
  """An optax transformation whose state is kept in bfloat16.

  Each update is computed in float32. Its state is then rounded up or down at
  random, so that it is right on average: rounded to the nearest number, of
  which bfloat16 has 128 between 1 and 2, the second moment of Adam would
  stand still, as it moves by a thousandth in a step. What is drawn depends
  on the count alone, so a run can be repeated, on any number of devices.

  Args:
    rule: an optax transformation with float32 state.
  """

  def wide(x):
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x

  def narrow(count, state):
    key = jax.random.fold_in(jax.random.key(0, impl='threefry2x32'), count)
    leaves, tree = jax.tree.flatten(state)
    for i, x in enumerate(leaves):
      if x.dtype == jnp.float32:
        leaves[i] = _round(x, jax.random.fold_in(key, i))
    return Rounded(count, tree.unflatten(leaves))

  def init(params):
    return narrow(jnp.zeros([], jnp.int32), rule.init(params))

  def update(updates, state, params=None):
    before = jax.tree.map(wide, state.state)
    updates, after = rule.update(updates, before, params)
    return updates, narrow(state.count + 1, after)

  return optax.GradientTransformation(init, update)


def _round(x, key):
  """A float32 array as bfloat16, each number up or down at random.

  The nearer neighbour is the likelier one: the mean is x. A bfloat16 is the
  upper half of a float32, so noise in the lower half carries into it.
  """
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
  upper = ((bits + noise) >> 16).astype(jnp.uint16)
  rounded = jax.lax.bitcast_convert_type(upper, jnp.bfloat16)
  return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def decays(params):
  """Which parameters weight decay acts on: matrices and embeddings.

  Those are the arrays of two and more axes, but for the attention biases u
  and v. Vectors are biases and norm scales.

  Args:
    params: pytree (nested dict) of arrays.

  Returns:
    A pytree of bool.
  """

  def acts(path, x):
    return x.ndim > 1 and 'biases' not in (key.key for key in path)

  return jax.tree_util.tree_map_with_path(acts, params)


def schedule(config, steps):
  """The learning rate as a function of the updates made before.

  With t the update, W the warm-up, lr the peak and f = lr_floor:

    t < W         lr t / W, whatever comes after
    cosine        lr (f + (1 - f) (1 + cos(pi x)) / 2), x = t / steps, or
                  x = (t - W) / (steps - W) if cosine_shifted
    inverse_sqrt  lr / sqrt(t), and lr t / W^1.5 for t < W
    constant      lr; plateau the same, times the scale of `Plateau`

  Args:
    config: the section `optim` of a config.
    steps: of the whole training.

  Returns:
    A function of t, an integer or an array, to a float32 array.
  """
  lr, W, floor = config.lr, config.warmup, config.lr_floor

  def main(t):
    if config.schedule == 'cosine':
      start = W if config.cosine_shifted else 0
      x = jnp.clip((t - start) / max(steps - start, 1), 0.0, 1.0)
      return floor + (1 - floor) * (1 + jnp.cos(math.pi * x)) / 2
    if config.schedule == 'inverse_sqrt':
      return 1 / jnp.sqrt(jnp.maximum(t, 1.0))
    return jnp.ones_like(t)

  def rate(t):
    t = jnp.asarray(t, jnp.float32)
    peak = W**-0.5 if config.schedule == 'inverse_sqrt' and W else 1.0
    return lr * jnp.where(t < W, peak * t / max(W, 1), main(t))

  return rate


@dataclasses.dataclass(frozen=True)
class Plateau:
  """Lowers the rate when evaluation stops getting better.

  Attributes:
    best: lowest figure so far.
    bad: evaluations in a row that were not lower.
    scale: what the learning rate is multiplied by.
  """

  best: float = math.inf
  bad: int = 0
  scale: float = 1.0

  def update(self, figure, config):
    """The state after an evaluation; config is the section `optim`."""
    if figure < self.best:
      return Plateau(figure, 0, self.scale)
    if self.bad + 1 < config.plateau_patience:
      return Plateau(self.best, self.bad + 1, self.scale)
    scale = max(self.scale * config.plateau_factor, config.lr_floor)
    return Plateau(self.best, 0, scale)
