"""The kernel for GPUs from Ampere on, interpreted."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.kernels import suite
from txl_jax.ops.kernels import triton, triton_tiles


class TestTriton(suite.Suite):
  MODULE = triton

  @pytest.mark.default_cases('several tiles')
  @pytest.mark.parametrize('shape', ['several tiles', 'a short span'])
  def test_a_few_queries_at_a_time(self, shape, monkeypatch):
    """Of more rows, by more calls than one, whose sums are the gradients."""
    monkeypatch.setattr(triton, '_BUFFER', 1)
    monkeypatch.setattr(triton, '_SMALL', 0)
    _, T, H, K, M, filled, span = suite.SHAPES[shape]
    assert T > 32, 'one tile of float32'
    shape = 2, T, H, K, M, (*filled, 0), span
    given, *rest = suite.draw(shape)
    self.check(given, *rest, jnp.float32, self.float32_error)

  def test_padded_gradients_of_the_result(self, monkeypatch):
    """Where they are large, they are copied as queries and keys are."""
    monkeypatch.setattr(triton, '_NARROW', 0)
    given, *rest = suite.draw(suite.SHAPES['odd sizes'])
    self.check(given, *rest, jnp.float32, self.float32_error)


@pytest.mark.parametrize('groups', [1, 3])
def test_memory_of_others(groups, monkeypatch):
  """None is read or written, which the interpreter would not tell."""
  outside = collections.Counter()

  def watched(function):
    def run(place, *args, mask=True, **options):
      (*_, indexer), shape = place.transforms, place.ref.shape
      out = [(i < 0) | (i >= n) for i, n in zip(indexer.indices, shape)]
      out = jnp.any(functools.reduce(jnp.logical_or, out) & mask)
      note = lambda out: outside.update({function.__name__: int(out)})
      jax.debug.callback(note, out)
      masked = dict(mask=mask) if mask is not True else {}
      return function(place, *args, **masked, **options)

    return run

  for name in ('load', 'store'):
    function = getattr(triton.plgpu, name)
    monkeypatch.setattr(triton.plgpu, name, watched(function))
  if groups > 1:
    monkeypatch.setattr(triton, '_BUFFER', 1)
    monkeypatch.setattr(triton, '_SMALL', 0)
  given, *rest, dout = suite.draw((2, 70, 1, 41, 30, (30, 10), None))
  TestTriton().compiled(*rest)(suite.cast(given, 'float32'), jnp.float32(dout))
  jax.effects_barrier()
  assert outside == {'load': 0, 'store': 0}


def test_tiles_at_once():
  """As many as keep 264 programs busy, of those that the buffer holds."""
  tile = triton._BUFFER // 1000
  assert triton._tiles_at_once(12, 128, tile // 2) == 2  # 256 of 264
  assert triton._tiles_at_once(8, 176, tile // 2) == 3  # two waves, exactly
  assert triton._tiles_at_once(8, 88, tile) == 3  # whole waves
  assert triton._tiles_at_once(8, 176, triton._BUFFER + 1) == 1
  assert triton._tiles_at_once(8, 128, triton._BUFFER // 256) == 2  # just fits
  assert triton._tiles_at_once(4, 264, tile) == 1  # no fewer waves by more
  assert triton._tiles_at_once(6, 128, triton._SMALL // 768) == 6  # one call
  assert triton._tiles_at_once(6, 128, triton._SMALL // 768 + 1) == 2


def problem(n, warps=1, interpret=False):
  tiling = triton_tiles.Tiling(n, warps, 1)
  return triton_tiles.Problem(37, 67, 2, 64, 67, 0.0, tiling, interpret)


def test_states_have_a_power_of_two_of_columns():
  widths = [problem(32)._replace(K=K).width for K in (1, 16, 17, 41, 128)]
  assert widths == [16, 16, 32, 64, 128]


def assembly(text, args, constraints, pack, result_shape_dtypes):
  """What threads of a GPU do that have `pack` numbers each."""
  if 'ex2' in text:
    return [jnp.exp2(args[0] * args[1] + args[2])] * pack
  memory = np.zeros(int(re.findall(r'tile\[(\d+)\]', text)[0]))
  given = [np.reshape(x, [-1, pack]).T for x in args]
  registers = [*np.zeros_like(given[0]), *np.concatenate(given, dtype=float)]
  kinds = [x[-1] for x in constraints.split(',')]
  assert kinds == ['f'] * 2 * pack + ['r'] * 2 * pack
  for line in text.splitlines():
    n = int((re.findall(r'\$(\d+)', line) or [0])[0])
    if line.startswith('add.u32 place, base'):
      place = registers[n].astype(int)
    elif line.startswith('st.shared.f32 [place]'):
      memory[place] = registers[n]
    elif line.startswith('ld.shared.f32'):
      registers[n] = memory[place]
  return [np.transpose(registers[:pack]).reshape(args[0].shape)]


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('n, warps', [(32, 2), (64, 1)])
def test_scores_move_through_shared_memory(n, warps, axis, monkeypatch):
  """As they do where a kernel is interpreted, in the bytes that it asks for."""
  monkeypatch.setattr(triton_tiles.plgpu, 'elementwise_inline_asm', assembly)
  rng = np.random.default_rng(0)
  x = jnp.array(rng.normal(size=(n, n)), jnp.float32)
  to = rng.permuted(np.tile(np.arange(n), (n, 1)), axis=1)
  to = jnp.array(to if axis else to.T, jnp.int32)
  compiled, plain = (problem(n, warps, interpret=x) for x in (False, True))
  for run in (
    lambda own: triton_tiles._scatter(x, to, axis, jnp.int32(3), own),
    lambda own: triton_tiles.scaled_exp2(x, 0.3, x[:, :1], own),
  ):
    np.testing.assert_allclose(run(compiled), run(plain), rtol=1e-6)
  with pytest.raises(ValueError, match=r'16 rows cannot be .* over 2 warps'):
    triton_tiles._scatter(x, to, axis, 0, problem(16, 2))
  product = jax.make_jaxpr(lambda x: triton_tiles.dot(x, x, 1, 1, compiled))
  assert 'TF32_TF32_F32_X3' in str(product(x))


@pytest.mark.parametrize('first', [-9, -3, 0, 5, 13, 20])
def test_rows_of_positions_that_are_not_there(first):
  """A chunk reads others in their place: the interpreter would not tell."""
  tiling = triton_tiles.Tiling(8, 1, 1)
  problem = triton_tiles.Problem(5, 14, 1, 4, 14, 0.0, tiling, True)
  rows = triton_tiles.chunk_rows(first, problem)
  expected = [min(max(first + n, 0), 13) for n in range(8)]
  np.testing.assert_array_equal(rows, expected)
