"""Transformer-XL against the direct formula, and what its fields mean."""

import functools
import math

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.small import B, N, T, V, make, text
from txl_jax import attention, models
from txl_jax.models import ring_model, transformer_xl
from txl_jax.models.transformer_xl import Config
from txl_jax.ops import matmul
from txl_jax.program import target_device
from txl_jax.program.errors import UserError


def init(model):
  """Fresh parameters, {path: array}, not jitted."""
  tokens = jnp.zeros([1, 1], jnp.int32)
  memory = model.init_memory(1)
  variables = model.init(jax.random.key(0), tokens, tokens, memory, train=False)
  return flax.traverse_util.flatten_dict(variables['params'], sep='/')


def shapes_of(model):
  fresh = jax.eval_shape(lambda: init(model))
  return {name: x.shape for name, x in fresh.items()}


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
  """Three segments, both rows; lengths is that of row 1 in each segment."""
  model = make(**CASES[case])
  params = direct.random_params(model)
  tokens, targets = text(3, T)
  rows = [direct.init_memory(model) for _ in range(B)]
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(model.apply, train=False))
    memory = model.init_memory(B)
    for s in range(3):
      n = [T, T if lengths is None else lengths[s]]
      padded = None if lengths is None else np.array(n, np.int32)
      out = run(
        {'params': params}, tokens[s], targets[s], memory, lengths=padded
      )
      memory = out.memory
      for b in range(B):
        part = np.s_[s, b, : n[b]]
        logits, rows[b] = direct.segment(model, params, tokens[part], rows[b])
        nll = direct.nll(logits, targets[part])
        np.testing.assert_allclose(out.nll[b, : n[b]], nll, rtol=0, atol=1e-10)
        filled = len(rows[b][0])
        if not model.remembers():
          assert memory == ()
          continue
        assert min(memory.filled[b], model.config.mem_len) == filled
        if ring_model.rewindable(model):
          continue  # memory is keys and values; nll shows that they are right
        np.testing.assert_allclose(
          memory.states[:, b, model.config.mem_len - filled :],
          np.stack(rows[b]),
          rtol=0,
          atol=1e-10,
        )


@pytest.mark.thorough
@pytest.mark.parametrize('case', [case for case in CASES if 'ring' in case])
def test_several_segments_in_one_call(case):
  """As if in calls of their own, from any slot on and more than a ring has."""
  model = make(**CASES[case])
  T, params = ring_model.joint_segment_len(model), direct.random_params(model)
  if case == 'no_ring':
    assert T == 0
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


@pytest.mark.thorough
@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_frozen_parameters(platform, monkeypatch):
  """Joined kernels, and those that GPUs have transposed, change no logit."""
  device = target_device.Device(platform)
  model = make(longest=T)
  params = direct.random_params(model)
  tokens = text(3, T)[0]
  with jax.enable_x64(True):

    def logits(variables):
      memory, segments = model.init_memory(B), []
      for segment in tokens:
        out, memory = model.apply(variables, segment, memory, method='logits')
        segments.append(out)
      return np.stack(segments)

    expected = logits({'params': params})
    monkeypatch.setattr(target_device, 'device', lambda: device)
    variables = model.frozen(params)
    found = logits(variables)
  layer = variables['params' if platform == 'cpu' else 'frozen']['layers_0']
  D, H, K = model.config.d_model, model.config.n_head, model.config.d_head
  shape = (D, 3, H, K) if platform == 'cpu' else (3, H, K, D)
  assert layer['attention']['qkv']['kernel'].shape == shape
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


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
  """Of a segment after a memory, against differences of the direct formula."""
  model = make(**changes, same_length='M+1')
  params = direct.random_params(model)
  tokens, targets = text(2, T)
  rows = [direct.init_memory(model) for _ in range(B)]
  for b in range(B):
    _, rows[b] = direct.segment(model, params, tokens[0, b], rows[b])
  rng = np.random.default_rng(0)
  step = 1e-6
  with jax.enable_x64(True):

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient(params, *args):
      out = model.apply({'params': params}, *args, train=False)
      return jnp.sum(out.nll), out.memory

    _, memory = gradient(params, tokens[0], targets[0], model.init_memory(B))
    grads, _ = gradient(params, tokens[1], targets[1], memory)
    grads = jax.tree.map(np.asarray, grads)

  def slow(p):
    logits = [
      direct.segment(model, p, tokens[1, b], rows[b])[0] for b in (0, 1)
    ]
    return sum(direct.nll(logits[b], targets[1, b]).sum() for b in (0, 1))

  flat = flax.traverse_util.flatten_dict(params)
  for path, grad in flax.traverse_util.flatten_dict(grads).items():
    direction = rng.normal(size=grad.shape)
    moved = lambda s, path=path, direction=direction: slow(
      flax.traverse_util.unflatten_dict(
        {**flat, path: flat[path] + s * direction}
      )
    )
    expected = (moved(step) - moved(-step)) / (2 * step)
    actual = np.sum(grad * direction)
    np.testing.assert_allclose(
      actual, expected, rtol=1e-6, atol=1e-6, err_msg='/'.join(path)
    )


