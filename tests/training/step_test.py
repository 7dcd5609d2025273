"""Steps against numpy: a toy model by hand, Transformer-XL by `direct`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from tests import direct
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import averaging, optim
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

V, B, T = 11, 16, 4
AUX = 0.3


def mesh_of(devices):
  devices = jax.devices()[:devices]
  return mesh_lib.make_mesh(devices=devices)


def fresh(state, mesh):
  """A copy on the mesh, to be given away."""
  copy = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
  return jax.device_put(copy, state_lib.shardings(copy, mesh))


def make_batch(seed, width=T, padded=False, reset=False):
  rng = np.random.default_rng(seed)
  inputs, targets = rng.integers(0, V, [2, B, width], np.int32)
  targets[rng.random([B, width]) < 0.3] = -1
  lengths = None
  if padded:
    lengths = rng.integers(0, width + 1, [B], np.int32)
    targets[np.arange(width) >= lengths[:, None]] = -1
  reset = np.full([B], reset) if isinstance(reset, bool) else reset
  return dict(inputs=inputs, targets=targets, lengths=lengths, reset=reset)


def per_step(states):
  """[(nll, tokens)] of consecutive states."""
  sums = [(float(s.sums.nll), int(s.sums.tokens)) for s in states]
  return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(sums)]


class Toy:
  """nll = (w[x] m - y)^2, m = 1 + the memory's sum of w[x] / 8.

  Its memory also keeps the number of tokens seen and a draw of the key.
  """

  vocab_size = V

  def init(self, key, *args, **kwargs):
    return {'params': {'w': jax.random.normal(key, [V])}}

  def init_memory(self, batch_size):
    return {
      'sum': jnp.zeros([1, batch_size, 1]),
      'count': jnp.zeros([batch_size], jnp.int32),
      'draw': jnp.zeros([batch_size]),
    }

  def reset_memory(self, memory, rows):
    return {
      'sum': jnp.where(rows[:, None], 0, memory['sum']),
      'count': jnp.where(rows, 0, memory['count']),
      'draw': memory['draw'],
    }

  def apply(self, variables, x, y, memory, *, train, lengths, rngs):
    assert train
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
    return base.LMOutput(nll, memory, AUX * w[:, 0].mean())


def toy_by_hand(w, batches, lrs):
  """Plain gradient descent on the toy in float64, row by row."""
  sums, counts = np.zeros(B), np.zeros(B, int)
  log = []
  for batch, lr in zip(batches, lrs, strict=True):
    sums[batch['reset']], counts[batch['reset']] = 0, 0
    nll, grad, tokens = 0.0, np.zeros(V), (batch['targets'] >= 0).sum()
    read = np.zeros(B)
    for b in range(B):
      m = 1 + sums[b] / 8
      for t, (x, y) in enumerate(zip(batch['inputs'][b], batch['targets'][b])):
        if y >= 0:
          nll += (w[x] * m - y) ** 2
          grad[x] += 2 * (w[x] * m - y) * m / tokens
        if t < batch['lengths'][b]:
          read[b] += w[x]
      grad[batch['inputs'][b][0]] += AUX / B
    sums, counts = sums + read, counts + batch['lengths']
    w = w - lr * grad
    log.append((nll, tokens, np.sqrt((grad**2).sum())))
  return w, sums, counts, np.array(log)


def sgd(**changes):
  config = common.get_config().optim
  config.update(dict(name='sgd', **changes))
  return optim.optimiser(config)


@functools.cache
def toy(devices=1, accumulate=1, seed=0, averager=None, K=1):
  """The jitted step of the toy, and a function that makes its start."""
  model, optimiser, mesh = Toy(), sgd(clip=0.0), mesh_of(devices)
  state = state_lib.create(model, optimiser, B, jax.random.key(1), averager)
  step = step_lib.jit_train_step(
    mesh,
    jax.eval_shape(lambda: state),
    K,
    model=model,
    optimiser=optimiser,
    schedule=lambda t: 0.2 / (1 + t),
    accumulate=accumulate,
    key=jax.random.key(seed),
    averager=averager,
  )
  start = functools.partial(fresh, state, mesh)
  axis = 0 if K == 1 else 1
  rows = mesh_lib.rows(mesh, axis)
  call = lambda state, batch: step(state, jax.device_put(batch, rows))
  return call, start


@pytest.mark.parametrize(
  'accumulate, K', [(1, 1), (2, 1), (4, 1), (1, 5), (2, 5)]
)
@pytest.mark.parametrize('devices', [1, 8])
def test_train_step_by_hand(devices, accumulate, K):
  step, start = toy(devices, accumulate, K=K)
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
  together = jax.tree.map(lambda *x: np.stack(x), *batches)
  for batch in batches if K == 1 else [together]:
    state = step(state, batch)
  lrs = [scale * 0.2 / (1 + t) for t in range(5)]
  w, sums, counts, log = toy_by_hand(w, batches, lrs)
  close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6)
  close(state.params['w'], w)
  close(state.memory['sum'][0, :, 0], sums)
  np.testing.assert_array_equal(state.memory['count'], counts)
  nll, tokens, norms = log.sum(axis=0)
  close(state.sums.nll, nll)
  close(state.sums.grad_norm, norms)
  assert state.sums.tokens == tokens
  assert state.sums.steps == state.step == 5
  assert state.sums.bad_step == -1
  assert state.lr_scale == scale


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
  close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6)
  close(state.average.params['w'], expected)
  close(state.params['w'], steps_[-1])
  assert state.average.count == 3


def test_bad_step_is_the_first_that_is_not_finite():
  step, start = toy()
  state = start()
  for n in range(5):
    if n == 2:
      w = state.params['w'].at[3].set(np.nan)
      state = state.replace(params={'w': w})
    state = step(state, make_batch(n, padded=True))
    assert state.sums.bad_step == (-1 if n < 2 else 2)
  assert state.sums.steps == 5


def test_steps_of_one_call_have_keys_of_their_own():
  batches = [make_batch(0) for _ in range(3)]
  step, start = toy()
  state = start()
  for batch in batches:
    state = step(state, batch)
  together = jax.tree.map(lambda *x: np.stack(x), *batches)
  step, start = toy(K=3)
  draw = step(start(), together).memory['draw']
  np.testing.assert_array_equal(draw, state.memory['draw'])


def draws(count, **changes):
  step, start = toy(**changes)
  state, out = start(), []
  for n in range(count):
    state = step(state, make_batch(n, padded=True))
    out.append(np.asarray(state.memory['draw']))
  return out


def test_keys_differ_by_step_part_and_seed():
  first, second = draws(2, accumulate=2)
  # Rows 0, 2, 4, … are the first part: each part draws with its own key.
  parts = [x[a::2] for x in (first, second) for a in range(2)]
  assert len({part[0] for part in parts}) == 4
  other = draws(1, accumulate=2, seed=7)[0]
  assert not np.intersect1d(other, np.concatenate([first, second])).size
  np.testing.assert_array_equal(draws(1, accumulate=2)[0], first)


def test_a_step_given_its_state_anew_repeats_itself():
  # Nothing but the state tells a step where it is.
  step, start = toy()
  state = start()
  for n in range(2):
    state = step(state, make_batch(n, padded=True))
  host = jax.device_get(state)
  a = step(state, make_batch(2, padded=True))
  b = step(fresh(host, mesh_of(1)), make_batch(2, padded=True))
  jax.tree.map(np.testing.assert_array_equal, a, b)


# Transformer-XL

FIELDS = dict(
  name='transformer_xl',
  n_layer=2,
  d_model=8,
  n_head=2,
  d_head=3,
  d_ff=10,
  mem_len=4,
)


def transformer(**changes):
  return models.build(FIELDS, V, **changes)


@functools.cache
def weights():
  """float64, large enough that everything matters."""
  return direct.random_params(transformer())


@functools.cache
def xl(devices=1, accumulate=1, **changes):
  model = transformer(**changes)
  optimiser, mesh = sgd(clip=0.25, momentum=0.9), mesh_of(devices)
  params = jax.tree.map(jnp.float32, weights())
  abstract = jax.eval_shape(
    lambda: state_lib.create(model, optimiser, B, jax.random.key(0))
  )
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract)
  state = state.replace(
    params=params,
    memory=model.init_memory(B),
    lr_scale=jnp.float32(1),
    sums=state.sums.replace(bad_step=jnp.int32(-1)),
  )
  step = step_lib.jit_train_step(
    mesh,
    abstract,
    model=model,
    optimiser=optimiser,
    schedule=lambda t: 0.5,
    accumulate=accumulate,
    key=jax.random.key(0),
  )
  start = functools.partial(fresh, state, mesh)
  rows = mesh_lib.rows(mesh)
  return lambda state, batch: step(state, jax.device_put(batch, rows)), start


OTHER = [(1, 4), (8, 2)]  # devices, parts


@functools.cache
def trained(devices, accumulate):
  """Sums after each of four steps, and the state after them, on the host."""
  step, start = xl(devices, accumulate)
  states = [start()]
  sums = [jax.device_get(states[0])]
  for n, reset in enumerate([True, False, np.arange(B) > 4, False]):
    states = [step(states[0], make_batch(n, reset=reset))]
    sums.append(jax.device_get(states[0]))
  return per_step(sums), sums[-1]


@pytest.mark.parametrize('devices, accumulate', OTHER)
def test_parts_and_devices_change_nothing(devices, accumulate):
  expected_log, expected = trained(1, 1)
  log, state = trained(devices, accumulate)
  np.testing.assert_allclose(log, expected_log, rtol=2e-6)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
  jax.tree.map(close, state, expected)
  # The steps were no small ones.
  change = state.params['vocabulary']['table'] - np.float32(
    weights()['vocabulary']['table']
  )
  assert np.abs(change).max() > 0.01


@pytest.mark.parametrize(
  'changes',
  [
    dict(dropout=0.5),
    pytest.param(
      dict(dropout_embed=0.5, locked_dropout=True), marks=pytest.mark.slow
    ),
    pytest.param(dict(word_dropout=0.5), marks=pytest.mark.slow),
  ],
)
def test_devices_share_one_dropout_mask(changes):
  losses = []
  for devices in 1, 8:
    step, start = xl(devices, **changes)
    losses.append(float(step(start(), make_batch(0)).sums.nll))
  step, start = xl()
  plain = float(step(start(), make_batch(0)).sums.nll)
  np.testing.assert_allclose(*losses, rtol=2e-6)
  assert abs(losses[0] - plain) > 1e-3 * plain


@pytest.mark.parametrize('devices, accumulate', OTHER)
def test_the_state_is_used_up_and_stays_where_it_was(devices, accumulate):
  step, start = xl(devices, accumulate)
  state = start()
  new = step(state, make_batch(0))
  assert all(x.is_deleted() for x in jax.tree.leaves(state))
  expected = state_lib.shardings(new, mesh_of(devices))
  pairs = zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True)
  assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in pairs)


def scored_by_hand(params, segments, model=None):
  """Nll [B, T] of each (inputs, targets, lengths, reset), and the memories.

  Rows one by one, each with only its real tokens.
  """
  model = model or transformer()
  rows = len(segments[0][0])
  memories = [direct.init_memory(model)] * rows
  out = []
  for inputs, targets, lengths, reset in segments:
    nll = np.zeros(inputs.shape)
    for b in range(rows):
      if reset[b]:
        memories[b] = direct.init_memory(model)
      n = inputs.shape[1] if lengths is None else lengths[b]
      if not n:
        continue
      logits, memories[b] = direct.segment(
        model, params, inputs[b, :n], memories[b]
      )
      at = np.flatnonzero(targets[b, :n] >= 0)
      nll[b, at] = direct.nll(logits[at], targets[b, at]) if at.size else 0
    out.append(nll)
  return out, memories


def assert_memory(memory, memories):
  filled = [len(row[0]) for row in memories]
  np.testing.assert_array_equal(memory.filled, filled)
  for b, row in enumerate(memories):
    for n, states in enumerate(row):
      if len(states):
        kept = memory.states[n, b, -len(states) :]
        np.testing.assert_allclose(kept, states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('padded', [False, True])
def test_train_step_carries_and_resets_memory(padded):
  step, start = xl()
  state = start()
  state = state.replace(lr_scale=0 * state.lr_scale)  # parameters stay
  resets = [True, False, np.arange(B) % 2 == 0]
  width = T + 2 if padded else T
  batches = [
    make_batch(n, width, padded, reset) for n, reset in enumerate(resets)
  ]
  order = ('inputs', 'targets', 'lengths', 'reset')
  segments = [tuple(batch[k] for k in order) for batch in batches]
  expected, memories = scored_by_hand(weights(), segments)
  states = [jax.device_get(state)]
  for batch in batches:
    state = step(state, batch)
    states.append(jax.device_get(state))
  log = per_step(states)
  tokens = [(batch['targets'] >= 0).sum() for batch in batches]
  assert [n for _, n in log] == tokens
  np.testing.assert_allclose(
    [nll for nll, _ in log], [nll.sum() for nll in expected], rtol=1e-5
  )
  assert_memory(jax.device_get(state.memory), memories)


def test_padding_does_not_change_the_update():
  step, start = xl()
  plain = make_batch(0)
  rng = np.random.default_rng(5)
  rubbish = rng.integers(0, V, [B, 2], np.int32)
  padded = dict(
    inputs=np.concatenate([plain['inputs'], rubbish], axis=1),
    targets=np.pad(plain['targets'], [(0, 0), (0, 2)], constant_values=-1),
    lengths=np.full([B], T, np.int32),
    reset=plain['reset'],
  )
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, step(start(), plain), step(start(), padded))


def test_dropout_is_on_and_follows_the_step():
  step, start = xl(dropout=0.5)
  batch = make_batch(0)

  def nll(n):
    state = start()
    return float(step(state.replace(step=state.step + n), batch).sums.nll)

  segment = (batch['inputs'], batch['targets'], None, batch['reset'])
  (off,), _ = scored_by_hand(weights(), [segment])
  assert nll(0) == nll(0)
  assert len({nll(0), nll(1), nll(2), np.float32(off.sum())}) == 4
  assert abs(nll(0) / off.sum() - 1) > 1e-3


@pytest.mark.parametrize('name', ['adam', 'sgd'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_shapes_and_dtypes_stay(name, accumulate):
  model = transformer(dtype='bfloat16', dropout=0.1)
  optimiser = sgd(clip=0.25) if name == 'sgd' else None
  if optimiser is None:
    optimiser = optim.optimiser(common.get_config().optim)
  state = jax.eval_shape(
    lambda: state_lib.create(model, optimiser, B, jax.random.key(0))
  )
  step = functools.partial(
    step_lib.train_step,
    model=model,
    optimiser=optimiser,
    schedule=optim.schedule(common.get_config().optim, 100),
    accumulate=accumulate,
    key=jax.random.key(0),
  )
  new = jax.eval_shape(step, state, make_batch(0))
  kind = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  assert kind(new) == kind(state)
  assert state.memory.states.dtype == jnp.bfloat16


# Scoring

G, R = 3, 8  # segments in a call, rows


def calls(padded):
  """Two calls of G segments: inputs, targets, lengths as `score` takes."""
  rng = np.random.default_rng(0)
  for _ in range(2):
    inputs, targets = rng.integers(0, V, [2, G, R, T], np.int32)
    lengths = None
    if padded:
      lengths = rng.integers(0, T + 1, [G, R], np.int32)
      lengths[-1, :2] = 0
      targets[np.arange(T) >= lengths[..., None]] = -1
    yield inputs, targets, lengths


@pytest.mark.parametrize('devices', [1, 8])
@pytest.mark.parametrize('padded', [False, True])
def test_score(devices, padded):
  model, mesh = transformer(), mesh_of(devices)
  everywhere = mesh_lib.replicated(mesh)
  params = jax.device_put(jax.tree.map(jnp.float32, weights()), everywhere)
  rows = lambda leaf: mesh_lib.rows(mesh, base.row_axis(leaf))
  memory = model.init_memory(R)
  memory = jax.device_put(memory, jax.tree.map(rows, memory))
  got, segments = [], []
  for inputs, targets, lengths in calls(padded):
    arrays = jax.device_put((inputs, targets, lengths), mesh_lib.rows(mesh, 1))
    given = memory
    memory, nll = scoring.jit_score(
      params, memory, *arrays, model=transformer()
    )
    assert all(x.is_deleted() for x in jax.tree.leaves(given))
    assert nll.dtype == jnp.float32 and nll.shape == (G, R, T)
    got.extend(np.asarray(nll))
    for g in range(G):
      length = None if lengths is None else lengths[g]
      segments.append((inputs[g], targets[g], length, np.zeros(R, bool)))
  expected, memories = scored_by_hand(weights(), segments)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
  assert_memory(jax.device_get(memory), memories)


def test_score_is_compiled_once_for_equal_models():
  params = jax.tree.map(jnp.float32, weights())
  inputs, targets, lengths = next(calls(False))
  sizes = []
  for _ in range(2):
    model = transformer()
    memory = model.init_memory(R)
    scoring.jit_score(params, memory, inputs, targets, lengths, model=model)
    sizes.append(scoring.jit_score._cache_size())
  assert sizes[0] == sizes[1] > 0
