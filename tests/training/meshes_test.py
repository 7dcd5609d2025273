"""Training is the same on any mesh: losses of 50 steps."""

import functools

import jax
import numpy as np
import pytest

from txl_jax import models
from txl_jax.configs import common
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.training import optim
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

pytestmark = pytest.mark.thorough

V, B, T, STEPS = 64, 16, 8, 50

MESHES = {
  'data': dict(data=8),
  'fsdp': dict(fsdp=8),
  'tensor': dict(tensor=8),
  'all': dict(data=2, fsdp=2, tensor=2),
}
MODELS = {
  'characters': dict(),
  'words': dict(cutoffs=(16, 40), div_val=2, d_embed=16),
}


def config(model):
  c = common.get_config()
  c.model.update(n_layer=2, d_model=32, n_head=8, d_head=8, d_ff=64, mem_len=8)
  c.model.update(dropout=0.1, dropatt=0.1, **MODELS[model])
  c.optim.update(lr=3e-3, warmup=5)
  return c


@functools.cache
def batches():
  """Words that follow one another by a rule, with noise: there is something
  to learn."""
  rng = np.random.default_rng(0)
  out = []
  for n in range(STEPS):
    x = np.cumsum(rng.integers(1, 4, [B, T + 1]), axis=1) % V
    x = x.astype(np.int32)
    batch = dict(inputs=x[:, :-1], targets=x[:, 1:], lengths=None)
    out.append(batch | dict(reset=np.full([B], n % 20 == 0)))
  return out


@functools.cache
def losses(model, sizes, accumulate=1, remat='none', devices=8):
  """Mean nll of each step."""
  c = config(model)
  c.model.remat = remat
  lm, optimiser = models.build(c.model, V), optim.optimiser(c.optim, STEPS)
  mesh = mesh_lib.make_mesh(dict(sizes), jax.devices()[:devices])
  key = jax.random.key(0)
  create = functools.partial(state_lib.create, lm, optimiser, B, key)
  abstract = jax.eval_shape(create)
  step = step_lib.jit_train_step(
    mesh,
    abstract,
    model=lm,
    optimiser=optimiser,
    key=key,
    steps=STEPS,
    accumulate=accumulate,
  )
  shardings = state_lib.shardings(abstract, mesh, lm)
  state = jax.jit(create, out_shardings=shardings)()
  sums = [0.0]
  for batch in batches():
    state = step(state, jax.device_put(batch, placement.by_rows(mesh)))
    sums.append(float(state.sums.nll))
  return np.diff(sums) / (B * T)


@functools.cache
def alone(model, accumulate=1):
  return losses(model, (('data', 1),), accumulate, devices=1)


def cases():
  """Characters and words, with and without accumulation and remat; what the
  combination of all nearly implies is slow."""
  for model in MODELS:
    for mesh in MESHES:
      for accumulate, remat in (1, 'none'), (2, 'layer'):
        quick = model == 'characters' and mesh == 'all' and accumulate > 1
        marks = [] if quick else [pytest.mark.slow]
        yield pytest.param(model, mesh, accumulate, remat, marks=marks)


@pytest.mark.parametrize('model, mesh, accumulate, remat', [*cases()])
def test_same_losses(model, mesh, accumulate, remat):
  """With dropout: its masks do not depend on the partition."""
  expected = alone(model, accumulate)
  assert expected[-5:].mean() < 0.9 * expected[0]
  found = losses(model, tuple(MESHES[mesh].items()), accumulate, remat)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_scores_computed_again():
  found = losses('characters', (('data', 1),), remat='scores', devices=1)
  np.testing.assert_allclose(found, alone('characters'), rtol=1e-5)
