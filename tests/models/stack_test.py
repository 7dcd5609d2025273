"""Products of states and weights."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.models import stack
from txl_jax.models.config import Config, Transformer
from txl_jax.program import target_device

RNG = np.random.default_rng(0)


@pytest.mark.default_cases('bsd,df->bsf-kernel2--1-4-5')
@pytest.mark.parametrize('memory', [0, 2, 5])
@pytest.mark.parametrize(
  'form, kernel, axis, outputs',
  [
    ('bsd,dhk->bshk', [6, 2, 3], -1, (2, 3)),
    ('bshk,hkd->bsd', [2, 3, 6], (-2, -1), 6),
    ('bsd,df->bsf', [6, 4], -1, 4),
  ],
)
def test_gradients_of_products(form, kernel, axis, outputs, memory):
  """Those of a product on a CPU are its own; einsum has JAX's."""
  with jax.enable_x64(True):
    kernel = jnp.array(RNG.normal(size=kernel))
    summed = kernel.shape[:2] if form.startswith('bshk') else kernel.shape[:1]
    x = jnp.array(RNG.normal(size=[2, 5, *summed]))
    shared = dict(use_bias=False, param_dtype=jnp.float64)
    shared |= dict(memory=memory) if memory else {}
    c = Config(dtype='float64')
    module = stack.product(c, outputs, axis=axis, **shared)

    def ours(x, kernel):
      return jnp.sin(module.apply({'params': {'kernel': kernel}}, x)).sum()

    def plain(x, kernel):
      M = memory % 5  # with no more states than the memory has, none are of it
      constants = jax.lax.stop_gradient(x[:, :M])
      x = jnp.concatenate([constants, x[:, M:]], axis=1)
      return jnp.sin(jnp.einsum(form, x, kernel)).sum()

    found, expected = (jax.grad(f, (0, 1))(x, kernel) for f in (ours, plain))
  for one, other in zip(found, expected):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_no_gradient_of_memory_is_computed():
  """It is a constant; two thirds of the rows of keys and values are of it."""
  B, M, T, D = 2, 16, 8, 32
  x, old, kernel = jnp.ones([B, T, D]), jnp.ones([B, M, D]), jnp.ones([D, 2, 8])

  def rows(memory):
    """Those of the result of the only product, in the compiled program."""
    module = stack.product(Config(), (2, 8), use_bias=False, memory=memory)

    def loss(x, old, kernel, g):
      x = jnp.concatenate([old, x], axis=1)
      return (module.apply({'params': {'kernel': kernel}}, x) * g).sum()

    arguments = x, old, kernel, jnp.ones([B, M + T, 2, 8])
    text = jax.jit(jax.grad(loss)).lower(*arguments).compile().as_text()
    (found,) = re.findall(r'f32\[(\d+),\d+\]\S* dot\(', text)
    return int(found)

  assert rows(0) == B * (M + T)
  assert rows(M) == B * T


def test_cast_is_for_products_of_layers():
  kernel = {'kernel': jnp.zeros(2)}
  params = {
    'attention': {'q': kernel},
    'ff': {'w1': kernel | {'bias': jnp.zeros(2)}},
    'norm1': {'norm': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)}},
    'vocabulary': {'proj': kernel},
  }
  config = types.SimpleNamespace(
    operand_dtype=jnp.bfloat16, state_dtype=jnp.float16
  )
  done = jax.tree.map(lambda x: x.dtype.name, stack.cast(params, config))
  assert done == {
    'attention': {'q': {'kernel': 'bfloat16'}},
    'ff': {'w1': {'kernel': 'bfloat16', 'bias': 'float16'}},
    'norm1': {'norm': {'scale': 'float32', 'bias': 'float32'}},
    'vocabulary': {'proj': {'kernel': 'float32'}},
  }


@pytest.mark.parametrize(
  'unroll, barriers', [(1, False), (2, False), (3, True), (4, True)]
)
def test_what_is_computed_again_has_a_barrier_where_it_could_be_merged(
  unroll, barriers
):
  def layer(h, given):
    weights = given[0]['w']
    return jnp.tanh(h @ weights), h.sum()

  def loss(weights):
    config = Transformer(unroll=unroll, remat='layer')
    h, _ = stack.loop(layer, jnp.ones((2, 3)), weights, (), config)
    return h.sum()

  weights = [{'w': jnp.ones((3, 3))}] * 4
  text = jax.jit(jax.grad(loss)).lower(weights).as_text()
  assert ('optimization_barrier' in text) == barriers


@pytest.mark.parametrize(
  'platform, layers, width, unroll, loops',
  [
    ('cpu', 24, 64, 0, 0),
    ('cpu', 25, 64, 0, 1),
    ('cpu', 24, 63, 0, 1),  # fewer than 4,096 features
    ('cpu', 24, 63, 24, 0),
    ('gpu', 25, 63, 0, 0),
    ('gpu', 25, 63, 1, 1),
    ('tpu', 24, 64, 0, 0),
    ('tpu', 25, 64, 0, 1),
  ],
)
def test_layers_are_unrolled(
  platform, layers, width, unroll, loops, monkeypatch
):
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)

  def layer(h, given):
    return h * given[0]['b'], h.sum()

  def run(h):
    weights = [{'b': jnp.float32(2)}] * layers
    return stack.loop(layer, h, weights, (), Transformer(unroll=unroll))[0]

  equations = jax.make_jaxpr(run)(jnp.ones([2, 32, width])).eqns
  assert [e.primitive.name for e in equations].count('scan') == loops


@pytest.mark.parametrize('platform', ['cpu', 'tpu'])
def test_outputs_are_stacked_after_the_last_layer_on_tpus(
  platform, monkeypatch
):
  """Gradients flow through them as without."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  weights = [{'b': jnp.float32(b)} for b in (2, 3)]

  def run(h):
    h, outputs = stack.loop(
      lambda h, given: (h * given[0]['b'], h**2),
      h, weights, (), Transformer(unroll=2),
    )  # fmt: skip
    return h + outputs.sum()

  names = [e.primitive.name for e in jax.make_jaxpr(run)(2.0).eqns]
  assert ('optimization_barrier' in names) == (platform == 'tpu')
  assert run(2.0) == 12 + 4 + 16
  assert jax.grad(run)(2.0) == 6 + 4 + 16
