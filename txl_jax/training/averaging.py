"""Averages of the parameters over training steps.

The key optim.average selects one of

  ema  exponential moving average, from the first step on
  swa  mean over all steps after average_start
       (Izmailov et al. 2018, averaged at every step)
  nt   mean over all steps after the validation loss stops improving
       (NT-ASGD: Merity et al. 2018, Algorithm 1)

All follow one recurrence. With p_n the n-th averaged parameters and decay d,

  a_n = a_(n-1) + w_n (p_n - a_(n-1)),  w_n = (1 - d) / (1 - d^n)

In the limit d = 1, w_n = 1 / n and a_n is the mean. For d < 1, a_n is the
exponential moving average with Adam's bias correction (division by 1 - d^n).
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

  params: Any  # a_n, a pytree like the parameters, float32; zeros if n = 0
  count: jax.Array  # int32, n, number of averaged steps
  start: jax.Array  # int32; all later steps are averaged


@dataclasses.dataclass(frozen=True)
class Averager:
  """Update rule of an average: its decay d and the initial `start`."""

  decay: float  # 1 is the mean
  start: int

  def init(self, params: Any) -> Average:
    """An empty Average with the shapes of the parameters."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    start = jnp.int32(self.start)
    return Average(zeros, jnp.int32(0), start)

  def update(self, average: Average, params: Any, step: jax.Array) -> Average:
    """Adds the parameters after step `step` (from 0) to the average."""
    active = step >= average.start
    n = average.count + active.astype(jnp.int32)
    if self.decay < 1:
      log_decay = math.log(self.decay)  # for expm1: 1 - d^n loses digits
      exponent = jnp.maximum(n, 1).astype(float) * log_decay
      w = math.expm1(log_decay) / jnp.expm1(exponent)
    else:
      w = 1 / jnp.maximum(n, 1)
    w = w.astype(jnp.float32)
    mixed = jax.tree.map(
      lambda a, p: jnp.where(active, a + w * (p - a), a), average.params, params
    )
    return average.replace(params=mixed, count=n)


def averager(config: Optim) -> Averager | None:
  """The Averager of a section `optim`; None if average is 'off'."""
  return {
    'off': None,
    'ema': Averager(config.ema_decay, 0),
    'swa': Averager(1.0, config.average_start),
    'nt': Averager(1.0, NEVER),
  }[config.average]


def count(average: Any) -> int:
  """Number of averaged steps; 0 for (), the state without an average."""
  return int(average.count) if isinstance(average, Average) else 0


def weights(params: Any, average: Any) -> Any:
  """The average once it has begun, else the parameters."""
  return average.params if count(average) else params


@dataclasses.dataclass(frozen=True)
class NTTrigger:
  """Finds the step at which averaging starts with average = 'nt'.

  Averaging starts at the first evaluation whose nll exceeds the lowest nll
  among all evaluations more than average_patience evaluations earlier.
  """

  best: float = math.inf  # lowest nll of the evaluations before `recent`
  recent: list[float] = dataclasses.field(default_factory=list)  # newest nlls
  start: int = NEVER  # the step, once known

  def update(self, nll: float, step: int, config: Optim) -> 'NTTrigger':
    """Returns the state after an evaluation with mean nll `nll`."""
    if self.start != NEVER:
      return self
    start = step if nll > self.best else NEVER
    recent = [*self.recent, nll]
    best = self.best
    if len(recent) > config.average_patience:
      best = min(best, recent.pop(0))
    return NTTrigger(best, recent, start)
