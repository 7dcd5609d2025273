"""What comes back of a checkpoint, and what is refused."""

import functools
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from tests.refusing import refused
from tests.runs.checkpoint.saves import (
  HOST,
  PARAMS,
  TRAINING,
  abstract,
  assert_whole,
  bits,
  cut,
  files,
  mesh_of,
  names,
  save,
)
from tests.training import small
from txl_jax import models
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint
from txl_jax.training import state as state_lib

# What comes back


MODEL = models.build(small.FIELDS, small.V, dtype='bfloat16')


@functools.cache
def state_of_training():
  """A TrainState as training has it, with numbers that are hard to keep."""
  optimiser = optax.chain(
    optax.clip_by_global_norm(0.25),
    optax.scale_by_adam(mu_dtype=jnp.bfloat16),
  )
  create = lambda: state_lib.create(MODEL, optimiser, 8, jax.random.key(0))
  rng = np.random.default_rng(0)

  def fill(x):
    if jnp.issubdtype(x.dtype, jnp.integer):
      return rng.integers(-9, 9, x.shape).astype(x.dtype)
    out = np.asarray(rng.normal(size=x.shape)).astype(x.dtype)
    strange = [math.nan, math.inf, -math.inf, -0.0, 1e-40]
    if out.size >= len(strange):
      out.flat[: len(strange)] = strange
    return out

  return jax.tree.map(fill, jax.eval_shape(create))


@pytest.mark.thorough
@pytest.mark.parametrize('before, after', [(1, 8), (8, 1), (8, 8)])
def test_training_comes_back_bit_for_bit(tmp_path, before, after):
  state = state_of_training()
  dtypes = {str(x.dtype) for x in jax.tree.leaves(state)}
  assert dtypes == {'bfloat16', 'float32', 'int32'}
  before, after = (
    state_lib.shardings(state, mesh_of(n), MODEL) for n in (before, after)
  )
  placed = jax.device_put(state, before)
  folder = tmp_path / 'checkpoints'
  checkpoint.Checkpoints(folder).save(
    7, HOST, params=placed.params, training=placed.replace(params=())
  )

  wanted = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    state,
    after,
  )
  c = checkpoint.Checkpoints(folder)
  assert c.newest() == 7
  got = c.restore(7, params=wanted.params, training=wanted.replace(params=()))
  got = got['training'].replace(params=got['params'])
  assert jax.tree.structure(got) == jax.tree.structure(state)
  assert bits(got) == bits(state)
  assert jax.tree.map(lambda x: x.sharding, got) == after


def test_an_average_beside_the_parameters(c):
  assert not c.has(2, 'average')
  average = {'params': PARAMS, 'count': np.int32(3)}
  save(c, 3, average=jax.tree.map(jnp.asarray, average))
  assert c.has(3, 'average') and c.newest() == 3
  got = c.restore(3, average=abstract(average))
  assert got.keys() == {'average'} and bits(got['average']) == bits(average)
  assert_whole(c, 3)
  cut(max(files(c.folder / '3' / 'average')))
  assert c.newest() == 2


def test_an_average_that_is_not_there(c):
  message = refused(c.restore, 2, average=abstract({'count': np.int32(3)}))
  where = 'nothing in the checkpoint, int32[] in this config'
  assert message == f'{c.folder}/2/average/count is {where}'


@pytest.mark.parametrize(
  'text, cause',
  [
    ('x' * 300, 'x' * 300),
    ('y' + 'x' * 300, '…' + 'x' * 300),
    ('torn [tensorstore_spec={}]', 'torn'),
  ],
)
def test_the_cause_of_an_error_is_last(c, monkeypatch, text, cause):
  def torn(*_):
    raise ValueError(text)

  monkeypatch.setattr(ocp.JsonCheckpointHandler, 'restore', torn)
  message = refused(c.host, 2)
  assert message == f'{c.folder}/2/host cannot be restored: {cause}'


def test_host_part(tmp_path):
  c = checkpoint.Checkpoints(tmp_path)
  host = {'best': math.inf, 'worst': 0.1 + 0.2, 'none': None, 'step': 2**40}
  save(c, 0, host)
  assert c.host(0) == host
  assert c.newest() == 0


def test_no_folder(tmp_path):
  c = checkpoint.Checkpoints(tmp_path / 'a' / 'b')
  assert c.steps() == []
  assert c.newest() is None and not c.usable(0)
  c.recover()
  c.clean(0)
  assert names(tmp_path) == []
  save(c, 3)  # makes it
  assert_whole(c, 3)


# Another config than the one that wrote the checkpoint


def changed(path, value):
  tree = {**PARAMS, 'deep': dict(PARAMS['deep'])}
  *parents, last = path.split('/')
  at = tree
  for key in parents:
    at = at[key]
  if value is None:
    del at[last]
  else:
    at[last] = value
  return tree


MISMATCHES = {
  'shape': ('table', np.zeros([8, 4], np.float32), '[8, 3]', '[8, 4]'),
  'rank': ('table', np.zeros([24], np.float32), '[8, 3]', '[24]'),
  'dtype': ('table', np.zeros([8, 3], np.int32), 'float32', 'int32'),
  'width': ('deep/half', np.zeros([4], 'f4'), 'bfloat16[4]', 'float32[4]'),
  'missing': ('deep/more', np.zeros([4], np.int32), 'nothing', 'int32[4]'),
  'extra': ('deep/half', None, 'bfloat16[4]', 'nothing'),
}


@pytest.mark.parametrize('kind', MISMATCHES)
def test_other_arrays(c, kind):
  path, value, found, wanted = MISMATCHES[kind]
  message = refused(c.restore, 2, params=abstract(changed(path, value)))
  assert f'params/{path}' in message and str(c.folder / '2') in message
  assert message.index(found) < message.index(wanted)
  assert_whole(c, 2)


def test_an_item_in_another_dtype(c):
  wanted = abstract(changed('deep/half', np.zeros([4], np.float32)))
  half = c.restore(2, cast=['params'], params=wanted)['params']['deep']['half']
  assert half.dtype == np.float32 and half.tolist() == [0, 1, 2, 3]
  wanted = abstract(changed('deep/half', np.zeros([5], np.float32)))
  with pytest.raises(UserError, match=r'half is \[4\] in the .*, \[5\] in'):
    c.restore(2, cast=['params'], params=wanted)


def test_other_arrays_of_training(c):
  wanted = abstract({**TRAINING, 'rows': np.zeros([4, 2], np.int32)})
  with pytest.raises(UserError, match=r'training/rows is int32\[8, 2\]'):
    c.restore(2, params=abstract(PARAMS), training=wanted)


@pytest.mark.parametrize('lost', ['', 'params', 'host'])
def test_parts_that_are_not_there(c, lost):
  shutil.rmtree(c.folder / '2' / lost)
  readers = {'params': lambda: c.restore(2, params=abstract(PARAMS))}
  readers['host'] = lambda: c.host(2)
  for item, read in readers.items():
    if lost in ('', item):
      assert str(c.folder / '2') in refused(read)
