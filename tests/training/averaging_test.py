"""Averages against sums over all that was averaged, in float64."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.training import averaging
from txl_jax.training.optim import Optim


def run(averager, values, begin=0):
  """The Average after each of the values, which are made in steps."""
  average = averager.init({'a': jnp.zeros(3), 'b': [jnp.zeros([])]})
  update, out = jax.jit(averager.update), []
  for step, x in enumerate(values, begin):
    params = {'a': jnp.float32(x[:3]), 'b': [jnp.float32(x[3])]}
    average = update(average, params, jnp.int32(step))
    out.append(average)
  return out


def flat(average):
  return np.append(average.params['a'], average.params['b'][0])


def values(n):
  return np.random.default_rng(0).normal(5, 1, [n, 4])


@pytest.mark.parametrize('start', [0, 4, 11, 99])
def test_mean(start):
  averager = averaging.averager(Optim(average='swa', average_start=start))
  assert averager == averaging.Averager(1.0, start)
  x = values(12)
  for step, average in enumerate(run(averager, x), 1):
    assert average.count == max(step - start, 0)
    assert average.start == start
    expected = x[start:step].mean(axis=0) if step > start else np.zeros(4)
    np.testing.assert_allclose(flat(average), expected, rtol=1e-6)


def test_the_step_without_a_trigger_is_beyond_all():
  averager = averaging.averager(Optim(average='nt'))
  assert averager.decay == 1
  for average in run(averager, values(3), begin=2**31 - 4):
    assert average.count == 0 and not flat(average).any()


@pytest.mark.parametrize('decay', [0.01, 0.5, 0.9, 0.9999, 0.999999])
def test_moving_average(decay):
  """The weights of the past fall by the decay with each step, and sum to 1."""
  averager = averaging.averager(Optim(average='ema', ema_decay=decay))
  assert averager.start == 0
  x = values(40)
  for n, average in enumerate(run(averager, x), 1):
    weights = decay ** np.arange(n - 1, -1, -1)
    expected = (weights[:, None] * x[:n]).sum(axis=0) / weights.sum()
    assert average.count == n
    np.testing.assert_allclose(flat(average), expected, rtol=2e-6)


def test_mean_of_many():
  averager = averaging.Averager(1.0, 0)
  average = averager.init({'a': jnp.zeros(4)})
  x = jnp.float32(values(20_000))

  def body(average, step):
    return averager.update(average, {'a': x[step]}, step), None

  average, _ = jax.lax.scan(body, average, jnp.arange(len(x)))
  expected = np.float64(x).mean(axis=0)
  np.testing.assert_allclose(average.params['a'], expected, rtol=1e-5)


def test_nothing_is_averaged_before_the_trigger():
  averager = averaging.averager(Optim(average='nt'))
  x = values(6)
  average = run(averager, x)[-1]
  assert average.count == 0 and average.start == averaging.NEVER
  # The trainer writes the step into the state.
  average = average.replace(start=jnp.int32(7))
  for step in range(6, 12):
    params = {'a': jnp.full(3, step), 'b': [jnp.float32(step)]}
    average = averager.update(average, params, jnp.int32(step))
  assert average.count == 5
  np.testing.assert_allclose(flat(average), np.arange(7, 12).mean())


def test_not_a_number_before_the_start_leaves_no_trace():
  averager = averaging.averager(Optim(average='swa', average_start=1))
  x = values(3)
  x[0] = math.nan
  np.testing.assert_allclose(
    flat(run(averager, x)[-1]), x[1:].mean(axis=0), rtol=1e-6
  )


def test_weights_are_the_average_once_there_is_one():
  params = {'a': jnp.ones(2)}
  assert averaging.averager(Optim()) is None
  assert averaging.weights(params, ()) is params
  averager = averaging.averager(Optim(average='ema'))
  average = averager.init(params)
  assert averaging.count(()) == averaging.count(average) == 0
  assert averaging.weights(params, average) is params
  average = averager.update(average, params, jnp.int32(0))
  assert averaging.count(average) == 1
  assert averaging.weights(params, average) is average.params


def by_the_paper(figures, n):
  """Index of the evaluation that starts the mean: Algorithm 1, NT-ASGD."""
  logs = []
  for t, v in enumerate(figures):
    if t > n and v > min(logs[: t - n]):
      return t
    logs.append(v)
  return None


@pytest.mark.parametrize('n', [0, 1, 2, 5])
def test_trigger(n):
  rng = np.random.default_rng(n)
  config, found = Optim(average='nt', average_patience=n), set()
  for _ in range(60):
    figures = 3 - 0.1 * np.arange(12) + rng.normal(size=12) * rng.random()
    trigger, at = averaging.NTTrigger(), None
    for t, figure in enumerate(figures):
      trigger = trigger.update(float(figure), 10 * t, config)
      # A run that stops here continues with what JSON keeps.
      fields = json.loads(json.dumps(dataclasses.asdict(trigger)))
      assert fields == dataclasses.asdict(trigger)
      trigger = averaging.NTTrigger(**fields)
      if trigger.start != averaging.NEVER and at is None:
        at = t
        assert trigger.start == 10 * t
    assert at == by_the_paper(figures, n)
    assert trigger.start == (averaging.NEVER if at is None else 10 * at)
    found.add(at)
  assert None in found and len(found) > 3


def test_trigger_waits_while_it_gets_better_or_stays():
  trigger, config = averaging.NTTrigger(), Optim(average_patience=1)
  for step, figure in enumerate([3.0, 2.0, 2.5, 2.0, 2.0, 2.0]):
    trigger = trigger.update(figure, step, config)
  assert trigger.start == averaging.NEVER
  assert trigger.update(2.01, 6, config).start == 6
