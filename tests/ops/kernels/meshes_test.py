"""A kernel on many devices against plain operations on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.kernels import plain_kernel
from txl_jax.ops import kernels, ring
from txl_jax.ops.kernels import dispatch, tpu_cached, tpu_shift
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement

B, T, M, H, K = 4, 5, 6, 6, 8
S = M + T
MESHES = {
  'none': None,
  'rows': dict(data=2, fsdp=2, tensor=2),
  'heads': dict(tensor=2, data=4),
  'odd': dict(tensor=8),  # does not divide the heads
}


def inputs():
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  states = draw(B, T, H, K), draw(B, S, H, K), draw(B, S, H, K)
  tables = draw(S, H, K), draw(H, K), draw(H, K), draw(S, H)
  return kernels.Inputs(*states, *tables, jnp.array([6, 0, 3, 1]))


@pytest.mark.default_cases(
  'heads-some-triton', 'heads-some-tpu_shift', 'odd-all-triton'
)
@pytest.mark.parametrize('kernel', ['triton', 'tpu_shift'])
@pytest.mark.parametrize('there', ['all', 'some'])
@pytest.mark.parametrize('mesh', MESHES)
def test_is_that_of_one_device(mesh, there, kernel, monkeypatch):
  """The result and all gradients, with dropout: also the same mask."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  monkeypatch.setattr(tpu_shift, 'why_not', lambda case: '')
  forward, left, seen = plain_kernel.forward, tpu_shift.left, set()

  def noted(function, axis, x, *args, **options):
    seen.add((x.shape[0], x.shape[axis]))
    return function(x, *args, **options)

  for module, function, axis in (
    (plain_kernel, forward, 2),
    (tpu_shift, left, 1),
  ):
    spy = functools.partial(noted, function, axis)
    monkeypatch.setattr(module, function.__name__, spy)
  given, key = inputs(), jax.random.key(3)
  if there == 'some':
    given = given._replace(b=None, filled=None)
  options = dict(span=7, rate=0.3)

  def run(implementation, mesh, given, key):
    def loss(given):
      with mesh_lib.ambient(mesh):
        out = dispatch.attend(
          given, key=key, implementation=implementation, **options
        )
      return jnp.sum(out * jnp.cos(jnp.arange(K))), out

    grad = jax.value_and_grad(loss, has_aux=True, allow_int=True)
    (_, out), grads = grad(given)
    return out, grads._replace(filled=None)

  one = functools.partial(run, 'xla', None)
  expected = jax.jit(one)(given, key)
  of, sizes = mesh, MESHES[mesh]
  mesh = sizes and mesh_lib.make_mesh({'data': 1, **sizes})
  many = functools.partial(run, kernel, mesh)
  everywhere = mesh and placement.replicated(mesh)
  found = jax.jit(many, in_shardings=everywhere)(given, key)
  assert seen == {(1, 3) if of in ('rows', 'heads') else (B, H)}
  for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
    np.testing.assert_allclose(x, y, rtol=0, atol=3e-5)


@pytest.mark.parametrize('devices', [1, 2])
def test_a_mesh_of_one_device_divides_nothing(devices):
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:devices])
  assert (dispatch._per_head(mesh, len) is len) == (devices == 1)


@pytest.mark.default_cases('rows')
@pytest.mark.parametrize('mesh', ['none', 'rows', 'odd'])
def test_scores_move_to_the_slots_of_a_ring(mesh):
  """As by a gather, wherever the ring begins and ends."""
  sizes, C = MESHES[mesh], 256
  mesh = sizes and mesh_lib.make_mesh({'data': 1, **sizes})
  x = jnp.asarray(np.random.default_rng(0).normal(size=(B, H, T, C + 64)))
  x = x.astype(jnp.float32)

  def moved(x, at):
    with mesh_lib.ambient(mesh):
      return dispatch.to_slots('tpu_shift')(x, at, C)

  everywhere = mesh and placement.replicated(mesh)
  moved = jax.jit(moved, in_shardings=everywhere)
  for at in 0, 3, C - 2, C - 1:
    found = moved(x, jnp.int32(at))
    np.testing.assert_array_equal(found, ring._gathered(x[..., :C], at))


@pytest.mark.default_cases('heads')
@pytest.mark.parametrize('mesh', ['rows', 'heads', 'odd'])
def test_segments_with_cached_keys(mesh, monkeypatch):
  """Each device has its own rows and heads."""
  monkeypatch.setattr(tpu_cached, 'UNIT', 128)
  mesh = mesh_lib.make_mesh({'data': 1, **MESHES[mesh]})
  C, rng = 128, np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  states = *(draw(B, 2 * T, H, K) for _ in 'qkv'), *[draw(B, H, C, K)] * 2
  r = tpu_cached.table(draw(C, H, K))
  given = *states, r, draw(H, K), draw(H, K), jnp.array([60, 0, 3, 1])

  def run(mesh, *given):
    with mesh_lib.ambient(mesh):
      return dispatch.attend_cached(*given, T=T, M=60, span=None)

  expected = jax.jit(functools.partial(run, None))(*given)
  many = functools.partial(run, mesh)
  found = jax.jit(many, in_shardings=placement.replicated(mesh))(*given)
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
