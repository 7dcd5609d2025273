"""Which device holds what, of rows and of every published config."""

import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from tests.configs_test import NAMES, load
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import target_device
from txl_jax.program.errors import UserError
from txl_jax.training import averaging, optim
from txl_jax.training import state as state_lib


def pieces(array):
  """{device: the part of the array that lies there}."""
  return {s.device: np.asarray(s.data) for s in array.addressable_shards}


def test_replicated():
  x = np.arange(6.0, dtype=np.float32)
  array = jax.device_put(x, placement.replicated(mesh_lib.make_mesh()))
  assert pieces(array).keys() == set(jax.devices())
  for piece in pieces(array).values():
    np.testing.assert_array_equal(piece, x)
  assert placement.by_rows(mesh_lib.make_mesh(), -1) == array.sharding
  weak = jax.ShapeDtypeStruct([6], x.dtype, weak_type=True)
  assert not placement.with_shardings(weak, array.sharding).weak_type


def test_rows():
  mesh = mesh_lib.make_mesh(dict(slices=2, data=1, fsdp=2, tensor=2))
  x = np.arange(3 * 16 * 2).reshape(3, 16, 2)
  array = jax.device_put(x, placement.by_rows(mesh, 1))
  for n, tensor in enumerate(mesh.devices.reshape(4, 2)):
    for device in tensor:
      part = x[:, 4 * n : 4 * n + 4]
      np.testing.assert_array_equal(pieces(array)[device], part)


MESH = AbstractMesh((1, 2, 4, 2), mesh_lib.AXES)


@pytest.mark.parametrize(
  'axes, shape, spec',
  [
    (('fsdp', 'tensor'), (8, 6), P('fsdp', 'tensor')),
    (('fsdp', 'tensor'), (6, 6), P(None, 'tensor')),  # 4 does not divide 6
    (('slices', 'data'), (6, 6), P(None, 'data')),  # one slice
    ((('fsdp', 'tensor'), None), (16, 3), P(('fsdp', 'tensor'))),
    ((('fsdp', 'tensor'),), (12,), P()),  # all of them or none
    ((placement.ROWS,), (16, 3, 3), P(('data', 'fsdp'))),
    ((), (8, 8), P()),
  ],
)
def test_spec(axes, shape, spec):
  assert placement.spec(axes, shape, MESH) == spec


@pytest.mark.parametrize(
  'axes, shape, spec',
  [
    (('fsdp', 'tensor'), (64, 4), P(('fsdp', 'data'), 'tensor')),
    (
      (None, placement.VOCABULARY),
      (3, 128),
      P(None, ('fsdp', 'tensor', 'data')),
    ),
    (('fsdp',), (32, 16), P('fsdp', 'data')),
    (('fsdp', 'tensor'), (32, 32), P('fsdp', ('tensor', 'data'))),
    (('fsdp', None), (66, 16), P('data')),
    (('fsdp', None), (35, 16), P(None, 'data')),
    (('fsdp', None), (60, 15), P('fsdp')),
    (('tensor', None), (32, 32), P('tensor')),
    ((('data', 'fsdp'), None), (64, 64), P(('data', 'fsdp'))),
  ],
)
def test_spec_of_what_replicas_share(axes, shape, spec):
  """In parts of eight or more, where fsdp shards if that can be."""
  assert placement.spec(axes, shape, MESH, over_data=True) == spec


RULES = (
  ('ff/w1/kernel', ('fsdp', 'tensor')),
  ('w[12]/kernel', ('tensor', 'fsdp')),
  ('w[12]/bias', ()),
)


def test_the_first_rule_that_fits_the_end_of_a_path_counts():
  matrix, vector = jnp.zeros([8, 8]), jnp.zeros([8])
  tree = {
    'ff': {'w1': {'kernel': matrix}},
    'other': [{'w1': {'kernel': matrix}}, {'w2': {'bias': vector}}],
    'count': jnp.zeros([]),
  }
  out = jax.tree.map(lambda s: s.spec, placement.by_rules(tree, MESH, RULES))
  assert out == {
    'ff': {'w1': {'kernel': P('fsdp', 'tensor')}},
    'other': [{'w1': {'kernel': P('tensor', 'fsdp')}}, {'w2': {'bias': P()}}],
    'count': P(),
  }


