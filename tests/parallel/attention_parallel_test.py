"""A kernel on many devices against plain operations on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.kernels import plain_kernel
from txl_jax.ops import kernels
from txl_jax.ops.kernels import api
from txl_jax.parallel import attention_parallel, placement
from txl_jax.parallel import mesh as mesh_lib

B, T, M, H, K = 4, 5, 6, 4, 8
S = M + T
MESHES = {
  'none': None,
  'rows': dict(data=2, fsdp=2, tensor=2),
  'heads': dict(tensor=4, data=2),
  'odd': dict(tensor=8),  # does not divide the heads
}


def inputs():
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  states = draw(B, T, H, K), draw(B, S, H, K), draw(B, S, H, K)
  tables = draw(S, H, K), draw(H, K), draw(H, K), draw(S, H)
  return kernels.Inputs(*states, *tables, jnp.array([6, 0, 3, 1]))


@pytest.mark.parametrize('there', ['all', 'some'])
@pytest.mark.parametrize('mesh', MESHES)
def test_is_that_of_one_device(mesh, there, monkeypatch):
  """The result and all gradients, with dropout: also the same mask."""
  monkeypatch.setitem(api._KERNELS, 'triton', plain_kernel.__name__)
  given, key = inputs(), jax.random.key(3)
  if there == 'some':
    given = given._replace(b=None, filled=None)
  options = dict(span=7, rate=0.3)

  def run(implementation, mesh, given, key):
    def loss(given):
      with mesh_lib.ambient(mesh):
        out = attention_parallel.attend(
          given, key=key, implementation=implementation, **options
        )
      return jnp.sum(out * jnp.cos(jnp.arange(K))), out

    grad = jax.value_and_grad(loss, has_aux=True, allow_int=True)
    (_, out), grads = grad(given)
    return out, grads._replace(filled=None)

  one = functools.partial(run, 'xla', None)
  expected = jax.jit(one)(given, key)
  sizes = MESHES[mesh]
  mesh = sizes and mesh_lib.make_mesh({'data': 1, **sizes})
  many = functools.partial(run, 'triton', mesh)
  everywhere = mesh and placement.replicated(mesh)
  found = jax.jit(many, in_shardings=everywhere)(given, key)
  for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
    np.testing.assert_allclose(x, y, rtol=0, atol=3e-5)
