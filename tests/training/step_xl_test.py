"""Steps of Transformer-XL against `direct`, and on parts and devices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.training import small
from tests.training.small import B, T, V, make_batch, mesh_of, sgd
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data import streams
from txl_jax.program import target_device
from txl_jax.training import averaging, optim, plan
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
FIELDS = small.FIELDS | dict(dropout=0.0)


def per_step(states):
  """[(nll, tokens)] of consecutive states."""
  sums = [(float(s.sums.nll), s.sums.token_count()) for s in states]
  return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(sums)]


def transformer(**changes):
  return models.build(FIELDS, V, **changes)


@functools.cache
def weights():
  """float64, large enough that everything matters."""
  return direct.random_params(transformer())


@functools.cache
def xl(devices=1, accumulate=1, half=False, **changes):
  model, optimiser = transformer(**changes), sgd(clip=0.25, momentum=0.9)
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
  options: dict = dict(optimiser=optimiser, key=jax.random.key(0), steps=10)
  options |= dict(accumulate=accumulate, half_loss=half)
  return small.jitted(state, devices, model, **options)


OTHER = [(1, 4), (8, 2)]  # devices, parts


@functools.cache
def trained(devices, accumulate, **changes):
  """Sums after each of four steps, and the state after them, on the host."""
  step, start = xl(devices, accumulate, **changes)
  states = [start()]
  sums = [jax.device_get(states[0])]
  for n, reset in enumerate([True, False, np.arange(B) > 4, False]):
    states = [step(states[0], make_batch(n, reset=reset))]
    sums.append(jax.device_get(states[0]))
  return per_step(sums), sums[-1]


def assert_trained_alike(*where, **changes):
  expected_log, expected = trained(1, 1)
  log, state = trained(*where, **changes)
  np.testing.assert_allclose(log, expected_log, rtol=2e-6)
  jax.tree.map(close, state, expected)
  # The steps were no small ones.
  change = state.params['vocabulary']['table'] - np.float32(
    weights()['vocabulary']['table']
  )
  assert np.abs(change).max() > 0.01


@pytest.mark.thorough
@pytest.mark.parametrize('devices, accumulate', OTHER)
def test_parts_and_devices_change_nothing(devices, accumulate):
  assert_trained_alike(devices, accumulate)


@pytest.mark.thorough
def test_what_is_written_for_tpus_changes_nothing(monkeypatch):
  device = target_device.Device('tpu', 'TPU v3')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  assert_trained_alike(4, 1, attention='xla')


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize('devices, accumulate', OTHER)
def test_the_state_is_used_up_and_stays_where_it_was(devices, accumulate):
  step, start = xl(devices, accumulate)
  state = start()
  new = step(state, make_batch(0))
  assert all(x.is_deleted() for x in jax.tree.leaves(state))
  expected = state_lib.shardings(new, mesh_of(devices), transformer())
  pairs = zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True)
  assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in pairs)


@pytest.mark.default_cases('False')
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
  expected, memories = direct.score_rows(transformer(), weights(), segments)
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
  direct.assert_memory(jax.device_get(state.memory), memories)


@pytest.mark.thorough
@pytest.mark.parametrize('devices, accumulate', [(1, 1), *OTHER])
def test_a_context_is_read_and_not_scored(devices, accumulate):
  """As if its targets were masked; nll by `direct`; rows of any context."""
  E, rng = 5, np.random.default_rng(3)
  context = rng.integers(0, E + 1, B).astype(np.int32)
  n = rng.integers(1, T + 1, B).astype(np.int32)
  inputs = rng.integers(0, V, [B, E + T], np.int32)
  masked = np.full([B, E + T], -1, np.int32)
  targets = np.full([B, T], -1, np.int32)
  expected, model = 0.0, transformer(mem_len=0)
  for b, (c, k) in enumerate(zip(context, n)):
    targets[b, :k] = masked[b, c : c + k] = rng.integers(0, V, k)
    empty = direct.init_memory(model)
    logits, _ = direct.segment(model, weights(), inputs[b, : c + k], empty)
    expected += direct.nll(logits[c:], targets[b, :k]).sum()
  same = dict(inputs=inputs, lengths=context + n, reset=np.full(B, True))
  step, start = xl(devices, accumulate, mem_len=0)
  found = step(start(), dict(targets=targets, context=context, **same))
  assert found.sums.token_count() == n.sum()
  np.testing.assert_allclose(found.sums.nll, expected, rtol=1e-5)
  step, start = xl(mem_len=0)
  whole = step(start(), dict(targets=masked, **same))
  jax.tree.map(close, found.params, jax.device_get(whole.params))


@pytest.mark.thorough
@pytest.mark.parametrize('half', [False, True])
def test_parts_have_the_penalties_of_the_whole_batch(half):
  """Of rows of documents, some of them empty or of one token."""
  penalties = dict(activation_reg=2.0, temporal_activation_reg=1.0)
  batch = make_batch(0, padded=True)
  assert {0, 1} < {*batch['lengths'].tolist()}
  found = []
  for accumulate in 1, 8:
    step, start = xl(1, accumulate, half, **penalties)
    found.append(jax.device_get(step(start(), batch).params))
  jax.tree.map(close, *found)
  step, start = xl(half=half)
  without = jax.device_get(step(start(), batch).params)
  pairs = zip(*map(jax.tree.leaves, (found[0], without)))
  assert max(np.abs(a - b).max() for a, b in pairs) > 1e-2


@pytest.mark.thorough
def test_the_rate_may_be_scaled():
  step, start = xl()
  batch, before = make_batch(0), jax.device_get(start().params)
  one, half = (
    jax.device_get(step(start(), batch | more).params)
    for more in ({}, {'rate_scale': np.full([B], 0.5, np.float32)})
  )
  for a, b, c in zip(*map(jax.tree.leaves, (before, one, half))):
    np.testing.assert_allclose(c - a, (b - a) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
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
  one, other = (step(start(), batch) for batch in (plain, padded))
  jax.tree.map(functools.partial(close, atol=1e-6), one, other)


@pytest.mark.default_cases('2-adam', '2-sgd')
@pytest.mark.parametrize('name', ['adam', 'sgd'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_shapes_and_dtypes_stay(name, accumulate):
  model = transformer(dtype='bfloat16', dropout=0.1)
  optimiser = sgd(clip=0.25) if name == 'sgd' else None
  if optimiser is None:
    optimiser = optim.optimiser(common.get_config().optim, 100)
  state = jax.eval_shape(
    lambda: state_lib.create(model, optimiser, B, jax.random.key(0))
  )
  step = functools.partial(
    step_lib.train_step,
    model=model,
    optimiser=optimiser,
    key=jax.random.key(0),
    steps=100,
    accumulate=accumulate,
  )
  new = jax.eval_shape(step, state, make_batch(0))
  assert small.kind(new) == small.kind(state)
  assert state.memory.states.dtype == model.config.state_dtype


def test_a_config_reaches_its_step(monkeypatch):
  """What training makes of the keys, model and optimiser among them."""
  given = {}

  def take(mesh, abstract, **arguments):
    given.update(arguments)

  monkeypatch.setattr(step_lib, 'jit_train_step', take)
  c = common.get_config()
  c.model.update(FIELDS)
  c.train.update(steps=70, batch_size=B, accumulate=2, loss='half')
  c.optim.update(name='sgd', clip=0.0, weight_decay=0.5, average='ema')
  built = step_lib.build(c, V, mesh_of(1))
  assert given['model'] == built.model == transformer()
  names = ('steps', 'accumulate', 'half_loss')
  assert [given[name] for name in names] == [70, 2, True]
  assert given['averager'] == averaging.averager(c.optim) is not None
  half = pytest.approx(c.optim.lr / 2)
  assert built.schedule(35) == half
  # With no gradient an update is what weight decay takes off, at half the rate.
  ones = jax.tree.map(lambda x: jnp.ones(x.shape), built.abstract.params)
  zeros = jax.tree.map(jnp.zeros_like, ones)
  optimiser = given['optimiser']
  rate = dict(step=35, scale=-2.0)
  updates, _ = optimiser.update(zeros, optimiser.init(ones), ones, **rate)
  assert np.unique(updates['vocabulary']['table']) == [half]
  assert not updates['biases']['u'].any()


def test_states_have_the_dtype_of_the_devices(monkeypatch):
  """Not of those that compile for them."""
  monkeypatch.setattr(step_lib, 'jit_train_step', lambda *_, **more: None)
  c = common.get_config()
  c.model.update(FIELDS | dict(dtype='bfloat16'))
  mesh = mesh_of(1).abstract_mesh
  there = jax.sharding.AbstractDevice('TPU v5 lite', 1, 'tpu')
  for on in mesh, mesh.update(abstract_device=there):
    built = step_lib.build(c, V, on)
    dtype = jnp.float32 if on is mesh else jnp.bfloat16
    assert built.abstract.memory.states.dtype == dtype


@pytest.mark.thorough
def test_parameters_and_dropout_draw_with_keys_of_their_own(monkeypatch):
  keys = []

  def take(*_, key, **more):
    keys.append(key)

  monkeypatch.setattr(step_lib, 'jit_train_step', take)
  c = common.get_config()
  c.seed = 5
  built = step_lib.build(c, V, mesh_of(1))
  found = [
    jax.random.key_data(k).tolist() for k in (*keys, built.create.args[3])
  ]
  assert found == [[202567368, 3886822060], [2724472204, 3573582090]]


@pytest.mark.thorough
def test_parts_do_not_copy_all_of_the_memory():
  """But for one copy that the loop over them may begin with."""
  c, A = common.get_config(), 32
  small = dict(n_layer=4, d_model=64, n_head=1, d_head=2, d_ff=4, mem_len=512)
  c.model.update(small)
  c.train.update(batch_size=A, segment_len=4, accumulate=A)
  built = step_lib.build(c, V, mesh_of(1))
  text = streams.Streams(np.zeros(A * 4 + 1), A, 4)
  (batch,) = plan.batch_shapes(c, text, mesh_of(1))
  compiled = built.step.lower(built.abstract, batch).compile()
  leaves = jax.tree.leaves(built.abstract.memory)
  memory = sum(x.size * x.dtype.itemsize for x in leaves)
  assert compiled.memory_analysis().temp_size_in_bytes < 1.3 * memory
