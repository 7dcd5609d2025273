"""Transformer-XL against the direct formula, and what its fields mean."""

import functools
import math

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.small import (
  B,
  N,
  T,
  V,
  assert_direct_formula,
  assert_gradient,
  make,
  text,
)
from txl_jax import attention, models
from txl_jax.models import base, ring_model, transformer_xl
from txl_jax.models.transformer_xl import Config
from txl_jax.ops import matmul
from txl_jax.program import target_device
from txl_jax.program.errors import UserError


def shapes_of(model):
  """{path: shape} of the parameters."""
  shapes = flax.traverse_util.flatten_dict(base.param_shapes(model), sep='/')
  return {name: x.shape for name, x in shapes.items()}


CASES = {
  'default': dict(),
  'untied': dict(untie_biases=True, clamp_len=3),
  'pre_norm': dict(pre_norm=True, same_length='M+1', memory_init='zeros'),
  'pre_norm_untied': dict(pre_norm=True, untie_biases=True, clamp_len=6),
  'span_M': dict(same_length='M', memory_init='zeros', clamp_len=4),
  'span_M+1': dict(same_length='M+1', unroll=2),
  'T_above_M': dict(mem_len=2, same_length='M', ln_eps=1e-2),
  'no_memory': dict(mem_len=0, tie_weights=False),
  'no_memory_span': dict(mem_len=0, same_length='M', n_layer=1),
  'ring': dict(longest=T, memory_init='zeros', clamp_len=3),
  'ring_pre_norm': dict(longest=T, pre_norm=True, untie_biases=True),
  'ring_span': dict(longest=T + 1, mem_len=3, same_length='M', unroll=2),
  'ring_span_M+1': dict(longest=2 * T, same_length='M+1'),
  'tied': dict(tie_positions=True),
  'tied_pre_norm': dict(
    tie_positions=True, pre_norm=True, clamp_len=3, memory_init='zeros'
  ),
  'tied_no_memory': dict(tie_positions=True, mem_len=0, unroll=2),
  'ring_groups': dict(longest=T // 2, mem_len=32),  # two at once
  'ring_tied': dict(longest=T, tie_positions=True, same_length='M'),
  'no_ring': dict(longest=T, pre_norm=True, memory_init='zeros'),
}
PADDED = 'default', 'pre_norm', 'T_above_M', 'ring', 'ring_span'
# Their row 0 has no padding there, so that most of this is shown twice.
_UNPADDED = [
  pytest.param(case, None, marks=[pytest.mark.slow] * (case in PADDED[1:]))
  for case in CASES
]


@pytest.mark.default_cases('span_M-None')
@pytest.mark.parametrize(
  'case, lengths',
  _UNPADDED + [(case, (2, 0, T)) for case in PADDED],
)
def test_direct_formula(case, lengths):
  assert_direct_formula(make(**CASES[case]), lengths)


@pytest.mark.thorough
@pytest.mark.parametrize('case', [case for case in CASES if 'ring' in case])
def test_several_segments_in_one_call(case):
  """As if in calls of their own, from any slot on and more than a ring has."""
  model = make(**CASES[case])
  T, params = ring_model.joint_segment_len(model), direct.random_params(model)
  if case == 'no_ring':
    assert T == 0 == ring_model.rewindable(model)
    return
  tokens, targets = text(9, T)
  with jax.enable_x64(True):
    run = jax.jit(
      functools.partial(model.apply, {'params': params}, train=False)
    )
    one, several, expected = model.init_memory(B), model.init_memory(B), []
    for s in range(9):
      out = run(tokens[s], targets[s], one)
      expected.append(out.nll)
      one = out.memory
    for first, last in (0, 1), (1, 5), (5, 9):
      given, wanted, nll = (
        np.concatenate(x[first:last], axis=1)
        for x in (tokens, targets, expected)
      )
      out = run(given, wanted, several)
      several = out.memory
      np.testing.assert_allclose(out.nll, nll, rtol=0, atol=1e-10)
  assert several.at == one.at
  np.testing.assert_array_equal(several.filled, one.filled)


@pytest.mark.parametrize(
  'platform, M, T, K, slots',
  [
    ('cpu', 9, 4, 64, 16),  # the memory and a segment, in whole segments
    ('cpu', 80, 1, 64, 90),  # an eighth of the memory
    ('cpu', 4096, 1, 50, 4196),  # as wide as the states of all layers
    ('cpu', 4096, 1, 200, 4224),
    ('tpu', 4096, 1, 150, 4352),
    ('tpu', 4096, 1, 64, 4224),
  ],
)
def test_slots_of_a_ring(platform, M, T, K, slots, monkeypatch):
  """Room for queries beside the memory; on a TPU, a multiple of 128."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  model = make(mem_len=M, d_head=K, dtype='float32').at_test_time(T)
  assert model._slots == slots


def test_parts_of_segments_and_padding_are_refused():
  model = make(longest=T, dtype='float32')
  params, memory = direct.random_params(model), model.init_memory(B)
  for count, lengths in (T + 1, None), (2 * T, np.array([1, 2])):
    tokens = np.zeros([B, count], np.int32)
    with pytest.raises(ValueError, match=f'{count} tokens; allowed: at most'):
      model.apply(
        {'params': params}, tokens, memory, lengths=lengths, method='logits'
      )


def test_no_gradient_reaches_the_memory_given():
  """Stopped by the layer and, on a CPU, by the gradient of attention."""
  model = make(dtype='float32')
  params = direct.random_params(model)
  (tokens,), (targets,) = text(1, T)
  memory = jax.tree.map(jnp.ones_like, model.init_memory(B))

  @jax.jit
  @jax.grad
  def gradient(states):
    given = memory.replace(states=states)
    return model.apply(
      {'params': params}, tokens, targets, given, train=False
    ).nll.sum()

  found = jax.tree.leaves(gradient(memory.states))
  assert found and not any(x.any() for x in found)


def test_layers_with_calls_of_their_own_get_no_ring():
  """It would compute another function than training did."""

  class Sharper(transformer_xl.Attention):
    def attend(self, q, *others):
      return super().attend(2 * q, *others)

  class SharperLayer(transformer_xl.Layer):
    ATTENTION = Sharper

  class Skipping(transformer_xl.Layer):
    def __call__(self, x, memory, *others):
      y, memory = super().__call__(x, memory, *others)
      return x + y, memory

  class Gated(transformer_xl.Layer):
    def after_attention(self, x, attended, *bits):
      return 2 * super().after_attention(x, attended, *bits)

  plain = make(dtype='float32')
  for layer, has_ring in (SharperLayer, 0), (Skipping, 0), (Gated, T):

    class Model(transformer_xl.TransformerXL):
      LAYER = layer

    model = Model(plain.vocab_size, plain.config).at_test_time(longest=T)
    assert ring_model.rewindable(model) == has_ring

  class Doubled(transformer_xl.TransformerXL):
    def states(self, tokens, memory, **options):
      h, memory = super().states(tokens, memory, **options)
      return 2 * h, memory

  model = Doubled(plain.vocab_size, plain.config).at_test_time(longest=T)
  assert not ring_model.rewindable(model)


def test_rings_on_a_tpu_have_a_multiple_of_128_slots(monkeypatch):
  """The kernel that moves scores to slots needs them."""
  model = make(dtype='float32').at_test_time(longest=T)
  slots = lambda: jax.tree.leaves(model.init_memory(B).states)[0].shape[1]
  assert slots() % 128
  tpu = target_device.Device('tpu', 'TPU v5 lite')
  monkeypatch.setattr(target_device, 'device', lambda: tpu)
  assert slots() and slots() % 128 == 0


@pytest.mark.default_cases('changes0')
@pytest.mark.parametrize(
  'changes', [dict(pre_norm=True, untie_biases=True), dict(tie_positions=True)]
)
def test_gradient(changes):
  assert_gradient(make(**changes, same_length='M+1', mem_len=3))


def test_memory_init():
  for start, filled in ('empty', 0), ('zeros', 5):
    model = make(memory_init=start, mem_len=5, dtype='bfloat16')
    memory = model.init_memory(B)
    states, counts = memory.states, memory.filled
    assert states.shape == (N, B, 5, 8) and not states.any()
    assert states.dtype == model.config.state_dtype
    assert counts.tolist() == [filled] * B and counts.dtype == jnp.int32
    used = memory.replace(filled=counts * 0 + 2, states=states + 1)
    reset = model.reset_memory(used, jnp.array([False, True]))
    assert reset.filled.tolist() == [2, filled]
    assert (reset.states[:, 0] == 1).all() and not reset.states[:, 1].any()


def test_memory_has_no_gradient():
  model = make(pre_norm=True, memory_init='zeros', dtype='float32')
  params, (tokens, targets) = direct.random_params(model), text(1, T)
  memory = model.init_memory(B)

  def total(states):
    past = memory.replace(states=states)
    args = {'params': params}, tokens[0], targets[0], past
    return model.apply(*args, train=False).nll.sum()

  states = jax.random.normal(jax.random.key(0), memory.states.shape)
  found, gradient = jax.jit(jax.value_and_grad(total))(states)
  assert found != total(memory.states) and not gradient.any()


def test_no_memory_is_no_array():
  model = make(mem_len=0)
  assert model.init_memory(B) == model.row_axes() == ()
  assert not model.remembers() and make().remembers()
  assert model.reset_memory((), jnp.array([False, True])) == ()


def test_parameter_shapes():
  shapes = shapes_of(make(dtype='float32'))
  heads = {f'attention/{x}/kernel': (8, 2, 3) for x in 'qkvr'}
  norms = {f'norm{n}/norm/{x}': (8,) for n in (1, 2) for x in ('scale', 'bias')}
  layer = heads | norms | {'attention/o/kernel': (2, 3, 8)}
  layer |= {'ff/w1/kernel': (8, 10), 'ff/w1/bias': (10,)}
  layer |= {'ff/w2/kernel': (10, 8), 'ff/w2/bias': (8,)}
  assert shapes == {
    'vocabulary/table': (V, 8),
    'vocabulary/bias': (V,),
    'biases/u': (2, 3),
    'biases/v': (2, 3),
    **{f'layers_{n}/{name}': s for n in range(N) for name, s in layer.items()},
  }
  changed = shapes_of(
    make(dtype='float32', untie_biases=True, tie_weights=False)
  )
  assert changed.pop('vocabulary/output') == (V, 8)
  for name in 'uv':
    for n in range(N):
      assert changed.pop(f'layers_{n}/biases/{name}') == (2, 3)
    shapes.pop(f'biases/{name}')
  assert changed == shapes
  tied = shapes_of(make(dtype='float32', tie_positions=True))
  gone = {*shapes} - {*tied}
  assert gone == {f'layers_{n}/attention/r/kernel' for n in range(N)}
  assert {*tied} <= {*shapes} and not [x for x in tied if 'biases' in x]


@pytest.mark.thorough
def test_initialisation():
  assert make().config.init_std == 0.02
  init_std = 0.005
  model = make(
    d_model=64, d_ff=128, n_head=4, d_head=16, vocab_size=200,
    dtype='float32', init_std=init_std, untie_biases=True, tie_weights=False,
  )  # fmt: skip
  params = base.init_params(model, jax.random.key(0))
  params = flax.traverse_util.flatten_dict(params, sep='/')
  for name, x in params.items():
    x = np.asarray(x, np.float64)
    if name.endswith('bias'):
      np.testing.assert_array_equal(x, 0, err_msg=name)
      continue
    mean = 1 if name.endswith('scale') else 0
    error = init_std / math.sqrt(x.size)
    assert abs(x.mean() - mean) < 5 * error, name
    assert abs(x.std() - init_std) < 5 * error / math.sqrt(2), name
    if name.startswith('layers_0'):
      other = params[name.replace('layers_0', 'layers_1')]
      assert (x != other).mean() > 0.9, name


@pytest.mark.thorough
def test_bfloat16_tells_far_distances_apart(monkeypatch):
  """The table is made of 604 different distances, and rounded afterwards."""
  model = make(mem_len=600, dtype='bfloat16')
  tables, sinusoid = [], attention.sinusoid

  def watched(d, D):
    tables.append(np.asarray(d))
    return sinusoid(d, D)

  params = jax.tree.map(np.float32, direct.random_params(make()))
  monkeypatch.setattr(attention, 'sinusoid', watched)
  tokens, targets = text(1, T)
  model.apply(
    {'params': params}, tokens[0], targets[0], model.init_memory(B), train=False
  )
  (d,) = tables
  assert d.dtype == np.float32
  np.testing.assert_array_equal(d, np.arange(603, -1, -1))


def test_tied_positions_have_no_biases_to_untie():
  config = models.MODELS['transformer_xl'].Config
  (problem,) = config(tie_positions=True, untie_biases=True).problems()
  assert problem[0] == 'untie_biases' and 'tie_positions' in problem[1]
  assert not [*config(untie_biases=True).problems()]
  assert not [*config(tie_positions=True).problems()]


def test_cutoffs_beyond_the_vocabulary():
  with pytest.raises(UserError) as e:
    models.build(dict(name='transformer_xl', cutoffs=[V, V + 1]), V)
  assert str(e.value) == (
    f'model.cutoffs is ({V}, {V + 1}); allowed: a first number below {V}, the '
    'size of the vocabulary'
  )


RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 3, 8]) * [[[3.0]], [[1e-2]]]  # eps matters in row 1


@pytest.mark.parametrize('eps', [1e-5, 1e-2])
def test_layer_norm(eps):
  params = {'norm': {'scale': RNG.normal(size=8), 'bias': RNG.normal(size=8)}}
  with jax.enable_x64(True):
    module = transformer_xl.LayerNorm(Config(ln_eps=eps, dtype='float64'))
    out = module.apply({'params': params}, jnp.array(X))
  expected = direct.layer_norm(X, params, eps)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_layer_norm_is_computed_in_float32(dtype):
  """A mean of 1,000 squares to 10^6 and would hide a variance of 1."""
  x = jnp.array(1000 + 8 * RNG.normal(size=[1, 1, 64]), dtype)
  module = transformer_xl.LayerNorm(Config(init_std=0.0, dtype=dtype))
  variables = module.init(jax.random.key(0), x)
  assert variables['params']['norm']['scale'].dtype == jnp.float32
  out = module.apply(variables, x)
  assert out.dtype == matmul.state_dtype(dtype)
  one = {'norm': {'scale': np.ones(64), 'bias': np.zeros(64)}}
  expected = direct.layer_norm(np.asarray(x, np.float64), one, 1e-5)
  rtol, atol = (2**-8, 1e-3) if dtype == 'bfloat16' else (1e-4, 1e-4)
  np.testing.assert_allclose(
    np.asarray(out, np.float64), expected, rtol=rtol, atol=atol
  )


def test_biases():
  module = transformer_xl.Biases(
    Config(n_head=40, d_head=50, init_std=0.1, dtype='bfloat16')
  )
  (u, v), variables = module.init_with_output(jax.random.key(0))
  params = variables['params']
  assert params.keys() == {'u', 'v'}
  for x, param in zip((u, v), (params['u'], params['v'])):
    assert param.shape == (40, 50) and param.dtype == jnp.float32
    assert abs(param.std() - 0.1) < 0.01
    assert x.dtype == matmul.state_dtype('bfloat16')
    np.testing.assert_array_equal(x, param.astype(x.dtype))
  assert (params['u'] != params['v']).all()
