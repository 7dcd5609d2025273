"""Models whose attention a kernel computes, and what depends on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct, promotions
from tests.models.small import B, N, T, make, text
from tests.ops.kernels import plain_kernel
from txl_jax.models import base
from txl_jax.ops.kernels import dispatch
from txl_jax.program import target_device
from txl_jax.program.errors import UserError

CASES = {
  'plain': {},
  'no memory': dict(mem_len=0),
  'dropout': dict(dropout=0.2, dropatt=0.3),
  'remat': dict(remat='layer', dropatt=0.3),
  'unrolled': dict(unroll=N, dropatt=0.3),
  'remat, unrolled': dict(remat='scores', unroll=N),
  'a span': dict(same_length='M', untie_biases=True, pre_norm=True),
  'shaw': dict(name='shaw', table_len=6, dropatt=0.3),
  'tied': dict(tie_positions=True, dropatt=0.3),
}


QUICK = 'remat', 'a span', 'shaw', 'tied'


def random_params(model):
  """float32 parameters; to draw them like this compiles nothing."""
  return jax.tree.map(np.float32, direct.random_params(model))


def gradient(model):
  """The jitted (params, *segment) -> (loss, memory), gradient."""

  def loss(params, *segment):
    rngs = {'dropout': jax.random.key(1)}
    out = model.apply({'params': params}, *segment, train=True, rngs=rngs)
    return out.nll.sum(), out.memory

  return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.thorough
@pytest.mark.parametrize(
  'case',
  [
    pytest.param(case, marks=[pytest.mark.slow] * (case not in QUICK))
    for case in CASES
  ],
)
def test_a_kernel_changes_nothing(case, monkeypatch):
  """The loss, the memory and every gradient, over two segments."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  options = dict(CASES[case], dtype='float32')
  plain, fused = (make(**options, attention=x) for x in ('xla', 'triton'))
  params = random_params(plain)
  runs = gradient(plain), gradient(fused)
  memories = [plain.init_memory(B)] * 2
  for segment in zip(*text(2, T)):
    results = [
      run(params, *segment, memory) for run, memory in zip(runs, memories)
    ]
    memories = [memory for (_, memory), _ in results]
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
      np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_what_layers_keep_for_the_backward_pass(monkeypatch):
  """Of a bfloat16 model: nothing wide, and no masks."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  tpu = target_device.Device('tpu')
  monkeypatch.setattr(target_device, 'device', lambda: tpu)
  rates = dict(dropout=0.2, dropatt=0.3, unroll=1)
  model = make(attention='triton', dtype='bfloat16', **rates)
  params = random_params(model)
  (tokens,), (targets,) = text(1, T)
  segment = tokens, targets, model.init_memory(B)

  def loss(params):
    rngs = {'dropout': jax.random.key(1)}
    out = model.apply({'params': params}, *segment, train=True, rngs=rngs)
    return out.nll.sum()

  kept = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
  S = model.config.mem_len + T
  states = [
    (x.dtype.name, x.shape[2:])
    for x in jax.tree.leaves(kept)
    if x.shape[:2] == (N, B) and x.ndim > 3 and x.shape[2] in (T, S)
  ]
  D, F, H, K = 8, 10, 2, 3
  of_memory = [(S, D), (S, H, K), (S, H, K)]  # inputs, keys, values
  # Input, queries, attended, before and after a norm, hidden, before a norm.
  rest = [(T, D), (T, H, K), (T, H, K), (T, D), (T, D), (T, F), (T, D)]
  assert sorted(states) == sorted(('bfloat16', x) for x in of_memory + rest)


@pytest.mark.thorough
def test_a_kernel_that_is_not_there():
  """Training is refused; parameters are made, and used at test time."""
  model = make(attention='triton', dtype='float32')
  params = jax.eval_shape(lambda: base.init_params(model, jax.random.key(0)))
  params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), params)
  (tokens,), (targets,) = text(1, T)
  memory = model.init_memory(B)
  with pytest.raises(UserError) as e:
    gradient(model)(params, tokens, targets, memory)
  start = "model.attention is 'triton'; allowed: auto, xla; triton cannot do"
  assert str(e.value).startswith(start)
  model = model.at_test_time()
  segment = tokens, targets, memory
  use = functools.partial(model.apply, train=False)
  assert jax.eval_shape(use, {'params': params}, *segment).nll.shape


@pytest.mark.thorough
@pytest.mark.parametrize('longest', [0, T])
@pytest.mark.parametrize(
  'changes',
  [{}, dict(name='shaw', table_len=6), dict(tie_positions=True)],
)
def test_frozen_weights_are_those_of_training(matrix_units, changes, longest):
  """Cast once, in bfloat16, they give the same bits."""
  model = make(dtype='bfloat16', **changes)
  params = random_params(model)
  model = model.at_test_time(longest=longest)
  (tokens,), (targets,) = text(1, T)
  segment = tokens, targets, model.init_memory(B)
  run = jax.jit(lambda variables: model.apply(variables, *segment, train=False))
  frozen = base.freeze(model, params)
  casts = {x.dtype.name for x in jax.tree.leaves(frozen['params'])}
  assert casts == {'float32', 'bfloat16'}
  both = run({'params': params}), run(frozen)
  for x, y in zip(*map(jax.tree.leaves, both), strict=True):
    np.testing.assert_array_equal(*np.asarray([x, y], np.float32))


@pytest.mark.parametrize(
  'name', ['transformer_xl', pytest.param('shaw', marks=pytest.mark.slow)]
)
def test_frozen_kernels_on_a_gpu_have_their_outputs_first(name, monkeypatch):
  """And what is computed with them is the same: T tokens, then one."""
  more = dict(table_len=6) if name == 'shaw' else {}
  model = make(name=name, dtype='float32', **more)
  params = random_params(model)
  model = model.at_test_time(longest=T)
  (tokens,), _ = text(1, T)
  plain = model.frozen(params)
  gpu = target_device.Device('gpu')
  monkeypatch.setattr(target_device, 'device', lambda: gpu)
  turned = model.frozen(params)

  def shape(variables, layer):
    return jax.tree.map(jnp.shape, variables['layers_1'][layer])

  D, F, H, K = 8, 10, 2, 3
  heads = shape(turned['frozen'], 'attention')
  assert heads == {'qkv': {'kernel': (3, H, K, D)}}
  ff = {'w1': {'kernel': (F, D)}, 'w2': {'kernel': (D, F)}}
  assert shape(turned['frozen'], 'ff') == ff
  ff = {'w1': {'bias': (F,)}, 'w2': {'bias': (D,)}}
  assert shape(turned['params'], 'ff') == ff
  names = {'q', 'k', 'v', 'qkv'}
  assert not names & set(turned['params']['layers_1']['attention'])
  assert shape(plain['params'], 'attention')['qkv'] == {'kernel': (D, 3, H, K)}

  @jax.jit
  def run(variables):
    read = functools.partial(model.apply, variables, method='logits')
    first, memory = read(tokens, model.init_memory(B))
    return first, read(tokens[:, :1], memory)

  with promotions.forbidden():
    results = run(plain), run(turned)
  for x, y in zip(*map(jax.tree.leaves, results)):
    np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_device():
  here = target_device.device()
  assert here == ('cpu', jax.devices()[0].device_kind)
  for default in 'cpu', jax.devices()[1]:
    with jax.default_device(default):
      assert target_device.device() == here
  mesh = jax.make_mesh((2,), ('x',))
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    assert target_device.device() == here
