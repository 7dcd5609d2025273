"""Models in meshes of other programs, beside the same without a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from txl_jax import models
from txl_jax.models import base, windowed
from txl_jax.parallel import mesh as mesh_lib

pytestmark = pytest.mark.thorough

B, T, V = 8, 6, 40
FIELDS = dict(name='transformer_xl', n_layer=2, d_model=8, n_head=2)
FIELDS |= dict(d_head=4, d_ff=16, mem_len=4, cutoffs=(5, 20), div_val=2)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


@pytest.fixture(scope='module')
def case():
  """A loss, parameters, tokens and targets; and the gradients."""
  model = models.build(FIELDS, V)

  def loss(params, tokens, targets):
    segment = tokens, targets, model.init_memory(len(tokens))
    out = model.apply({'params': params}, *segment, train=False)
    return jnp.mean(out.nll)

  params = jax.tree.map(np.asarray, base.init_params(model, jax.random.key(0)))
  rows = np.random.default_rng(0).integers(0, V, [2, B, T], np.int32)
  expected = jax.jit(jax.value_and_grad(loss))(params, *rows)
  return loss, (params, *rows), jax.tree.map(np.asarray, expected)


def assert_alike(found, expected):
  for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)


def mesh_of(shape, axes, kind):
  n = int(np.prod(shape))
  types = (kind,) * len(axes)
  return jax.make_mesh(shape, axes, types, devices=jax.devices()[:n])


@pytest.mark.parametrize(
  'shape, axes',
  [
    ((4,), ('batch',)),
    ((1,), ('batch',)),
    ((2, 2), ('fsdp', 'tensor')),
    ((2, 2, 1, 1), ('tensor', 'fsdp', 'data', 'slices')),
  ],
)
def test_jit_where_the_compiler_divides(case, shape, axes):
  loss, (params, *rows), expected = case
  mesh = mesh_of(shape, axes, AUTO)
  with jax.set_mesh(mesh):
    rows = jax.device_put(rows, NamedSharding(mesh, P(axes[0])))
    assert_alike(jax.jit(jax.value_and_grad(loss))(params, *rows), expected)


@pytest.mark.parametrize('size', [1, 4])
def test_explicit_axes(case, size):
  """Divided arrays go through auto_axes, as docs/reuse.md says."""
  loss, (params, *rows), expected = case
  mesh = mesh_of((size,), ('batch',), EXPLICIT)
  grad = jax.value_and_grad(loss)
  with jax.set_mesh(mesh):
    assert_alike(jax.jit(grad)(params, *rows), expected)
    rows = jax.device_put(rows, NamedSharding(mesh, P('batch')))
    run = jax.sharding.auto_axes(grad, out_sharding=P())
    assert_alike(jax.jit(run)(params, *rows), expected)


@pytest.mark.parametrize('ours', [False, True])
def test_shard_map(case, ours):
  """Also over our own mesh. Gradients of parameters are sums over shards."""
  loss, given, expected = case
  mesh = mesh_lib.make_mesh() if ours else mesh_of((4,), ('data',), AUTO)

  def shard(params, *rows):
    found, grads = jax.value_and_grad(loss)(params, *rows)
    n = jax.lax.axis_size('data')
    return jax.lax.pmean(found, 'data'), jax.tree.map(lambda x: x / n, grads)

  specs = P(), P('data'), P('data')
  run = jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=P())
  assert_alike(jax.jit(run)(*given), expected)


def with_window():
  model = models.build(FIELDS, V).at_test_time(mem_len=0)
  return windowed.Windowed(V, model.config, model=model, window=3)


def recurrent(name):
  return models.build(dict(name=name, n_layer=2, d_model=8, d_hidden=8), V)


MAKE = {
  'ring': lambda: models.build(FIELDS, V).at_test_time(2),
  'window': with_window,
  'lstm': lambda: recurrent('lstm'),
  'qrnn': lambda: recurrent('qrnn'),
}


@pytest.mark.parametrize('kind', MAKE)
def test_a_memory_that_begins_in_shard_map(case, kind):
  """It is equal in all shards at first, and differs after a scan."""
  _, (_, *rows), _ = case
  model = MAKE[kind]()
  params = base.init_params(model, jax.random.key(0))

  def nll(params, *rows):
    memory = model.init_memory(len(rows[0]))
    return model.apply({'params': params}, *rows, memory, train=False).nll

  mesh = mesh_of((4,), ('rows',), AUTO)
  specs = P(), P('rows'), P('rows')
  run = jax.shard_map(nll, mesh=mesh, in_specs=specs, out_specs=P('rows'))
  found, expected = (jax.jit(f)(params, *rows) for f in (run, nll))
  assert_alike(found, expected)


def test_pmap(case):
  loss, (params, *rows), expected = case
  grad = lambda *args: jax.lax.pmean(jax.value_and_grad(loss)(*args), 'rows')
  rows = [x.reshape(4, -1, T) for x in rows]
  found = jax.pmap(grad, 'rows', in_axes=(None, 0, 0))(params, *rows)
  assert_alike(jax.tree.map(lambda x: x[0], found), expected)
