"""Optimisers and learning rate schedules."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from txl_jax.parallel.placement import path_name
from txl_jax.program import target_device
from txl_jax.program.settings import NEVER, OTHER, count, key, size

_decay = functools.partial(count, at_most=0.999999)


@dataclasses.dataclass(frozen=True)
class Optim:
  """The section `optim` of a config."""

  MAY_CHANGE = OTHER

  name: str = key(
    'adam',
    'The optimiser.',
    choices={
      'adam': 'Adam (Kingma and Ba 2015)',
      'sgd': 'gradient descent, with momentum if optim.momentum is above 0',
    },
    may_change=NEVER,
  )
  lr: float = key(2.5e-4, 'Peak learning rate.', above=0)
  lr_table: float = count(
    0.0,
    'Peak learning rate of the embedding tables; 0 is optim.lr. The lowest '
    'rate is that of the other parameters.',
  )
  b1: float = _decay(0.9, 'adam: decay of the first moment.')
  b2: float = _decay(0.999, 'adam: decay of the second moment.')
  eps: float = key(1e-8, 'adam: added to the square root.', above=0)
  momentum: float = _decay(0.0, 'sgd: momentum, the decay of the gradient sum.')
  nesterov: bool = key(False, 'sgd: use Nesterov momentum.')
  state_dtype: str = key(
    'float32',
    'Dtype in which the first moment of adam, or the momentum, is stored.',
    choices={'float32': 'as computed', 'bfloat16': 'half the size'},
    may_change=NEVER,
  )
  clip: float = count(0.25, 'Maximum global norm of the gradient; 0 is off.')
  l2: float = count(
    0.0,
    'L2 penalty: this factor times each parameter (including biases and norm '
    'scales) is added to its clipped gradient.',
  )
  weight_decay: float = count(
    0.0,
    'Decoupled weight decay as in AdamW, scaled by the learning rate: for '
    'matrices and embeddings, not for biases and norm scales.',
  )
  schedule: str = key(
    'cosine',
    'How the learning rate changes; formulas: `training.optim.schedule`.',
    choices={
      'cosine': 'half a cosine down to lr_floor',
      'annealing': "cosine after the warm-up, as PyTorch's CosineAnnealingLR",
      'inverse_sqrt': '1 / sqrt(step)',
      'constant': 'not at all',
      'drop': 'once, at step drop_at',
      'plateau': 'multiplied by plateau_factor after every plateau_patience '
      'evaluations in a row without a new best',
    },
  )
  warmup: int = count(
    0, 'Steps of linear warm-up; 0 is optim.warmup_fraction of train.steps.'
  )
  warmup_fraction: float = count(
    0.0, 'Warm-up as a fraction of train.steps; 0 is none.', at_most=1
  )
  cosine_shifted: bool = key(
    False,
    'Start the cosine after the warm-up (TensorFlow original). If False, it '
    'starts at step 0, and warm-up replaces its beginning (PyTorch original).',
  )
  cosine_end: int = count(
    0, 'cosine and annealing: the step of the lowest rate; 0 is train.steps.'
  )
  lr_floor: float = count(
    0.0,
    'cosine, annealing and plateau: lowest rate, as a fraction of lr.',
    at_most=1,
  )
  plateau_factor: float = key(
    0.5, 'plateau: factor applied to the rate.', above=0, at_most=1
  )
  plateau_patience: int = size(
    1, 'plateau: evaluations without a new best before the rate is lowered.'
  )
  drop_at: int = count(0, 'drop: step of the drop, above 0.')
  drop_factor: float = key(
    0.1,
    'drop: factor applied to the rate from step drop_at on.',
    above=0,
    at_most=1,
  )
  average: str = key(
    'off',
    'Average of the parameters over steps, used for evaluation, generation and '
    'export.',
    choices={
      'off': 'none',
      'ema': 'moving average, bias-corrected',
      'swa': 'mean over all steps after average_start',
      'nt': 'mean over all steps after the first evaluation worse than the '
      'best of those more than average_patience evaluations earlier',
    },
    may_change=NEVER,
  )
  ema_decay: float = key(
    0.999, 'ema: decay of the average.', above=0, at_most=0.999999
  )
  average_start: int = count(
    0,
    'swa: the step, above 0, after which averaging starts.',
    may_change=NEVER,
  )
  average_factor: float = count(
    0.0,
    'swa: from average_start on, hold the rate at this fraction of its value '
    'there; 0 keeps the schedule.',
    at_most=1,
  )
  average_start_epoch: int = count(
    0,
    'swa: the epoch, above 0, after which averaging starts, in place of '
    'average_start.',
    at_most=1_000_000,
    may_change=NEVER,
  )
  average_patience: int = count(5, 'nt: number of evaluations, see average.')

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if self.lr_table and self.lr_table < (lowest := self.lr * self.lr_floor):
      yield 'lr_table', f'0, or at least lr x lr_floor, {lowest:.6g}'


def optimiser(
  config: Optim, steps: int, not_decayed: Sequence[str] = ()
) -> optax.GradientTransformationExtraArgs:
  """Clipping, L2, Adam or SGD, weight decay and rates, as one transformation.

  update(gradients, state, params, step=t, scale=x) returns what is to be added
  to the parameters: -x times their rate, `schedule` at step t of `steps`, times
  the result of the other rules. Embedding tables have their own rate.
  """
  rule = optax.with_extra_args_support(_rule(config, not_decayed))
  rates = schedule(config, steps), schedule(config, steps, table=True)

  def update(gradients, state, params=None, *, step, scale):
    updates, state = rule.update(gradients, state, params)
    main, table = (-(rate(step) * scale) for rate in rates)

    def scaled(path, x):
      return (table if is_table(path) else main) * x

    return jax.tree_util.tree_map_with_path(scaled, updates), state

  return optax.GradientTransformationExtraArgs(
    rule.init,
    update,  # pyright: ignore[reportArgumentType]
  )


def _rule(
  config: Optim, not_decayed: Sequence[str]
) -> optax.GradientTransformation:
  """The chain of an optimiser without its learning rate.

  Weight decay is decoupled (Loshchilov and Hutter 2019): weight_decay times
  each parameter that `decays` selects is added to the update.
  """
  dtype: Any = config.state_dtype
  if config.name == 'adam':
    # The second moment stays float32: it changes by about a thousandth of
    # itself per step, less than bfloat16 resolves.
    rule = optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=dtype)
  else:
    rule = optax.trace(config.momentum, config.nesterov, dtype)
  if config.weight_decay > 0:
    decayed = functools.partial(decays, not_decayed=not_decayed)
    decay = optax.add_decayed_weights(config.weight_decay, decayed)
    rule = optax.chain(rule, decay)
  if config.l2 > 0:
    rule = optax.chain(optax.add_decayed_weights(config.l2), rule)
  if config.clip > 0:
    return optax.chain(_clipped(config.clip), rule)
  return rule


def norm(tree: Any) -> jax.Array:
  """`optax.tree.norm`, in fewer kernels where one GPU has all of float32."""
  leaves = jax.tree.leaves(tree)
  on_gpu = target_device.device().platform == 'gpu'
  alone = on_gpu and jax.sharding.get_abstract_mesh().size <= 1
  if not alone or {x.dtype.name for x in leaves} != {'float32'}:
    return optax.tree.norm(tree)
  # XLA makes two kernels of the sum over a whole array, but few of sums over
  # the last axes of many, see `placement.for_update`.
  squares = (jnp.square(jnp.atleast_1d(x)) for x in leaves)
  rows = [jnp.sum(x, axis=-1).ravel() for x in squares]
  rows = jax.lax.optimization_barrier(jnp.concatenate(rows))
  return jnp.sqrt(jnp.sum(rows))


def _clipped(most):
  """`optax.clip_by_global_norm`, by this `norm`."""

  def update(updates, state, params=None):
    del params
    size = norm(updates)

    def clip(x):
      return jax.lax.select(size < most, x, (x / size.astype(x.dtype)) * most)

    return jax.tree.map(clip, updates), state

  return optax.GradientTransformation(optax.init_empty_state, update)


def decays(params: Any, not_decayed: Sequence[str] = ()) -> Any:
  """Pytree of bool: the parameters to which weight decay applies.

  Matrices and embeddings (two or more axes) decay, unless the end of their path
  matches one of the model's regular expressions `not_decayed`.
  """

  def acts(path, x):
    ends = (f'(^|/)({pattern})$' for pattern in not_decayed)
    return x.ndim > 1 and not any(re.search(e, path_name(path)) for e in ends)

  return jax.tree_util.tree_map_with_path(acts, params)


def is_table(path: tuple[Any, ...]) -> bool:
  """Whether a parameter is an embedding table, with the rate `lr_table`."""
  return bool(re.search(r'(^|/)vocabulary/table(_\d+)?$', path_name(path)))


def schedule(
  config: Optim, steps: int, table: bool = False
) -> Callable[[Any], jax.Array]:
  """Returns the learning rate (float32) as a function of the step t.

  t is the number of updates already made. With W = warmup, or warmup_fraction
  of steps (their total number), E = cosine_end or steps, lr the peak rate and
  f = lr_floor; for the tables, lr = lr_table and f is scaled so that the lowest
  rate is the same:

    t < W         lr t / W, in every schedule but inverse_sqrt
    cosine        lr (f + (1 - f) (1 + cos(pi x)) / 2), x = t / E, or
                  x = (t - W) / (E - W) if cosine_shifted
    annealing     lr (f + (g - f) (1 + cos(pi x)) / 2), g = (W - 1) / W and
                  x = (t - W + 1) / (E - W); g = 1 if W <= 1, x = t / E if
                  W = 0. All of it, warm-up too, with t + 1 in place of t
    inverse_sqrt  lr / sqrt(t), and lr t / W^1.5 for t < W
    constant      lr; also plateau, which the step scales by `Plateau.scale`
    drop          lr for t < drop_at, then lr drop_factor

  With average_factor, the rate is constant from average_start on: that factor
  times the rate at average_start. optax's cosine is not used, because near the
  end of 400,000 steps its relative error is up to 4e-3.
  """
  W = config.warmup or round(config.warmup_fraction * steps)
  lr, floor = config.lr, config.lr_floor
  if table and config.lr_table:
    lr, floor = config.lr_table, floor * lr / config.lr_table
  end = config.cosine_end or steps
  from_one = config.schedule == 'annealing'

  def main(t):
    if config.schedule in ('cosine', 'annealing'):
      start = W if config.cosine_shifted or from_one else 0
      n = t - start
      top = 1
      if from_one and W:
        n, top = n + 1, max(W - 1, 1) / W
      x = jnp.minimum(n / max(end - start, 1), 1.0)
      return floor + (top - floor) * (1 + jnp.cos(math.pi * x)) / 2
    if config.schedule == 'inverse_sqrt':
      return 1 / jnp.sqrt(jnp.maximum(t, 1.0))
    if config.schedule == 'drop':
      return jnp.where(t < config.drop_at, 1.0, config.drop_factor)
    return jnp.ones_like(t)

  def rate(t):
    t = jnp.asarray(t, jnp.float32)
    t = t + 1 if from_one else t
    peak = W**-0.5 if config.schedule == 'inverse_sqrt' and W else 1.0
    return lr * jnp.where(t < W, peak * t / max(W, 1), main(t))

  def lowered(t):
    start, factor = config.average_start, config.average_factor
    return jnp.where(t < start, rate(t), factor * rate(start))

  return lowered if config.average == 'swa' and config.average_factor else rate


@dataclasses.dataclass(frozen=True)
class Plateau:
  """Lowers the learning rate when the validation loss stops improving."""

  best: float = math.inf  # lowest validation nll so far
  bad: int = 0  # evaluations since the last new best or cut
  scale: float = 1.0  # factor of the learning rate

  def update(self, nll: float, config: Optim) -> 'Plateau':
    """Returns the state after an evaluation with mean nll `nll`."""
    bad = 0 if nll < self.best else self.bad + 1
    scale = self.scale
    if bad >= config.plateau_patience:
      bad = 0
      scale = max(scale * config.plateau_factor, config.lr_floor)
    return Plateau(min(self.best, nll), bad, scale)  # a NaN is never best
