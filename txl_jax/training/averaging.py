"""Averages of the parameters over the steps of training.

The ways, by the option `average`:

  ema  exponential moving average, from the first step on
  swa  mean of the parameters after every step beyond average_start
       (Izmailov et al. 2018, averaged at every step)
  nt   the same beyond the step at which evaluation stopped getting better
       (NT-ASGD: Merity et al. 2018, Algorithm 1)

With p_n the n-th parameters that are averaged and d the decay, all are

  a_n = a_(n-1) + w_n (p_n - a_(n-1)),  w_n = (1 - d) / (1 - d^n)

with w_n = 1 / n, the mean, in the limit d = 1. For d < 1 it is the moving
average that starts at zero, divided by 1 - d^n as Adam divides its moments:
no trace of the start is in it.
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from txl_jax.training.optim import Optim

NEVER = 2**31 - 1  # a step that no training reaches


@flax.struct.dataclass
class Average:
  """State of an average.

  Attributes:
    params: like the parameters, float32; zeros before the first.
    count: int32, n, how many are averaged.
    start: int32; the parameters after each later step are averaged.
  """

  params: Any
  count: jax.Array
  start: jax.Array


@dataclasses.dataclass(frozen=True)
class Averager:
  """What a config wants to be averaged.

  Attributes:
    decay: d, 1 is the mean.
    start: of a new `Average`.
  """

  decay: float
  start: int

  def init(self, params):
    """The Average before the first step."""
    return empty(params, self.start)

  def update(self, average, params, step):
    """The Average after a step.

    Args:
      average: an Average.
      params: the parameters after the step.
      step: int32, steps made before this one.
    """
    on = step >= average.start
    n = average.count + on
    if self.decay < 1:
      log_decay = math.log(self.decay)  # 1 - d^n in float32 would be rounded
      w = math.expm1(log_decay) / jnp.expm1(jnp.maximum(n, 1) * log_decay)
    else:
      w = 1 / jnp.maximum(n, 1)
    w = w.astype(jnp.float32)
    mix = lambda a, p: jnp.where(on, a + w * (p - a), a)
    mixed = jax.tree.map(mix, average.params, params)
    return average.replace(params=mixed, count=n)


def empty(params, start=NEVER):
  """The Average of no parameters; those given are for their shapes."""
  return Average(
    params=jax.tree.map(jnp.zeros_like, params),
    count=jnp.zeros([], jnp.int32),
    start=jnp.full([], start, jnp.int32),
  )


def averager(config: Optim) -> Averager | None:
  """The Averager of the section `optim` of a config; None is no average."""
  if config.average == 'off':
    return None
  if config.average == 'ema':
    return Averager(config.ema_decay, 0)
  return Averager(
    1.0, config.average_start if config.average == 'swa' else NEVER
  )


def count(average):
  """How many parameters are averaged, an int; () is no average."""
  return int(average.count) if isinstance(average, Average) else 0


def weights(params, average):
  """What a model is to be used with: the average, once there is one.

  Args:
    params: the parameters of the last step.
    average: an Average of them, or ().
  """
  return average.params if count(average) else params


@dataclasses.dataclass(frozen=True)
class Trigger:
  """Finds the step at which the average of `nt` starts.

  It is that of the first evaluation whose figure is above the lowest of all
  that were made more than average_patience evaluations before it.

  Attributes:
    best: lowest figure of those.
    recent: the last average_patience figures, oldest first.
    start: the step, NEVER until it is found.
  """

  best: float = math.inf
  recent: list[float] = dataclasses.field(default_factory=list)
  start: int = NEVER

  def update(self, figure: float, step: int, config: Optim) -> 'Trigger':
    """The state after an evaluation; config is the section `optim`."""
    if self.start != NEVER:
      return self
    start = step if figure > self.best else NEVER
    recent, best = [*self.recent, figure], self.best
    if len(recent) > config.average_patience:
      best = min(best, recent.pop(0))
    return Trigger(best, recent, start)
