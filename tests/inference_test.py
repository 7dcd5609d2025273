"""Which parameters of a checkpoint are used; the modes in main_test."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from txl_jax import (
  averaging,
  checkpoint,
  inference,
  optim,
  sharding,
  train_state,
)
from txl_jax import models as models_lib
from txl_jax.data.vocabulary import Vocabulary

VOCABULARY = Vocabulary((32, 97, 98), (5, 3, 2), (10,))
B = 8


def config():
  c = common.get_config()
  c.model.update(n_layer=1, d_model=8, n_head=2, d_head=3, d_ff=10, mem_len=4)
  c.checkpoint = 'latest'
  return c


def write(folder, averaged):
  """A run whose parameters are 1 and their average 2."""
  c = config()
  model = models_lib.build(c.model, len(VOCABULARY))
  averager = None if averaged is None else averaging.Averager(1.0, 0)
  state = jax.jit(
    lambda: train_state.create(
      model, optim.optimiser(c.optim), B, jax.random.key(0), averager
    )
  )()
  fill = lambda tree, x: jax.tree.map(lambda a: jnp.full_like(a, x), tree)
  state = state.replace(params=fill(state.params, 1))
  if averaged is not None:
    average = fill(state.average, 2).replace(count=jnp.int32(averaged))
    state = state.replace(average=average)
  folder.joinpath('vocabulary.json').write_text(
    json.dumps(VOCABULARY.to_json())
  )
  checkpoint.Checkpoints(folder / 'checkpoints').save(
    7, host={}, **train_state.split(state)
  )


@pytest.mark.parametrize(
  'averaged, expected', [(None, 1), (0, 1), (1, 2), (30, 2)]
)
def test_load(tmp_path, averaged, expected):
  write(tmp_path, averaged)
  mesh = sharding.make_mesh()
  step, params, count, vocabulary = inference.load(config(), tmp_path, mesh)
  assert (step, count, vocabulary) == (7, averaged or 0, VOCABULARY)
  assert params['vocabulary']['table'].shape == (3, 8)
  for x in jax.tree.leaves(params):
    np.testing.assert_array_equal(x, expected)
