import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from tests.training.small import FIELDS, V
from txl_jax import models
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import target_device
from txl_jax.training import averaging
from txl_jax.training import state as state_lib

B, M, N, D = 8, 4, 2, 8


def make(**changes):
  return models.build(FIELDS, V, **changes)


def create(model, averager=None):
  optimiser = optax.scale_by_adam()
  return state_lib.create(model, optimiser, B, jax.random.key(0), averager)


@functools.partial(jax.jit, static_argnums=0)
def init_params(model, seed):
  return base.init_params(model, jax.random.key(seed))


@pytest.fixture(scope='module')
def state():
  return jax.jit(create, static_argnums=0)(make())


@pytest.mark.thorough
def test_create_starts_at_zero(state):
  assert state.step == 0 and state.step.dtype == jnp.int32
  assert state.lr_scale == 1 and state.lr_scale.dtype == jnp.float32
  assert state.sums.steps == 0 and state.sums.bad_step == -1
  assert state.memory.states.shape == (N, B, M, D)
  assert state.memory.filled.tolist() == [0] * B
  shapes = jax.tree.map(jnp.shape, state.params)
  assert jax.tree.map(jnp.shape, state.opt_state.mu) == shapes
  assert not any(map(np.any, jax.tree.leaves(state.opt_state.mu)))


@pytest.mark.thorough
def test_parameters_are_those_of_the_key_and_of_what_has_parameters(state):
  model = make(mem_len=0, dropout=0.5, dropatt=0.5)
  again, other = init_params(model, 0), init_params(model, 1)
  jax.tree.map(np.testing.assert_array_equal, state.params, again)
  one, two = (params['vocabulary']['table'] for params in (again, other))
  assert one.shape == (V, D) and not np.array_equal(one, two)


def test_parameters_are_float32_whatever_the_compute_dtype():
  model = make(dtype='bfloat16')
  state = jax.eval_shape(lambda: create(model))
  assert {x.dtype for x in jax.tree.leaves(state.params)} == {
    jnp.dtype('float32')
  }
  assert state.memory.states.dtype == model.config.state_dtype


def test_shardings_divide_the_memory_and_the_moments_alone(monkeypatch):
  mesh = mesh_lib.make_mesh()
  model = make(d_model=64)
  averager = averaging.Averager(1.0, 0)
  abstract = jax.eval_shape(lambda: create(model, averager))
  out = state_lib.shardings(abstract, mesh, model)
  assert jax.tree.structure(out) == jax.tree.structure(abstract)
  for leaf in jax.tree.leaves(out.memory.states):
    assert leaf.spec == PartitionSpec(None, placement.ROWS)
  assert out.memory.filled.spec == PartitionSpec(placement.ROWS)
  assert jax.tree.structure(out.average.params) == jax.tree.structure(
    abstract.params
  )
  rest = jax.tree.leaves(out.replace(memory=(), opt_state=()))
  assert {leaf.spec for leaf in rest} == {PartitionSpec()}
  for moments in out.opt_state.mu, out.opt_state.nu:
    ff = moments['layers_0']['ff']
    assert ff['w1']['kernel'].spec == PartitionSpec('data')  # [D, F]
    assert ff['w2']['kernel'].spec == PartitionSpec(None, 'data')  # [F, D]
    assert ff['w2']['bias'].spec == PartitionSpec()
  device = target_device.Device('gpu', 'NVIDIA H100 80GB HBM3')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  out = state_lib.shardings(abstract, mesh, model)
  assert {s.spec for s in jax.tree.leaves(out.opt_state)} == {PartitionSpec()}
  model = make(mem_len=0)
  abstract = jax.eval_shape(lambda: create(model))
  assert state_lib.shardings(abstract, mesh, model).memory == ()


@pytest.mark.parametrize('averager', [None, averaging.Averager(0.9, 3)])
def test_split_and_join(averager):
  state = jax.eval_shape(lambda: create(make(), averager))
  items = state_lib.split(state)
  names = {'params', 'training', 'memory'}
  names |= {'average'} if averager else set()
  assert items.keys() == names

  # Nothing is in two items.
  def count(tree):
    return len(jax.tree.leaves(tree))

  assert sum(map(count, items.values())) == count(state)
  assert state_lib.join(items) == state


def test_a_memory_that_is_one_array():
  """Orbax saves no item that is a single array."""
  state = jax.eval_shape(lambda: create(make(), None))
  state = state.replace(memory=state.step)
  items = state_lib.split(state)
  assert items['memory'] is not state.step
  assert jax.tree.leaves(items['memory']) == [state.step]
  assert state_lib.join(items) == state
