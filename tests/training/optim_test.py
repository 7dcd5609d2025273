import math

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from txl_jax import models
from txl_jax.configs import common
from txl_jax.models import base
from txl_jax.program import target_device
from txl_jax.training import optim

# With them, an update is what the rules give before the rate.
UNIT = dict(lr=1.0, schedule='constant')
SCALE = dict(step=0, scale=-1.0)


# Schedules: (changes, {t: rate}), worked out by hand with lr = 2 and 100 steps.
HALF_ROOT = (1 + math.sqrt(0.5)) / 2  # (1 + cos(pi / 4)) / 2
COS_60 = (1 + math.cos(math.pi / 60)) / 2
SCHEDULES = {
  'cosine': (
    dict(schedule='cosine'),
    {0: 2, 25: 2 * HALF_ROOT, 50: 1, 75: 2 - 2 * HALF_ROOT, 100: 0, 130: 0},
  ),
  'cosine, warm-up': (
    dict(schedule='cosine', warmup=25),
    {0: 0, 1: 0.08, 24: 1.92, 25: 2 * HALF_ROOT, 50: 1, 100: 0},
  ),
  'cosine with a floor, shifted': (
    dict(schedule='cosine', warmup=20, cosine_shifted=True, lr_floor=0.1),
    {0: 0, 10: 1, 20: 2, 60: 1.1, 100: 0.2, 101: 0.2},
  ),
  'warm-up for a fraction': (
    dict(schedule='cosine', warmup_fraction=0.2, cosine_shifted=True),
    {0: 0, 10: 1, 19: 1.9, 20: 2, 40: 2 * HALF_ROOT, 60: 1, 100: 0},
  ),
  'warm-up in steps': (
    dict(schedule='constant', warmup_fraction=0.5, warmup=4),
    {0: 0, 2: 1, 4: 2, 40: 2},
  ),
  'warm-up as long as the training': (
    dict(schedule='cosine', warmup=10, cosine_shifted=True, steps=10),
    {0: 0, 9: 1.8, 10: 2},
  ),
  'cosine of a single step': (
    dict(schedule='cosine', warmup=10, cosine_shifted=True, cosine_end=11),
    {9: 1.8, 10: 2, 11: 0, 12: 0},
  ),
  'cosine that ends before the training': (
    dict(schedule='cosine', cosine_end=50, lr_floor=0.1),
    {0: 2, 25: 1.1, 50: 0.2, 99: 0.2, 1000: 0.2},
  ),
  # Counted from 1: the step after t others is t + 1.
  'annealing': (
    dict(schedule='annealing', warmup=20, cosine_end=80, lr_floor=0.1),
    {0: 0.1, 18: 1.9, 19: 0.2 + 1.7 * COS_60, 48: 1.05, 78: 0.2, 99: 0.2},
  ),
  'annealing, no warm-up': (
    dict(schedule='annealing'),
    {0: 1 + math.cos(math.pi / 100), 24: 2 * HALF_ROOT, 49: 1, 99: 0},
  ),
  'annealing, one step of warm-up': (
    dict(schedule='annealing', warmup=1, steps=101),
    {0: 1 + math.cos(math.pi / 100), 49: 1, 99: 0},
  ),
  'constant while the mean is taken': (
    dict(average='swa', average_start=50, average_factor=0.25),
    {0: 2, 25: 2 * HALF_ROOT, 50: 0.25, 75: 0.25, 99: 0.25},
  ),
  'inverse square root': (
    dict(schedule='inverse_sqrt'),
    {0: 2, 1: 2, 4: 1, 100: 0.2},
  ),
  'inverse square root, warm-up': (
    dict(schedule='inverse_sqrt', warmup=16),
    {0: 0, 4: 2 / 16, 8: 2 / 8, 15: 2 * 15 / 64, 16: 0.5, 64: 0.25},
  ),
  'constant, warm-up': (
    dict(schedule='constant', warmup=4),
    {0: 0, 1: 0.5, 3: 1.5, 4: 2, 1000: 2},
  ),
  'drop': (
    dict(schedule='drop', drop_at=60, drop_factor=0.25),
    {0: 2, 59: 2, 60: 0.5, 61: 0.5, 100: 0.5},
  ),
  'drop, warm-up': (
    dict(schedule='drop', drop_at=5, warmup=4),
    {0: 0, 3: 1.5, 4: 2, 5: 0.2, 99: 0.2},
  ),
  'plateau': (
    dict(schedule='plateau', warmup=4, lr_floor=0.3),
    {0: 0, 2: 1, 4: 2, 99: 2},
  ),
}


