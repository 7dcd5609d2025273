"""Products on a CPU, with and without matrix units for bfloat16."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models import every
from tests.training.small import mesh_of
from txl_jax import models
from txl_jax.ops import matmul
from txl_jax.program import target_device

# XLA computes smaller products from float32 copies.
SIZES = dict(b=2, t=32, s=48, h=2, k=32, d=40, n=32, v=36, j=32, g=4, w=2, o=1)
FORMS = (
  'bthk,bshk->bhts',
  'bhts,bhsk->bhtk',
  'bhtk,bhts->bhsk',
  'bhts,bhtk->bhsk',
  'nd,vd->nv',
  'bsd,dhk->bshk',
  'bthk,hkd->btd',
  'wbtj,wjgh->tbgh',
  'ok,kn->on',
  'nok,nvk->nov',
)


def arrays(form):
  """Random operands and a cotangent, float64."""
  rng = np.random.default_rng(0)
  shapes = ([SIZES[n] for n in term] for term in matmul._terms(form))
  return [rng.normal(size=shape) for shape in shapes]


def dots(f, *arguments):
  """Operands and result of each product of a compiled program, as dtypes."""
  text = jax.jit(f).lower(*arguments).compile().as_text()
  dtypes = dict(re.findall(r'%?([\w.-]+) = (\w+)\[', text))
  found = re.findall(r'= (\w+)\[\S* dot\(%?([\w.-]+), %?([\w.-]+)\)', text)
  return [(dtypes[x], dtypes[y], out) for out, x, y in found]


@pytest.mark.default_cases('dtypes2-bthk,hkd->btd')
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize(
  'dtypes',
  [('float32', 'bfloat16'), ('bfloat16', 'float32'), ('bfloat16', 'bfloat16')],
)
def test_einsum_with_matrix_units(matrix_units, form, dtypes):
  """Values and gradients; each product has bfloat16 operands."""
  x, y, g = arrays(form)
  given = [jnp.asarray(a, dtype) for a, dtype in zip((x, y), dtypes)]
  x, y = (np.asarray(a.astype(jnp.bfloat16), np.float64) for a in given)
  g = np.asarray(jnp.asarray(g, jnp.bfloat16), np.float64)
  a, b, c = matmul._terms(form)

  def run(x, y, g):
    out, back = jax.vjp(lambda x, y: matmul.einsum(form, x, y), x, y)
    return out, *back(g.astype(out.dtype))

  found = jax.jit(run)(*given, jnp.float32(g))
  assert [f.dtype for f in found] == ['float32', *dtypes]
  expected = (
    np.einsum(form, x, y),
    np.einsum(f'{c},{b}->{a}', g, y),
    np.einsum(f'{a},{c}->{b}', x, g),
  )
  for f, e in zip(found, expected):
    rtol = 1e-5 if f.dtype == 'float32' else 5e-3  # rounded
    error = np.abs(np.asarray(f, np.float64) - e).max()
    assert error <= rtol * np.abs(e).max()
  # A sum over an axis of size 1 is no product.
  assert {*dots(run, *given, jnp.float32(g))} == {('bf16', 'bf16', 'f32')}


def test_einsum_without_matrix_units(monkeypatch):
  monkeypatch.setattr(target_device, 'cpu_units', lambda: 'avx2')
  x, y, _ = arrays('nd,vd->nv')
  x, y = jnp.asarray(x, jnp.bfloat16), jnp.asarray(y, jnp.float32)
  out = matmul.einsum('nd,vd->nv', x, y)
  np.testing.assert_allclose(out, np.float32(x) @ np.float32(y).T, atol=1e-5)
  assert dots(lambda x, y: matmul.einsum('nd,vd->nv', x, y), x, y) == [
    ('f32', 'f32', 'f32')
  ]


def test_dtypes(monkeypatch):
  for units, operand, decoding in (
    ('amx_bf16', 'bfloat16', 'bfloat16'),
    ('avx512_bf16', 'bfloat16', 'float32'),
    ('avx512f', 'float32', 'float32'),
  ):
    monkeypatch.setattr(target_device, 'cpu_units', lambda x=units: x)
    assert matmul.operand_dtype('bfloat16') == operand
    assert matmul.decoding_dtype('bfloat16') == decoding
    assert matmul.state_dtype('bfloat16') == 'float32'
    for devices, dtype in (1, operand), (2, 'float32'):
      with jax.set_mesh(mesh_of(devices)):
        assert matmul.operand_dtype('bfloat16') == dtype
    for dtype in 'float32', 'float64':
      assert matmul.operand_dtype(dtype) == matmul.state_dtype(dtype) == dtype
  for platform in 'gpu', 'tpu':
    device = target_device.Device(platform)
    monkeypatch.setattr(target_device, 'device', lambda device=device: device)
    with jax.set_mesh(mesh_of(2)):
      assert matmul.operand_dtype('bfloat16') == 'bfloat16'
    assert matmul.state_dtype('bfloat16') == 'bfloat16'
    assert matmul.decoding_dtype('bfloat16') == 'bfloat16'
    assert matmul.dot_general(0, 'bfloat16') is None
    assert (matmul.dot_general(3, 'bfloat16') is None) == (platform == 'gpu')
    jaxpr = str(jax.make_jaxpr(lambda x: matmul.with_barrier(x))(1.0))
    assert ('optimization_barrier' in jaxpr) == (platform == 'gpu')


@pytest.mark.parametrize('memory', [2, 5])
def test_products_of_a_tpu_have_no_gradient_of_the_memory(monkeypatch, memory):
  """And no product for it: that of the other states has as many rows."""
  device = target_device.Device('tpu', 'TPU v5 lite')
  monkeypatch.setattr(target_device, 'device', lambda: device)
  rng = np.random.default_rng(0)
  x, kernel, g = (
    jnp.asarray(rng.normal(size=size))
    for size in ((3, 5, 4), (4, 2, 6), (3, 5, 2, 6))
  )
  dims = ((2,), (0,)), ((), ())

  def loss(multiply, x, kernel):
    return jnp.sum(multiply(x, kernel, dims) * g)

  plain = functools.partial(loss, jax.lax.dot_general)
  ours = functools.partial(loss, matmul.dot_general(memory, x.dtype))
  np.testing.assert_allclose(ours(x, kernel), plain(x, kernel), rtol=1e-6)
  dx, dkernel = jax.grad(ours, (0, 1))(x, kernel)
  of_x, of_kernel = jax.grad(plain, (0, 1))(x, kernel)
  if memory < 5:
    of_x = of_x.at[:, :memory].set(0)
  np.testing.assert_allclose(dx, of_x, rtol=1e-5)
  np.testing.assert_allclose(dkernel, of_kernel, rtol=1e-5)
  text = str(jax.make_jaxpr(jax.grad(ours))(x, kernel))
  assert ('3,3,4] = dot_general' in text) == (memory < 5)


def test_what_is_in_the_products_of_a_cpu():
  assert matmul.with_barrier(np.pi) is np.pi
  # Modules whose products are equal compile once.
  assert matmul.dot_general(3, 'float32') is matmul.dot_general(3, np.float32)
  x = jnp.ones([2, 3])
  for wanted in True, False:
    in_order = functools.partial(matmul.in_order, wanted=wanted)
    jaxpr = str(jax.make_jaxpr(in_order)(x))
    assert ('layout_constraint' in jaxpr) == wanted


@pytest.mark.parametrize('form', ['bthk,bshk->bhts', 'nd,vd->vn', 'ok,kn->on'])
def test_the_result_of_a_narrow_product_is_not_transposed(form):
  multiply = functools.partial(matmul._multiply, form, precision=None)
  for dtype in 'bfloat16', 'float32':
    shapes = ([SIZES[n] for n in term] for term in matmul._terms(form)[:2])
    operands = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    jaxpr = jax.make_jaxpr(multiply)(*operands)
    names = [e.primitive.name for e in jaxpr.eqns]
    narrow, after = dtype == 'bfloat16', names[names.index('dot_general') :]
    assert ('transpose' in after) == (form == 'nd,vd->vn' and not narrow)
    assert ('concatenate' in names) == ('o' in form and narrow)


@pytest.mark.parametrize(
  'limit, units',
  [
    ('', 'amx_bf16'),
    ('AMX', 'amx_bf16'),
    ('AVX512_BF16', 'avx512_bf16'),
    ('AVX512', 'avx512f'),
    ('AVX2', 'avx2'),
    ('SSE4_2', ''),
  ],
)
def test_units_are_those_that_xla_may_use(monkeypatch, tmp_path, limit, units):
  cpuinfo = tmp_path / 'cpuinfo'
  cpuinfo.write_text('flags\t: sse4_2 avx2 avx512f avx512_bf16 amx_bf16\n')
  flag = f'--xla_cpu_max_isa={limit}' if limit else ''
  monkeypatch.setenv('XLA_FLAGS', f'--xla_cpu_use_onednn=false {flag}')
  assert target_device.cpu_units.__wrapped__(str(cpuinfo)) == units
  cpuinfo.write_text('flags\t: sse4_2 avx2\n')
  expected = 'avx2' if units else ''
  assert target_device.cpu_units.__wrapped__(str(cpuinfo)) == expected
  assert target_device.cpu_units.__wrapped__(str(tmp_path / 'none')) == ''
  cpuinfo.write_text('Features\t: neon\n')
  assert target_device.cpu_units.__wrapped__(str(cpuinfo)) == ''


def test_the_device_is_the_first_of_its_kind(monkeypatch):
  monkeypatch.setattr(target_device, 'cpu_units', lambda: '')
  new = types.SimpleNamespace
  later = [new(platform='rocm', device_kind=f'the {n}.') for n in (2, 3)]
  for name, platform in ('cpu', 'cpu'), ('cuda', 'gpu'), ('tpu', 'tpu'):
    first = new(platform=name, device_kind='the 1.')
    monkeypatch.setattr(jax, 'devices', lambda *_, x=first: [x, *later])
    for default in None, 'cpu':
      with jax.default_device(default):
        device = target_device.device()
      assert device == (platform, 'the 1.')
      assert device.multiplies_bfloat16 == (platform != 'cpu')


CASES = {
  **{name: (name, {}) for name in every.SETTINGS if name != 'convolution'},
  'tails': (
    'transformer_xl',
    dict(cutoffs=(4, 9), d_embed=8, div_val=2, locked_dropout=True),
  ),
}
_FAST = 'transformer_xl', 'tails'


@pytest.mark.thorough
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in _FAST))
    for name in CASES
  ],
)
def test_models_in_bfloat16(matrix_units, name):
  """Nll and gradients beside those in float64; only products are rounded."""
  name, changes = CASES[name]
  with jax.enable_x64(True):
    exact, params = every.make(name, **changes)
  narrow = every.build(name, dtype='bfloat16', **changes)
  (tokens, targets), single = every.text(5), jax.tree.map(np.float32, params)

  def run(model, params):
    def loss(params):
      memory = model.init_memory(every.B)
      variables, given = {'params': params}, (tokens, targets, memory)
      nll = model.apply(variables, *given, train=False).nll
      return nll.mean(), nll

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

  with jax.enable_x64(True):
    (_, nll), grads = run(exact, params)
  (_, found), found_grads = run(narrow, single)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, nll, rtol=2e-2, atol=2e-2)
  for x, y in zip(jax.tree.leaves(found_grads), jax.tree.leaves(grads)):
    assert x.dtype == jnp.float32
    x, y = (np.asarray(z, np.float64) for z in (x, y))
    assert np.linalg.norm(x - y) <= 5e-2 * np.linalg.norm(y)


@pytest.mark.thorough
def test_a_training_step_with_matrix_units(matrix_units):
  """Every product of it runs on them: XLA has no others of bfloat16."""
  sizes = dict(n_layer=2, d_model=64, n_head=2, d_head=32, d_ff=128, mem_len=32)
  fields = dict(name='transformer_xl', dtype='bfloat16', dropout=0.1, **sizes)
  model = models.build(fields, 96)
  params = jax.tree.map(np.float32, direct.random_params(model))
  tokens = jnp.zeros([8, 64], jnp.int32)
  key = {'dropout': jax.random.key(0)}

  def loss(params):
    given = {'params': params}, tokens, tokens, model.init_memory(8)
    return model.apply(*given, train=True, rngs=key).nll.mean()

  step = jax.value_and_grad(loss)
  assert {*dots(step, params)} == {('bf16', 'bf16', 'f32')}
  value, grads = jax.jit(step)(params)
  for x in value, *jax.tree.leaves(grads):
    assert np.isfinite(x).all()
