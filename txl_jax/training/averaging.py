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
average that starts at zero, divided by 1 - d^n as Adam divides its moments.
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from txl_jax.training.optim import Optim

NEVER = 2**31 - 1  # a step that no training reaches


class Average(flax.struct.PyTreeNode):
  """State of an average."""

  params: Any  # like the parameters, float32; zeros before the first
  count: jax.Array  # int32, n, how many are averaged
  start: jax.Array  # int32; the parameters after each later step are averaged


@dataclasses.dataclass(frozen=True)
class Averager:
  """What a config wants to be averaged: the decay d, and a first `start`."""

  decay: float  # 1 is the mean
  start: int

  def init(self, params: Any) -> Average:
    """The Average of no parameters; those given are for their shapes."""
    zeros, start = jax.tree.map(jnp.zeros_like, params), jnp.int32(self.start)
    return Average(zeros, jnp.int32(0), start)

  def update(self, average: Average, params: Any, step: jax.Array) -> Average:
    """The Average after a step that was made after `step` others."""
    on = step >= average.start
    n = average.count + on
    if self.decay < 1:
      log_decay = math.log(self.decay)  # 1 - d^n in float32 would be rounded
      w = math.expm1(log_decay) / jnp.expm1(jnp.maximum(n, 1) * log_decay)
    else:
      w = 1 / jnp.maximum(n, 1)
    w = w.astype(jnp.float32)
    mixed = jax.tree.map(
      lambda a, p: jnp.where(on, a + w * (p - a), a), average.params, params
    )
    return average.replace(params=mixed, count=n)


def averager(config: Optim) -> Averager | None:
  """The Averager of the section `optim` of a config; None is no average."""
  return {
    'off': None,
    'ema': Averager(config.ema_decay, 0),
    'swa': Averager(1.0, config.average_start),
    'nt': Averager(1.0, NEVER),
  }[config.average]


def count(average: Any) -> int:
  """Number of averaged steps; () is no average."""
  return int(average.count) if isinstance(average, Average) else 0


def weights(params: Any, average: Any) -> Any:
  """The parameters to use: the average, once there is one."""
  return average.params if count(average) else params


@dataclasses.dataclass(frozen=True)
class Trigger:
  """Finds the step at which the average of `nt` starts.

  That of the first evaluation whose figure is above the lowest of all that were
  made more than average_patience evaluations before it.
  """

  best: float = math.inf  # lowest figure of those
  recent: list[float] = dataclasses.field(default_factory=list)  # those after
  start: int = NEVER  # the step, once it is found

  def update(self, figure: float, step: int, config: Optim) -> 'Trigger':
    """The state after an evaluation."""
    if self.start != NEVER:
      return self
    start = step if figure > self.best else NEVER
    recent, best = [*self.recent, figure], self.best
    if len(recent) > config.average_patience:
      best = min(best, recent.pop(0))
    return Trigger(best, recent, start)