def rate_of(steps=100, **changes):
  return optim.schedule(optim.Optim(lr=2.0, **changes), steps)


@pytest.mark.default_cases('annealing, no warm-up', 'warm-up for a fraction')
@pytest.mark.parametrize('name', SCHEDULES)
def test_schedule(name):
  changes, expected = SCHEDULES[name]
  rate = rate_of(**changes)
  for t, value in expected.items():
    assert float(rate(t)) == pytest.approx(value, rel=2e-6, abs=1e-7), t
  ts = jnp.array(list(expected))
  together = jax.jit(rate)(ts)
  assert together.dtype == jnp.float32
  np.testing.assert_allclose(
    together, list(expected.values()), rtol=2e-6, atol=1e-7
  )


@pytest.mark.parametrize('schedule', ['cosine', 'annealing', 'constant'])
def test_the_rate_of_tables_has_the_same_floor(schedule):
  changes = dict(lr=2.0, lr_floor=0.5, warmup=8, schedule=schedule)
  config = optim.Optim(**changes, lr_table=5.0)
  plain = optim.Optim(**changes)
  table = optim.schedule(config, 40, table=True)
  other = optim.Optim(**changes | dict(lr=5.0, lr_floor=0.2))
  other = optim.schedule(other, 40)
  for t in 0, 3, 7, 8, 20, 40:
    assert float(table(t)) == pytest.approx(float(other(t)), rel=1e-6)
    same = optim.schedule(plain, 40, table=True)
    assert optim.schedule(config, 40)(t) == same(t)
  assert float(table(40)) == pytest.approx(5 if schedule == 'constant' else 1)


def test_what_is_a_table():
  """The embedding alone, by bins or not; with tied weights it is the output."""
  for changes, expected in (
    (dict(tie_weights=False), {'vocabulary/table'}),
    (dict(cutoffs=(5, 8)), {f'vocabulary/table_{i}' for i in range(3)}),
    (dict(name='shaw', table_len=3), {'vocabulary/table'}),
  ):
    fields = dict(name='transformer_xl', n_layer=1, d_model=8) | changes
    params = base.param_shapes(models.build(fields, 11))
    flat = jax.tree_util.tree_leaves_with_path(params)
    found = {
      jax.tree_util.keystr(path, simple=True, separator='/')
      for path, _ in flat
      if optim.is_table(path)
    }
    assert found == expected


def test_every_step_of_a_long_cosine():
  rate = optim.schedule(optim.Optim(lr=1e-3, warmup=4000), 400_000)
  t = np.arange(0, 400_001, 997)
  expected = np.where(t < 4000, t / 4000, (1 + np.cos(np.pi * t / 400_000)) / 2)
  np.testing.assert_allclose(rate(t), 1e-3 * expected, rtol=1e-5, atol=1e-9)


# Optimisers: against the rules written out in float64.


def adam(grads, config):
  """Updates by Kingma and Ba 2015, Algorithm 1."""
  m = v = 0.0
  for t, g in enumerate(grads, 1):
    m = config.b1 * m + (1 - config.b1) * g
    v = config.b2 * v + (1 - config.b2) * g**2
    unbiased = m / (1 - config.b1**t), v / (1 - config.b2**t)
    yield unbiased[0] / (np.sqrt(unbiased[1]) + config.eps)


def sgd(grads, config):
  velocity = 0.0
  for g in grads:
    velocity = config.momentum * velocity + g
    yield g + config.momentum * velocity if config.nesterov else velocity


def clipped(grads, limit):
  for g in grads:
    norm = math.sqrt((g**2).sum())
    yield g * limit / norm if 0 < limit < norm else g


def tree(x):
  """Eight numbers as a matrix and a vector."""
  return {'w': jnp.float32(x[:6]).reshape(2, 3), 'b': jnp.float32(x[6:])}


def flat(tree):
  return np.concatenate([np.ravel(tree['w']), tree['b']])


