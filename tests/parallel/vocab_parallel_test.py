"""Embedding and softmax of many devices against those of one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from txl_jax.models import embedding
from txl_jax.ops import softmax
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, vocab_parallel

N, D = 48, 16
# The head and the second tail are divided by 8, the first tail is not.
SIZES, WIDTHS = (16, 13, 40), (16, 8, 4)
V = sum(SIZES)

F = jnp.float64
close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)

MESHES = {
  'data': dict(data=8),
  'fsdp': dict(fsdp=8),
  'tensor': dict(tensor=8),
  'mixed': dict(data=2, fsdp=2, tensor=2),
  'slices': dict(slices=2, data=1, fsdp=2, tensor=2),
}


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def weights(seed=0):
  rng = np.random.default_rng(seed)

  def draw(*shape):
    return jnp.array(rng.normal(size=shape), F)

  return softmax.Output(
    [draw(n, d) for n, d in zip(SIZES, WIDTHS)],
    [draw(n) for n in SIZES],
    [draw(d, D) for d in WIDTHS],
    draw(3, WIDTHS[0]),  # a third tail has no words
    draw(3),
  )


def tokens(case):
  rng = np.random.default_rng(1)
  if case == 'one_tail':  # all on a few devices, none on the others
    return jnp.array(rng.integers(29, 35, [N]), jnp.int32)
  return jnp.array(rng.integers(-1, V, [N]), jnp.int32)


def loss(nll, h, targets, output):
  scale = 1 + jnp.arange(len(h)) / 7
  return jnp.sum(scale * nll(h, targets, output, tail_order='descending'))


def nll(h, targets, output, **options):
  weights = vocab_parallel.per_device(output.weights)
  output = output._replace(weights=weights)
  return vocab_parallel.nll(h, targets, output, **options)


def embed(ids, tables, projections, dtype):
  tables = vocab_parallel.per_device(tables)
  return vocab_parallel.embed(ids, tables, projections, dtype)


# What one device finds, compiled once for all meshes.
alone_nll = jax.jit(softmax.nll)
alone_of_nll = jax.jit(
  jax.value_and_grad(functools.partial(loss, softmax.nll), (0, 2))
)


def placed(mesh, h, targets, output):
  """The arguments where the rules put them."""
  names = dict(table=output.weights, bias=output.biases)
  tree = {f'{k}_{i}': x for k, v in names.items() for i, x in enumerate(v)}
  tree = {'vocabulary': tree}
  at = placement.by_rules(tree, mesh, embedding.SHARDING)['vocabulary']

  def put(name, i, x):
    return jax.device_put(x, at[f'{name}_{i}'])

  output = output._replace(
    weights=[put('table', i, x) for i, x in enumerate(output.weights)],
    biases=[put('bias', i, x) for i, x in enumerate(output.biases)],
  )
  fitted = placement.spec((placement.ROWS,), (len(h),), mesh)
  rows = NamedSharding(mesh, fitted)
  return jax.device_put(h, rows), jax.device_put(targets, rows), output


@pytest.mark.thorough
@pytest.mark.parametrize('mesh', MESHES)
@pytest.mark.parametrize(
  'case', ['random', pytest.param('one_tail', marks=pytest.mark.slow)]
)
def test_nll_and_gradients(mesh, case):
  h = jnp.array(np.random.default_rng(2).normal(size=[N, D]), F)
  targets, output = tokens(case), weights()

  expected = alone_of_nll(h, targets, output)
  mesh = mesh_lib.make_mesh(MESHES[mesh])

  @jax.jit
  def run(*args):
    with mesh_lib.ambient(mesh):
      return jax.value_and_grad(functools.partial(loss, nll), (0, 2))(*args)

  jax.tree.map(close, run(*placed(mesh, h, targets, output)), expected)


@pytest.mark.default_cases('fsdp')
@pytest.mark.parametrize('mesh', MESHES)
def test_rows_that_cannot_be_divided(mesh):
  n = 13
  h = jnp.array(np.random.default_rng(2).normal(size=[n, D]), F)
  targets, output = tokens('random')[:n], weights()
  mesh = mesh_lib.make_mesh(MESHES[mesh])

  @jax.jit
  def run(*args):
    with mesh_lib.ambient(mesh):
      return nll(*args)

  close(run(*placed(mesh, h, targets, output)), alone_nll(h, targets, output))


def of_embed(embed):
  """(ids, tables, projections, factor) -> gradients by tables, and x."""

  def total(ids, tables, projections, factor):
    x = embed(ids, tables, projections, F)
    return jnp.sum(factor * x), x

  return jax.grad(total, 1, has_aux=True)


alone_of_embed = jax.jit(of_embed(softmax.embed))


@pytest.mark.default_cases('mixed')
@pytest.mark.parametrize('mesh', MESHES)
def test_embed_and_gradients(mesh):
  ids, output = jnp.maximum(tokens('random'), 0), weights()
  factor = jnp.array(np.random.default_rng(3).normal(size=[N, D]), F)
  more = output.projections, factor
  expected = alone_of_embed(ids, output.weights, *more)
  mesh = mesh_lib.make_mesh(MESHES[mesh])

  @jax.jit
  def run(ids, tables):
    with mesh_lib.ambient(mesh):
      return of_embed(embed)(ids, tables, *more)

  _, ids, there = placed(mesh, factor, ids, output)
  jax.tree.map(close, run(ids, there.weights), expected)


@pytest.mark.default_cases('mixed')
@pytest.mark.parametrize('mesh', MESHES)
def test_gradients_of_tied_weights_are_summed_over_devices_once(mesh):
  ids, output = jnp.maximum(tokens('random'), 0), weights()
  mesh = mesh_lib.make_mesh(MESHES[mesh])

  def total(output, ids):
    weights = vocab_parallel.per_device(output.weights)
    x = vocab_parallel.embed(ids, weights, output.projections, F)
    output = output._replace(weights=weights)
    return loss(vocab_parallel.nll, x, ids, output)

  @jax.jit
  def run(output, ids):
    with mesh_lib.ambient(mesh):
      return jax.grad(total)(output, ids)

  expected = jax.jit(jax.grad(total))(output, ids)
  _, ids, output = placed(mesh, jnp.ones([N, D]), ids, output)
  jax.tree.map(close, run(output, ids), expected)
  text = str(jax.make_jaxpr(run)(output, ids))
  # With or without the axis in front.
  table = rf':f64\[(?:1,)?{SIZES[1]},{WIDTHS[1]}\] = psum'
  assert len(re.findall(table, text)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize('mesh', ['data', 'fsdp', 'tensor', 'mixed'])
def test_words_stay_where_they_are(mesh):
  """No collective yields a table, or the tokens of all devices."""
  h = jnp.ones([N, D], F)
  mesh = mesh_lib.make_mesh(MESHES[mesh])

  def run(h, targets, output):
    with mesh_lib.ambient(mesh):
      given = targets, output.weights, output.projections, jnp.float32
      return loss(nll, h + embed(*given), targets, output)

  args = placed(mesh, h, jnp.maximum(tokens('random'), 0), weights())
  program = jax.jit(jax.grad(run, (0, 2))).lower(*args).compile().as_text()
  gathered = re.findall(r'= \w+\[([\d,]*)\]\S* all-gather', program)
  shapes = [tuple(map(int, s.split(','))) for s in gathered if s]
  # What devices of one group of fsdp show each other: their tokens.
  group = N // placement.row_parts(mesh) * mesh.shape['fsdp']
  allowed = {(group,), *((group, d) for d in (D, *WIDTHS))}
  if mesh.shape['fsdp'] == 1:
    allowed = set()
  assert set(shapes) <= allowed, shapes


@pytest.mark.parametrize('devices', [0, 1, 2])
def test_on_one_device_it_is_the_function_itself(devices):
  h, targets, output = jnp.ones([N, D], F), tokens('random'), weights()
  mesh = devices and mesh_lib.make_mesh(devices=jax.devices()[:devices])
  with mesh_lib.ambient(mesh or None):
    text = str(jax.make_jaxpr(nll)(h, targets, output))
  assert ('shard_map' in text) == (devices == 2)