@pytest.mark.parametrize(
  'path', ['ff/w3/kernel', 'ff/w1/kernel/more', 'loff/xw1/kernel', 'kernel']
)
def test_what_no_rule_fits_is_an_error(path):
  tree = jnp.zeros([8, 8])
  for name in reversed(path.split('/')):
    tree = {name: tree}
  message = f'the rule for {path} in SHARDING is None'
  with pytest.raises(UserError, match=message):
    placement.by_rules(tree, MESH, RULES)


def test_a_rule_with_more_axes_than_its_array_is_an_error():
  tree, said = {'w1': {'kernel': jnp.zeros([8])}}, 'length at most 1$'
  with pytest.raises(UserError, match=f'for w1/kernel in .*{said}'):
    placement.by_rules(tree, MESH, RULES)


def state_and_model(name):
  """The shapes of the state of a published config, and its model."""
  config = load(name)
  model = models.build(
    config.model, preparation.vocab_size(sections.read(config).data)
  )
  create = functools.partial(
    state_lib.create,
    model,
    optim.optimiser(config.optim, config.train.steps),
    config.train.batch_size,
    jax.random.key(0),
    averaging.averager(config.optim),
  )
  return jax.eval_shape(create), model


# Of each kind the smaller one; the others take longer.
FEW = 'enwik8_12l', 'lm1b_base', 'ptb', 'pystdlib_tiny', 'wt103_large'


@pytest.mark.thorough
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(n, marks=() if n in FEW else pytest.mark.slow)
    for n in sorted(NAMES)
  ],
)
def test_rules_fit_every_config(name):
  """Parameters, moments and averages alike; no large one is on all devices."""
  state, model = state_and_model(name)
  out = state_lib.shardings(state, MESH, model)

  def specs(tree, shardings):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return [(x.shape, s.spec) for x, s in pairs if x.shape]

  moments = specs(state.opt_state, out.opt_state)
  parts = placement.by_rules(state.params, MESH, model.SHARDING, over_data=True)
  shared = specs(state.params, parts)
  assert moments == dict(adam=2, sgd=1)[load(name).optim.name] * shared
  if state.average:
    assert out.average.params == out.params
  flat = jax.tree_util.tree_leaves_with_path(state.params)
  specs = [[s.spec for s in jax.tree.leaves(t)] for t in (out.params, parts)]
  for (path, x), spec, part in zip(flat, *specs, strict=True):
    # The last bin of WikiText-103 and lm1b has an odd number of words, and
    # eight devices cannot share widths of the published LSTM, QRNN and GCNNs.
    words = re.search('table|output', str(path[-1]))
    odd = x.shape[0 if words else -1] % 8
    assert spec != P() or odd or x.size < 1e6, path
    odd = x.shape[0 if words else -1] % 16
    assert 'data' in str(part) or odd or x.size < 1e6, path


def is_adam(x):
  return hasattr(x, 'mu')


@pytest.mark.default_cases('cutoffs0-False')
@pytest.mark.parametrize('tie_weights', [True, False])
@pytest.mark.parametrize('cutoffs', [(), (128, 384)])
def test_biases_of_the_vocabulary_are_divided_as_its_words(
  tie_weights, cutoffs
):
  """Its words are their rows, whether or not there are few of them."""
  fields = dict(name='transformer_xl', n_layer=1, d_model=8, n_head=1)
  fields |= dict(cutoffs=cutoffs, tie_weights=tie_weights)
  model = models.build(fields, 768)
  optimiser = optim.optimiser(common.get_config().optim, 10)
  state = jax.eval_shape(
    lambda: state_lib.create(model, optimiser, 8, jax.random.key(0))
  )
  out = state_lib.shardings(state, MESH, model)
  words, parts = (P(('fsdp', 'tensor', *more)) for more in ((), ('data',)))
  names = ('table', 'bias') if tie_weights else ('table', 'output', 'bias')
  bins = [f'_{i}' for i in range(3)] if cutoffs else ['']
  leaves = jax.tree.leaves(out.opt_state, is_leaf=is_adam)
  (adam,) = filter(is_adam, leaves)
  for name in (f'{name}{i}' for name in names for i in bins):
    assert out.params['vocabulary'][name].spec == words, name
    for tree in adam.mu, adam.nu:
      assert tree['vocabulary'][name].spec == parts, name