@pytest.mark.default_cases('sgd-changes3-0.0')
@pytest.mark.parametrize('clip', [0.0, 0.25])
@pytest.mark.parametrize(
  'rule, changes',
  [
    (adam, {}),
    (adam, dict(b1=0.5, b2=0.8, eps=0.1)),
    (sgd, {}),
    (sgd, dict(momentum=0.9)),
    (sgd, dict(momentum=0.9, nesterov=True)),
  ],
)
def test_optimiser(rule, changes, clip):
  config = optim.Optim(**UNIT, name=rule.__name__, clip=clip, **changes)
  rng = np.random.default_rng(0)
  # Norms around 0.02 and 2: below and above the limit.
  scale = np.array([1, 0.01, 1, 0.01, 0.01, 1])[:, None]
  grads = scale * rng.normal(size=[6, 8])
  optimiser = optim.optimiser(config, 10)
  state = optimiser.init(tree(np.zeros(8)))
  expected = rule(clipped(grads, clip), config)
  for g, update in zip(grads, expected, strict=True):
    got, state = optimiser.update(tree(g), state, **SCALE)
    np.testing.assert_allclose(flat(got), update, rtol=2e-5, atol=1e-7)


@pytest.mark.default_cases('0.0-sgd')
@pytest.mark.parametrize('rule', [adam, sgd])
@pytest.mark.parametrize('clip', [0.0, 0.25])
def test_weight_decay(rule, clip):
  """Beside the rule: the gradients, their clipping and moments know nothing."""
  config = optim.Optim(**UNIT, name=rule.__name__, clip=clip, weight_decay=0.3)
  rng = np.random.default_rng(0)
  optimiser = optim.optimiser(config, 10)
  grads = rng.normal(size=[4, 8])
  params = tree(rng.normal(size=8))
  state, p, lr = optimiser.init(params), np.float64(flat(params)), 0.1
  expected = rule(clipped(grads, clip), config)
  for g, update in zip(grads, expected, strict=True):
    got, state = optimiser.update(tree(g), state, params, **SCALE)
    params = jax.tree.map(lambda p, u: p - lr * u, params, got)
    p = p - lr * update - lr * 0.3 * p * (np.arange(8) < 6)
    np.testing.assert_allclose(flat(params), p, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize('rule', [adam, sgd])
@pytest.mark.parametrize('clip', [0.0, 0.25])
def test_l2(rule, clip):
  """In the gradient after it is clipped, of vectors as well."""
  config = optim.Optim(**UNIT, name=rule.__name__, clip=clip, l2=0.3)
  rng = np.random.default_rng(0)
  optimiser, p = optim.optimiser(config, 10), rng.normal(size=8)
  grads = rng.normal(size=[4, 8])
  penalised = [g + 0.3 * p for g in clipped(grads, clip)]
  params = tree(p)
  state = optimiser.init(params)
  for g, expected in zip(grads, rule(penalised, config), strict=True):
    got, state = optimiser.update(tree(g), state, params, **SCALE)
    np.testing.assert_allclose(flat(got), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize('rule', [adam, sgd])
def test_a_narrow_first_moment(rule):
  """The update is that of the rule, to the three digits of bfloat16."""
  config = optim.Optim(
    **UNIT, name=rule.__name__, clip=0.0, momentum=0.9, state_dtype='bfloat16'
  )
  optimiser = optim.optimiser(config, 10)
  state = optimiser.init(jnp.zeros(50))
  grads = np.random.default_rng(0).normal(size=[6, 50])
  for g, expected in zip(grads, rule(grads, config), strict=True):
    got, state = optimiser.update(jnp.float32(g), state, **SCALE)
    np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.02)
  kinds = [x.dtype for x in jax.tree.leaves(state) if x.ndim]
  wide = [jnp.float32] * (rule is adam)
  assert kinds == [jnp.bfloat16, *wide]


@pytest.mark.parametrize('changes', [{}, dict(untie_biases=True)])
def test_what_decays(changes):
  config = common.get_config()
  config.model.update(n_layer=1, tie_weights=False, **changes)
  model = models.build(config.model, 11)
  params = base.param_shapes(model)
  decays = optim.decays(params, model.NOT_DECAYED)
  flat = flax.traverse_util.flatten_dict(decays, sep='/')
  layer = [f'layers_0/attention/{x}/kernel' for x in 'qkvro']
  layer += ['layers_0/ff/w1/kernel', 'layers_0/ff/w2/kernel']
  expected = {'vocabulary/table', 'vocabulary/output', *layer}
  assert {name for name, acts in flat.items() if acts} == expected


@pytest.mark.parametrize(
  'patterns, left',
  [
    ((), {'a/w', 'a/ww', 'b/w'}),
    (('w',), {'a/ww'}),
    (('a/w', '[xy]'), {'a/ww', 'b/w'}),
    (('b/.*', 'a/w+'), set()),
  ],
)
def test_what_a_model_keeps_from_decay(patterns, left):
  """Whole names from a slash on, of matrices; vectors never decay."""
  matrix = jnp.ones([2, 2])
  params = {
    'a': {'w': matrix, 'ww': matrix, 'v': jnp.ones(2)},
    'b': {'w': matrix},
  }
  optimiser = optim.optimiser(
    optim.Optim(**UNIT, name='sgd', weight_decay=0.5, clip=0.0), 10, patterns
  )
  nothing = jax.tree.map(jnp.zeros_like, params)
  state = optimiser.init(params)
  updates, _ = optimiser.update(nothing, state, params, **SCALE)
  flat = flax.traverse_util.flatten_dict(updates, sep='/')
  for name, update in flat.items():
    np.testing.assert_array_equal(update, 0.5 if name in left else 0.0)


def test_rates_of_tables_and_others():
  """Each at its own rate, times the scale, and minus: optax adds updates."""
  config = optim.Optim(name='sgd', clip=0.0, lr=0.5, lr_table=2.0, warmup=4)
  optimiser = optim.optimiser(config, 100)
  params = {'vocabulary': {'table': jnp.ones(3)}, 'w': jnp.ones(2)}
  for step, scale in (1, 1.0), (3, 0.25):
    given = params, optimiser.init(params), params
    updates, _ = optimiser.update(*given, step=jnp.int32(step), scale=scale)
    np.testing.assert_allclose(updates['w'], -0.5 * step / 4 * scale)
    table = updates['vocabulary']['table']
    np.testing.assert_allclose(table, -2.0 * step / 4 * scale)


def scales(figures, **changes):
  state, out = optim.Plateau(), []
  config = optim.Optim(schedule='plateau', **changes)
  for figure in figures:
    state = state.update(figure, config)
    out.append(state.scale)
  return out


def test_plateau():
  figures = [3.0, 2.0, 2.0, 1.9, 1.95, 1.91, 1.8]
  assert scales(figures) == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.125]
  # A figure that is not a number is no improvement, and none to be beaten.
  assert scales([2.0, math.nan, 1.0, 1.5]) == [1, 0.5, 0.5, 0.25]
  got = scales([1.0] * 5, plateau_factor=0.5, lr_floor=0.2)
  assert got == [1, 0.5, 0.25, 0.2, 0.2]


def test_plateau_counts_evaluations_in_a_row():
  figures = [3, 4, 4, 2.9, 4, 4, 4, 4, 4, 4]
  got = scales(figures, plateau_patience=3, plateau_factor=0.1)
  # The first pair of bad ones is forgotten at 2.9.
  assert got == pytest.approx([1] * 6 + [0.1] * 3 + [0.01])
  assert optim.Plateau(1.0, 2).update(1.0, optim.Optim()).scale == 0.5


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
@pytest.mark.parametrize('most', [0.5, 100.0])
def test_clipping_is_that_of_optax(platform, most, monkeypatch):
  """A single GPU sums over last axes first."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  rng = np.random.default_rng(0)
  shapes = (3, 4), (5,), (), (2, 3, 4)
  grads = [jnp.asarray(rng.normal(size=x), jnp.float32) for x in shapes]
  np.testing.assert_allclose(
    jax.jit(optim.norm)(grads), optax.tree.norm(grads), rtol=1e-6
  )
  assert optim.norm({}) == 0
  found, expected = (
    rule.update(grads, rule.init(grads))
    for rule in (optim._clipped(most), optax.clip_by_global_norm(most))
  )
  assert found[1] == expected[1]
  for x, y in zip(found[0], expected[0], strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6)
