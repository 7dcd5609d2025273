"""Layer normalisation and its gradient, beside those of the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.ops import norm
from txl_jax.program import target_device

RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 3, 8]) * [[[3.0]], [[1e-2]]]  # eps matters in row 1
SCALE, BIAS = RNG.normal(size=[2, 8])
G = RNG.normal(size=X.shape)


@pytest.fixture(params=['cpu', 'gpu'])
def platform(request, monkeypatch):
  """Sums are another operation on a GPU."""
  device = target_device.Device(request.param)
  monkeypatch.setattr(target_device, 'device', lambda: device)


def direct(x, scale, bias, eps):
  centred = x - x.mean(-1, keepdims=True)
  variance = jnp.mean(centred**2, axis=-1, keepdims=True)
  return centred / jnp.sqrt(variance + eps) * scale + bias


def ours(x, scale, bias, eps):
  return norm.layer_norm(x, scale, bias, eps, jnp.float64)


@pytest.mark.usefixtures('platform')
@pytest.mark.parametrize('eps', [1e-5, 1e-2])
def test_gradients_are_those_of_the_definition(eps):
  with jax.enable_x64(True):
    arguments = [jnp.array(x) for x in (X, SCALE, BIAS)]
    (y, back), (expected, wanted) = (
      jax.vjp(functools.partial(f, eps=eps), *arguments) for f in (ours, direct)
    )
    found = y, *back(jnp.array(G))
    for x, e in zip(found, (expected, *wanted(jnp.array(G)))):
      np.testing.assert_allclose(x, e, rtol=0, atol=1e-11)


@pytest.mark.usefixtures('platform')
def test_gradients_of_gradients():
  """They are those of the definition, too: a penalty on gradients trains."""
  with jax.enable_x64(True):

    def penalty(f, x):
      g = jax.grad(lambda x: jnp.sum(jnp.sin(f(x, SCALE, BIAS, 1e-3))))(x)
      return jnp.sum(g**2)

    x, along = jnp.array(X), jnp.array(G)
    gradient = jax.grad(penalty, argnums=1)
    found, expected = (gradient(f, x) for f in (ours, direct))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    forward = lambda f: jax.jvp(functools.partial(gradient, f), [x], [along])
    np.testing.assert_allclose(forward(ours), forward(direct), rtol=1e-8)


@pytest.mark.usefixtures('platform')
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_dtypes_and_what_the_backward_pass_keeps(dtype):
  """Of arrays of its size x alone; gradients have the arguments' dtypes."""
  x, scale, bias = jnp.array(X, dtype), jnp.float32(SCALE), jnp.float32(BIAS)
  run = functools.partial(norm.layer_norm, eps=1e-5, dtype=jnp.float32)
  y, back = jax.vjp(run, x, scale, bias)
  assert y.dtype == jnp.float32
  assert [d.dtype for d in back(y)] == [dtype, jnp.float32, jnp.float32]
  leaves = jax.tree.leaves(back)
  large = [leaf for leaf in leaves if leaf.size >= x.size]
  assert [leaf.dtype for leaf in large] == [dtype]