@pytest.mark.thorough
def test_rules_by_name():
  state, model = state_and_model('wt103_large')
  params = jax.tree.map(
    lambda s: s.spec, state_lib.shardings(state, MESH, model).params
  )
  layer = params['layers_3']
  assert layer['attention']['q']['kernel'] == P('fsdp', 'tensor')
  assert layer['attention']['o']['kernel'] == P('tensor', None, 'fsdp')
  assert layer['ff']['w1']['kernel'] == P('fsdp', 'tensor')
  assert layer['ff']['w2']['kernel'] == P('tensor', 'fsdp')
  assert layer['ff']['w1']['bias'] == P('tensor')
  assert layer['norm1']['norm']['scale'] == P()
  assert params['vocabulary']['table_0'] == P(('fsdp', 'tensor'))
  assert params['vocabulary']['bias_0'] == P(('fsdp', 'tensor'))
  assert params['vocabulary']['table_3'] == P()  # 67,735 words
  assert params['vocabulary']['bias_3'] == P()


@pytest.mark.parametrize(
  'shape, order',  # as the compiler for a v5e chose them
  [
    ((3072, 1024), (0, 1)),
    ((160_000, 410), (1, 0)),
    ((67_735, 16), (1, 0)),
    ((10, 41), (0, 1)),
    ((6, 4), (1, 0)),
    ((257, 16, 128), (0, 1, 2)),
    ((3, 410), (0, 1)),
    ((1024, 8, 128), (0, 1, 2)),
    ((410, 10, 41), (1, 2, 0)),
    ((16, 15, 150, 410), (1, 2, 0, 3)),
  ],
)
def test_the_layout_of_arguments_of_tpus(monkeypatch, shape, order):
  def lowered():
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    none = AbstractMesh((), ())
    give = lambda x: placement.for_update([x], none, None)
    return str(jax.make_jaxpr(give)(x))

  assert 'layout' not in lowered()
  device = target_device.Device('tpu', 'TPU v5 lite')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  assert f'major_to_minor={order}' in lowered()
  shape = shape[:1]
  assert 'layout' not in lowered()


def test_gradients_on_a_gpu_share_an_array(monkeypatch):
  """Their bits stay; XLA makes one kernel of those that read one array."""
  device = target_device.Device('gpu', 'NVIDIA H100')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  none = AbstractMesh((), ())
  values = [-0.0, 1e-37, jnp.inf, jnp.nan, 0.1]
  trees = [jnp.array(values), jnp.ones([2, 3], jnp.bfloat16)]
  share = jax.jit(lambda tree: placement.for_update(tree, none, None))
  found = share(trees)
  for x, y in zip(trees, found):
    assert x.dtype == y.dtype and np.array(x).tobytes() == np.array(y).tobytes()
  text = share.lower(trees).as_text()
  assert text.count('optimization_barrier') == 1
  assert text.count('stablehlo.multiply') == 2


def test_arrays_of_all_processes(monkeypatch):
  gather = lambda x, tiled: tiled
  monkeypatch.setattr(multihost_utils, 'process_allgather', gather)
  for here, everywhere in (True, False), (False, True), (False, False):
    x = mock.Mock(is_fully_addressable=here, is_fully_replicated=everywhere)
    assert (placement.fetch(x) is True) != (here or everywhere)
