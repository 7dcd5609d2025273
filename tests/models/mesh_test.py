"""Gradients of every model on a mesh with all axes in use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models import every
from tests.models.cases import CASES
from txl_jax.models import windowed
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement

pytestmark = pytest.mark.thorough

B, T = 8, 6


@pytest.mark.parametrize(
  'name, changes',
  every.some(
    [
      *((name, case.divisible) for name, case in CASES.items()),
      ('transformer_xl', dict(tie_positions=True)),
    ]
  ),
)
def test_gradients_are_those_without_a_mesh(name, changes):
  """Of rows over data and fsdp, parameters over fsdp and tensor."""
  model = every.build(name, dtype='float32', **changes)
  if isinstance(model, windowed.Windowed):
    model = model.model
  params = jax.tree.map(np.float32, direct.random_params(model))
  rng = np.random.default_rng(0)
  tokens, targets = rng.integers(0, every.V, [2, B, T], np.int32)
  memory = model.init_memory(B)

  def loss(params, tokens, targets, memory):
    segment = tokens, targets, memory
    return model.apply({'params': params}, *segment, train=False).nll.sum()

  expected = jax.jit(jax.grad(loss))(params, tokens, targets, memory)
  mesh = mesh_lib.make_mesh(dict(slices=1, data=2, fsdp=2, tensor=2))
  places = placement.by_rules(params, mesh, model.SHARDING)
  rows = placement.by_rows(mesh, 0)
  memory_places = jax.tree.map(
    lambda axis: placement.by_rows(mesh, axis), model.row_axes()
  )

  def on_mesh(*args):
    with mesh_lib.ambient(mesh):
      return jax.grad(loss)(*args)

  given = places, rows, rows, memory_places
  run = jax.jit(on_mesh, in_shardings=given, out_shardings=places)
  found = run(params, tokens, targets, memory)
  scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
  flat = jax.tree_util.tree_leaves_with_path(expected)
  for (path, x), y in zip(flat, jax.tree.leaves(found), strict=True):
    error = float(np.abs(np.asarray(x) - np.asarray(y)).max())
    assert error < 1e-5 * scale, jax.tree_util.keystr(path)
