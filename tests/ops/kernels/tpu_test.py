"""The kernel for TPUs, interpreted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.kernels import suite
from txl_jax import attention
from txl_jax.ops.kernels import tpu, tpu_tiles
from txl_jax.program import target_device


class TestTpu(suite.Suite):
  MODULE = tpu

  def test_rows_that_rotate_by_their_own_amount(self, monkeypatch):
    """As a TPU rotates them from v5 on; two tiles of queries, four of keys."""
    task = tpu_tiles.task
    strided = lambda *args: task(*args)._replace(strided=True)
    monkeypatch.setattr(tpu_tiles, 'task', strided)
    monkeypatch.setattr(tpu_tiles, 'size', lambda T, dtype: 128)
    self.check_dropout((1, 200, 1, 4, 300, (190,), 450), b=True)

  def test_tiles_of_queries_and_of_keys(self, monkeypatch):
    """Several of both, for each head of each row, as long segments have."""
    monkeypatch.setattr(tpu_tiles, 'size', lambda T, dtype: 16)
    shape = 2, 37, 3, 5, 30, (30, 7), 20
    self.check_dropout(shape, b=True)


@pytest.mark.parametrize('span', [1, 17, 18, 69])
def test_tiles_that_queries_see_and_no_others(span):
  """Of 37 queries and 32 slots, in tiles of 16."""
  sizes, filled = (2, 37, 32, 3, 5, 16), np.array([32, 7])
  t = tpu_tiles.Task(*sizes, span, 0.3, jnp.float32, False, 3, 5)
  seen = np.asarray(attention.visibility(48, 32, filled, span))
  seen = seen.reshape(2, 3, 16, 5, 16).any(axis=(2, 4))
  first, last = t.bounds(jnp.array(filled))
  np.testing.assert_array_equal(first, np.argmax(seen, -1).ravel())
  np.testing.assert_array_equal(last, 4 - np.argmax(seen[0, :, ::-1], -1))
  assert t.grid == (3, 2, 3) and t.steps == max(np.sum(seen[0], -1))


def test_a_tile_of_keys_that_is_not_full_is_the_last():
  sizes = 1, 1, 1, 1, 5, 16
  t = tpu_tiles.Task(*sizes, 2, 0.3, jnp.float32, False, 1, 1)
  assert [int(x[0]) for x in t.bounds(jnp.array([1]))] == [0, 0]


def test_the_fewest_tiles_with_the_least_padding():
  sizes = [tpu_tiles.size(T, 'float32') for T in (1, 150, 512)]
  sizes += [tpu_tiles.size(T, 'bfloat16') for T in (300, 512, 513)]
  assert sizes == [128, 256, 256, 384, 512, 384]


def arrays(T, S, K, dtype):
  """What `forward` takes, of one row and head."""
  A = lambda *s, d=dtype: jax.ShapeDtypeStruct(s, d)
  states = A(1, T, 1, K), A(1, S, 1, K), A(1, S, 1, K), A(S, 1, K)
  biases = A(1, K, d='float32'), A(1, S, d='float32')
  return *states, *biases, A(1, d='int32'), A(4, d='uint32')


@pytest.mark.parametrize(
  'M, asks',
  [
    (1100, lambda need, tile: None),
    (1500, lambda need, tile: need + 7 * tile),
    (3000, lambda need, tile: need * 4 // 3),
  ],
)
def test_memory_of_the_gradient(M, asks):
  """What it reads, writes (twice each), adds up, and temporaries."""
  T, K, n = 380, 128, 384
  q, *_ = given = arrays(T, T + M, K, 'bfloat16')
  logsum = jax.ShapeDtypeStruct((1, 1, T), 'float32')
  run = functools.partial(tpu.backward, span=T + M, rate=0.1, interpret=False)
  eqns = jax.make_jaxpr(run)(*given, q, logsum, q).eqns
  (call,) = (x.params for x in eqns if x.primitive.name == 'pallas_call')
  grid = call['grid_mapping']
  blocks = [x.transformed_block_aval for x in grid.block_mappings]
  size = lambda x: x.size * x.dtype.itemsize
  # Vectors, and numbers by query, key or distance, are little.
  large = lambda x: (x.shape[-1] == K and x.shape[-2] > 1) or x.shape == (n, n)
  need = sum(2 * size(x) for x in blocks if large(x))
  need += sum(size(x) for x in grid.scratch_avals if large(x))
  limit = call['compiler_params'].vmem_limit_bytes
  assert limit == asks(need, 4 * n * n)


@pytest.mark.parametrize(
  'device, kernels',
  [
    (target_device.Device('cpu'), 0),
    (target_device.Device('tpu', 'TPU v5 lite'), 1),
  ],
)
def test_it_is_interpreted_where_a_program_is_for_cpus(
  monkeypatch, device, kernels
):
  """`target_device` tells, as it does where an implementation is chosen."""
  monkeypatch.setattr(target_device, 'device', lambda: device)
  given = arrays(8, 8, 64, 'float32')
  run = jax.jit(lambda *a: tpu.forward(*a, span=8, rate=0.0))
  lowered = run.trace(*given).lower(lowering_platforms=(device.platform,))
  assert lowered.as_text().count('tpu_custom_call') == kernels
