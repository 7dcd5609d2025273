"""Steps against numpy: a toy model by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.small import B, V, jitted, make_batch, sgd
from txl_jax.models import base
from txl_jax.training import averaging
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

AUX, STEPS = 0.3, 6
close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6)


class Toy:
  """nll = (w[x] m - y)^2, m = 1 + the memory's sum of w[x] / 8.

  Its aux, a mean of w[x] over scored tokens and one over those that follow
  another, ends with the training. Its memory also keeps the number of tokens
  seen and a draw of the key.
  """

  SHARDING = (('w', ()),)

  def init(self, keys, *args, **kwargs):
    return {'params': {'w': jax.random.normal(keys['params'], [V])}}

  def init_memory(self, batch_size):
    return {
      'sum': jnp.zeros([1, batch_size, 1]),
      'count': jnp.zeros([batch_size], jnp.int32),
      'draw': jnp.zeros([batch_size]),
    }

  def row_axes(self):
    return {'sum': 1, 'count': 0, 'draw': 0}

  def reset_memory(self, memory, rows):
    return {
      'sum': jnp.where(rows[:, None], 0, memory['sum']),
      'count': jnp.where(rows, 0, memory['count']),
      'draw': memory['draw'],
    }

  def apply(self, variables, x, y, memory, *, train, lengths, progress, rngs):
    assert train and progress.shape == () and progress.dtype == jnp.float32
    w = variables['params']['w'][x]
    m = 1 + memory['sum'][0] / 8
    nll = jnp.where(y >= 0, (w * m - y) ** 2, 0.0)
    n = jnp.full([len(x)], x.shape[1]) if lengths is None else lengths
    read = jnp.where(jnp.arange(x.shape[1]) < n[:, None], w, 0).sum(1)
    memory = {
      'sum': memory['sum'] + jax.lax.stop_gradient(read)[:, None],
      'count': memory['count'] + n,
      'draw': jax.random.uniform(rngs['dropout'], [len(x)]),
    }
    sums = (
      jnp.sum(w * (y >= 0)),
      jnp.sum((w * (y >= 0))[:, 1:] * (y[:, :-1] >= 0)),
    )
    aux = AUX * (1 - progress) * jnp.stack(sums)
    return base.LMOutput(nll, memory, aux)


def toy_by_hand(w, batches, lrs):
  """Plain gradient descent on the toy in float64, row by row."""
  sums, counts = np.zeros(B), np.zeros(B, int)
  log = []
  for step, (batch, lr) in enumerate(zip(batches, lrs, strict=True)):
    sums[batch['reset']], counts[batch['reset']] = 0, 0
    nll, grad, tokens = 0.0, np.zeros(V), (batch['targets'] >= 0).sum()
    pairs = [
      (a >= 0) & (b >= 0)
      for a, b in zip(batch['targets'].T, batch['targets'].T[1:])
    ]
    pairs, aux = np.sum(pairs), AUX * (1 - step / STEPS)
    read = np.zeros(B)
    for b in range(B):
      m = 1 + sums[b] / 8
      for t, (x, y) in enumerate(zip(batch['inputs'][b], batch['targets'][b])):
        if y >= 0:
          nll += (w[x] * m - y) ** 2
          grad[x] += 2 * (w[x] * m - y) * m / tokens + aux / tokens
          if t and batch['targets'][b, t - 1] >= 0:
            grad[x] += aux / pairs
        if t < batch['lengths'][b]:
          read[b] += w[x]
    sums, counts = sums + read, counts + batch['lengths']
    w = w - lr * grad
    log.append((nll, tokens, np.sqrt((grad**2).sum())))
  return w, sums, counts, np.array(log)


@functools.cache
def toy(devices=1, accumulate=1, seed=0, averager=None, half=False):
  """The jitted step of the toy, and a function that makes its start."""
  model, optimiser = Toy(), sgd(lambda t: 0.2 / (1 + t), clip=0.0)
  state = state_lib.create(model, optimiser, B, jax.random.key(1), averager)
  options: dict = dict(optimiser=optimiser, key=jax.random.key(seed))
  options |= dict(steps=STEPS, accumulate=accumulate, averager=averager)
  return jitted(state, devices, model, half_loss=half, **options)


def test_any_optimiser_of_optax():
  """It ignores step and scale: its rate is its own."""
  batch = make_batch(0, padded=True)
  key, model = jax.random.key(1), Toy()
  new = []
  for optimiser in sgd(lambda t: 0.2, clip=0.0), optax.sgd(0.2):
    state = state_lib.create(model, optimiser, B, key)
    options: dict = dict(model=model, key=key, steps=STEPS, accumulate=1)
    new.append(
      step_lib.train_step(state, batch, optimiser=optimiser, **options)
    )
  assert new[0].sums.token_count() == (batch['targets'] >= 0).sum()
  one, other = (jax.tree.leaves(x.params) for x in new)
  jax.tree.map(np.testing.assert_array_equal, one, other)
  assert (one[0] != jax.tree.leaves(state.params)[0]).any()


@pytest.mark.default_cases('1-4')
@pytest.mark.parametrize('accumulate', [1, 2, 4])
@pytest.mark.parametrize('devices', [1, 8])
def test_train_step_by_hand(devices, accumulate):
  step, start = toy(devices, accumulate)
  some = np.arange(B) % 3 == 0
  resets = [True, False, some, False, True]
  batches = [
    make_batch(seed, padded=True, reset=reset)
    for seed, reset in enumerate(resets)
  ]
  state = start()
  scale = 0.5
  state = state.replace(lr_scale=scale * state.lr_scale)
  w = np.float64(state.params['w'])
  for batch in batches:
    state = step(state, batch)
  lrs = [scale * 0.2 / (1 + t) for t in range(5)]
  w, sums, counts, log = toy_by_hand(w, batches, lrs)
  close(state.params['w'], w)
  close(state.memory['sum'][0, :, 0], sums)
  np.testing.assert_array_equal(state.memory['count'], counts)
  nll, tokens, norms = log.sum(axis=0)
  close(state.sums.nll, nll)
  close(state.sums.grad_norm, norms)
  assert state.sums.token_count() == tokens
  assert state.sums.steps == state.step == 5
  assert state.sums.bad_step == -1
  assert state.lr_scale == scale


@pytest.mark.thorough
@pytest.mark.parametrize('devices, accumulate', [(1, 1), (8, 2)])
def test_half_loss_by_hand(devices, accumulate):
  """Rows of any length, each scored from its own middle on."""
  step, start = toy(devices, accumulate, half=True)
  batches = [
    make_batch(seed, width=7, padded=seed != 1, reset=seed == 0)
    for seed in range(3)
  ]
  state, halves = start(), []
  w = np.float64(state.params['w'])
  for batch in batches:
    state = step(state, batch)
    half = batch['targets'].copy()
    for row in half:
      end = max([t + 1 for t, y in enumerate(row) if y >= 0], default=0)
      row[: end // 2] = -1
    lengths = np.full(B, 7) if batch['lengths'] is None else batch['lengths']
    halves.append(batch | dict(targets=half, lengths=lengths))
  lrs = [0.2 / (1 + t) for t in range(3)]
  w, sums, _, log = toy_by_hand(w, halves, lrs)
  close(state.params['w'], w)
  close(state.memory['sum'][0, :, 0], sums)
  nll, tokens, _ = log.sum(axis=0)
  close(state.sums.nll, nll)
  assert state.sums.token_count() == tokens
  assert tokens < 0.7 * sum((b['targets'] >= 0).sum() for b in batches)


@pytest.mark.default_cases('1.0-1')
@pytest.mark.parametrize('devices', [1, 8])
@pytest.mark.parametrize('decay', [1.0, 0.8])
def test_average_by_hand(devices, decay):
  step, start = toy(devices, 2, averager=averaging.Averager(decay, 1))
  batches = [make_batch(seed, padded=True, reset=True) for seed in range(4)]
  state = start()
  w = np.float64(state.params['w'])
  for batch in batches:
    given, state = state, step(state, batch)
    assert all(x.is_deleted() for x in jax.tree.leaves(given.average))
  lrs = [0.2 / (1 + t) for t in range(4)]
  steps_ = [toy_by_hand(w, batches[:n], lrs[:n])[0] for n in (2, 3, 4)]
  weights = decay ** np.array([2, 1, 0])
  expected = (weights[:, None] * steps_).sum(axis=0) / weights.sum()
  close(state.average.params['w'], expected)
  close(state.params['w'], steps_[-1])
  assert state.average.count == 3


def draws(count, **changes):
  step, start = toy(**changes)
  state, out = start(), []
  for n in range(count):
    state = step(state, make_batch(n, padded=True))
    out.append(np.asarray(state.memory['draw']))
  return out


@pytest.mark.thorough
def test_keys_differ_by_step_part_and_seed():
  first, second = draws(2, accumulate=2)
  # Rows 0, 2, 4, … are the first part: each part draws with its own key.
  fold, draw = jax.random.fold_in, jax.random.uniform
  for step, x in enumerate((first, second)):
    key = fold(jax.random.key(0), step)
    for a in range(2):
      np.testing.assert_array_equal(x[a::2], draw(fold(key, a), [B // 2]))
  np.testing.assert_array_equal(draws(2)[1], draw(key, [B]))
  other = draws(1, accumulate=2, seed=7)[0]
  assert not np.intersect1d(other, np.concatenate([first, second])).size
  np.testing.assert_array_equal(draws(1, accumulate=2)[0], first)