@pytest.mark.default_cases('M+1-4')
@pytest.mark.parametrize(
  'same_length, span', [('off', 99), ('M', 3), ('M+1', 4)]
)
def test_spans(same_length, span):
  """Which tokens the logits of one layer depend on, by their gradients."""
  length = 6
  model = make(same_length=same_length, mem_len=3, n_layer=1, tie_weights=False)
  params = direct.random_params(model)
  tokens = np.arange(length, dtype=np.int32)[None]  # all different

  with jax.enable_x64(True):
    memory = model.init_memory(1)

    @jax.jit
    @jax.jacrev
    def jacobian(table):
      vocabulary = {**params['vocabulary'], 'table': table}
      variables = {'params': {**params, 'vocabulary': vocabulary}}
      logits, _ = model.apply(variables, tokens, memory, method='logits')
      return logits[0, :, 0]

    # [T, V, D]: of the logit at each position by each token's embedding.
    sizes = np.abs(jacobian(params['vocabulary']['table'])).max(axis=-1)
  for i in range(length):
    for j in range(length):
      assert (sizes[i, j] > 1e-8) == (0 <= i - j < span)
      assert sizes[i, j] == 0 or 0 <= i - j < span


def test_memory_init():
  mem_len = 5
  for start, filled in ('empty', 0), ('zeros', mem_len):
    model = make(memory_init=start, mem_len=mem_len, dtype='bfloat16')
    memory = model.init_memory(B)
    assert memory.states.shape == (N, B, mem_len, 8)
    assert (
      memory.states.dtype == model.config.state_dtype
      and not memory.states.any()
    )
    assert memory.filled.tolist() == [filled] * B
    assert memory.filled.dtype == jnp.int32
    used = memory.replace(filled=memory.filled * 0 + mem_len // 2)
    used = used.replace(states=used.states + 1)
    reset = model.reset_memory(used, jnp.array([False, True]))
    assert reset.filled.tolist() == [mem_len // 2, filled]
    assert (reset.states[:, 0] == 1).all() and not reset.states[:, 1].any()


def test_no_memory_is_no_array():
  model = make(mem_len=0)
  assert model.init_memory(B) == model.row_axes() == ()
  assert not model.remembers() and make().remembers()
  assert model.reset_memory((), jnp.array([False, True])) == ()


def test_parameter_shapes():
  shapes = shapes_of(make(dtype='float32'))
  heads = {f'attention/{x}/kernel': (8, 2, 3) for x in 'qkvr'}
  norms = {f'norm{n}/norm/{x}': (8,) for n in (1, 2) for x in ('scale', 'bias')}
  layer = {
    **heads,
    'attention/o/kernel': (2, 3, 8),
    'ff/w1/kernel': (8, 10),
    'ff/w1/bias': (10,),
    'ff/w2/kernel': (10, 8),
    'ff/w2/bias': (8,),
    **norms,
  }
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
  params = jax.jit(lambda: init(model))()
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
def test_bfloat16(matrix_units):
  """float32 parameters, gradients and nll."""
  # Distances far above 256, where bfloat16 cannot count.
  far = dict(mem_len=600, d_model=16, n_layer=1, memory_init='zeros')
  model, exact = make(**far, dtype='bfloat16'), make(**far, dtype='float32')
  fresh = jax.eval_shape(lambda: init(model))
  assert {str(x.dtype) for x in fresh.values()} == {'float32'}
  params = jax.tree.map(np.float32, direct.random_params(model))
  # The queries look for positions, the memory says which it was.
  params['biases']['v'] *= 10
  tokens, targets = text(1, T)
  states = np.random.default_rng(0).normal(size=[1, B, 600, 16])
  results = []
  for m in model, exact:
    memory = m.init_memory(B).replace(
      states=states.astype(m.config.state_dtype)
    )

    def loss(params, m=m, memory=memory):
      out = m.apply(
        {'params': params}, tokens[0], targets[0], memory, train=False
      )
      return out.nll.sum(), out

    grads, _ = jax.eval_shape(jax.grad(loss, has_aux=True), params)
    assert {str(x.dtype) for x in jax.tree.leaves(grads)} == {'float32'}
    _, out = jax.jit(loss)(params)
    assert out.nll.dtype == jnp.float32
    assert out.memory.states.dtype == m.config.state_dtype
    results.append(out.nll)
  np.testing.assert_allclose(*results, rtol=0, atol=0.15)


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


@pytest.mark.thorough
@pytest.mark.parametrize(
  'n_layer, D, H, K, F, V, count',
  [
    (12, 512, 8, 64, 2048, 204, 41_055_436),  # enwik8
    pytest.param(
      *(24, 1024, 8, 128, 3072, 204, 277_231_820), marks=pytest.mark.slow
    ),
    (12, 512, 8, 64, 2048, 27, 40_964_635),  # text8
    pytest.param(
      *(24, 1024, 8, 128, 3072, 27, 277_050_395), marks=pytest.mark.slow
    ),
  ],
)
def test_parameter_counts(n_layer, D, H, K, F, V, count):
  """Of the published models."""
  model = make(
    n_layer=n_layer, d_model=D, n_head=H, d_head=K, d_ff=F, vocab_size=V,
    dtype='float32',
  )  # fmt: skip
  assert sum(math.prod(s) for s in shapes_of(model).values()) == count


@pytest.mark.thorough
@pytest.mark.parametrize(
  'n_layer, D, H, K, F, untied, count',
  [
    (16, 410, 10, 41, 2100, False, 151_107_538),  # wt103_base
    pytest.param(
      *(16, 410, 10, 41, 2100, True, 151_119_838), marks=pytest.mark.slow
    ),
    pytest.param(
      *(18, 1024, 16, 64, 4096, False, 285_170_506), marks=pytest.mark.slow
    ),  # wt103_large
    (18, 1024, 16, 64, 4096, True, 285_205_322),
    (20, 1024, 8, 128, 6144, False, 469_020_530),  # lm1b_base
    pytest.param(
      *(20, 1024, 8, 128, 6144, True, 469_059_442), marks=pytest.mark.slow
    ),
    pytest.param(
      *(24, 1280, 16, 80, 8192, False, 841_295_982), marks=pytest.mark.slow
    ),  # lm1b_large
    pytest.param(
      *(24, 1280, 16, 80, 8192, True, 841_354_862), marks=pytest.mark.slow
    ),
  ],
)
def test_adaptive_parameter_counts(n_layer, D, H, K, F, untied, count):
  """Of the published models; V tells the corpora apart."""
  words = n_layer in (20, 24)
  model = make(
    n_layer=n_layer, d_model=D, n_head=H, d_head=K, d_ff=F, dtype='float32',
    untie_biases=untied, div_val=1 if D == 410 else 4,
    vocab_size=793_471 if words else 267_735,
    cutoffs=(60_000, 100_000, 640_000) if words else (20_000, 40_000, 200_000),
    tie_projs=(False,) * 4 if words else (False, True, True, True),
  )  # fmt: skip
  assert sum(math.prod(s) for s in shapes_of(model).values()) == count


@pytest.mark.thorough
def test_parameter_count_of_tied_positions():
  """Of the published model of Penn Treebank."""
  model = make(
    n_layer=16, d_model=380, n_head=10, d_head=38, d_ff=900, mem_len=0,
    vocab_size=10_000, dtype='float32', tie_positions=True,
  )  # fmt: skip
  assert sum(math.prod(s) for s in shapes_of(model).values()) == 24_040_400


def test_tied_positions_have_no_biases_to_untie():
  config = models.MODELS['transformer_xl'].Config
  (problem,) = config(tie_positions=True, untie_biases=True).problems()
  assert problem[0] == 'untie_biases' and 'tie_positions' in problem[1]


def test_cutoffs_beyond_the_vocabulary():
  with pytest.raises(UserError) as e:
    models.build(dict(name='transformer_xl', cutoffs=[V, V + 1]), V)
  assert str(e.value) == (
    f'model.cutoffs is ({V}, {V + 1}); allowed: a first number below {V}, the '
    'size of the vocabulary'
  )


RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 3, 8]) * [[[3.0]], [[1e-2]]]  # eps matters in row 1


@pytest.mark.parametrize('eps', [1e-5, 1e-12, 1e-2])
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


def test_feed_forward():
  params = {
    'w1': {'kernel': RNG.normal(size=[8, 5]), 'bias': RNG.normal(size=5)},
    'w2': {'kernel': RNG.normal(size=[5, 8]), 'bias': RNG.normal(size=8)},
  }
  with jax.enable_x64(True):
    config = Config(d_ff=5, dropout=0.5, dtype='float64')
    module = transformer_xl.FeedForward(config)
    out = module.apply({'params': params}, jnp.array(X))
  expected = direct.feed_forward(X, params)
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-10)


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
