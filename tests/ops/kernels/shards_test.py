"""Training in `jax.shard_map`, as other programs divide their rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tests.ops.kernels import plain_kernel
from txl_jax import attention
from txl_jax.ops import kernels
from txl_jax.ops.kernels import dispatch

B, T, M, H, K = 8, 3, 2, 2, 4
S = M + T


def arrays():
  """q, k, v, r, u, v_bias, b and filled."""
  rng = np.random.default_rng(0)
  states = (B, T, H, K), (B, S, H, K), (B, S, H, K)
  shapes = *states, (S, H, K), (H, K), (H, K), (S, H)
  drawn = [jnp.asarray(rng.normal(size=x), jnp.float32) for x in shapes]
  return drawn, jnp.arange(B) % (M + 1)


def loss_of(attend, rate):
  def loss(given, filled, key):
    options = dict(filled=filled, dropout_rate=rate, dropout_key=key)
    return jnp.sum(attend(*given, **options) * jnp.cos(jnp.arange(K)))

  return jax.value_and_grad(loss)


def plain(q, k, v, r, u, v_bias, b, *, filled, **dropped):
  mask = attention.visibility(T, M, filled)
  return attention.relative_attention(q, k, v, r, u, v_bias, mask, b, **dropped)


def mesh_of_rows():
  return jax.make_mesh((4,), ('rows',), axis_types=(AxisType.Auto,))


def in_shards(run, mesh=None):
  """`run` by 4 shards of the rows, each with a key of its own."""
  mesh = mesh or mesh_of_rows()
  specs = [P('rows')] * 3 + [P()] * 4

  def shard(given, filled, key):
    key = jax.random.fold_in(key, jax.lax.axis_index('rows'))
    loss, grads = run(given, filled, key)
    return jax.lax.psum(loss, 'rows'), grads

  how = dict(in_specs=(specs, P('rows'), P()), out_specs=(P(), specs))
  return jax.jit(jax.shard_map(shard, mesh=mesh, **how))


def one_by_one(run):
  """The same on one device, shard after shard."""

  def every(given, filled, key):
    total = 0.0, [jnp.zeros_like(x) for x in given[3:]]
    parts = []
    for n in range(4):
      own = slice(n * B // 4, (n + 1) * B // 4)
      rows = [x[own] for x in given[:3]]
      folded = jax.random.fold_in(key, n)
      loss, grads = run([*rows, *given[3:]], filled[own], folded)
      total = jax.tree.map(jnp.add, total, (loss, grads[3:]))
      parts.append(grads[:3])
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    return total[0], [*rows, *total[1]]

  return jax.jit(every)


@pytest.mark.thorough
@pytest.mark.parametrize('rate', [0.0, 0.3])
@pytest.mark.parametrize('name', ['attention', 'xla', 'kernel'])
def test_gradients_are_those_of_one_device(name, rate, monkeypatch):
  """Those of the table and biases, which are replicated, are sums."""
  if name == 'kernel':
    monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
    monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
  attend = plain if name == 'attention' else kernels.relative_attention
  given, filled = arrays()
  case = given, filled, jax.random.key(3)
  expected = one_by_one(loss_of(plain, rate))(*case)
  found = in_shards(loss_of(attend, rate))(*case)
  for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
    np.testing.assert_allclose(x, y, rtol=0, atol=3e-5)


def test_a_key_of_its_own_is_another_mask_for_each_shard():
  """As docs/reuse.md says; without it the masks are equal."""
  mesh = jax.make_mesh((4,), ('rows',), axis_types=(AxisType.Auto,))
  x = jnp.ones([4, 10_000])

  def masks(folded):
    def shard(x, key):
      if folded:
        key = jax.random.fold_in(key, jax.lax.axis_index('rows'))
      return attention.dropout(x, 0.5, key)

    specs = (P('rows'), P())
    run = jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=P('rows'))
    return np.asarray(jax.jit(run)(x, jax.random.key(0))) > 0

  assert (masks(False) == masks(False)[:1]).all()
  own = masks(True)
  for n in range(4):
    for other in range(n):
      same = np.mean(own[n] == own[other])
      assert abs(same - 0.5) < 5 * 0.5 / np.sqrt(10_000)
