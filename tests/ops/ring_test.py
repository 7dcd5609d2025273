"""A ring of keys and values, against attention over states in their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax import attention
from txl_jax.ops import ring
from txl_jax.program import target_device

B, H, K = 2, 3, 4


def normal(rng, *shape):
  return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def in_order(ring_, newest, M):
  """The last M states [B, M, H, K] of a ring, the slot `newest` the last."""
  C = ring_.shape[1]
  slots = (newest - np.arange(M)[::-1]) % C
  states = ring_.reshape(B, H, C, K)[:, :, slots]
  return jnp.swapaxes(states, 1, 2)


@pytest.mark.default_cases('1-5-6-6')
@pytest.mark.parametrize('span', [None, 5, 6])
@pytest.mark.parametrize(
  'T, M, C', [(1, 5, 6), (3, 5, 8), (4, 5, 12), (2, 1, 5)]
)
def test_attention(T, M, C, span):
  """From every slot on, with rows that are filled to a different degree."""
  rng = np.random.default_rng(T + M)
  q = normal(rng, B, T, H, K)
  u, v_bias = normal(rng, H, K), normal(rng, H, K)
  r, b = normal(rng, C, H, K), normal(rng, C, H)
  k, v = normal(rng, B * H, C, K), normal(rng, B * H, C, K)
  filled = jnp.array([M, M // 2])
  S = M + T

  @jax.jit
  def over_ring(at):
    mask = ring.visibility(at, T, C, filled, span)
    table = ring.table(r)
    queries = jnp.swapaxes(q, 1, 2)
    scores = ring.scores(queries, k, table, u, v_bias, at, b)
    return jnp.swapaxes(ring.attend(scores, v, mask), 1, 2)

  @jax.jit
  def over_states(at):
    keys, values = (in_order(x, at + T - 1, S) for x in (k, v))
    near = r[C - S :], u, v_bias, b[C - S :]
    scores = attention.relative_scores(q, keys, *near)
    mask = attention.visibility(T, M, filled, span)
    return attention.attend(scores, values, mask)

  for at in range(C):
    found, expected = over_ring(at), over_states(at)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('biased', [False, True])
@pytest.mark.parametrize(
  'T, C, widths', [(1, 178, [192, 128, 192]), (3, 179, [192, 64, 192])]
)
def test_distances_that_are_clamped(T, C, widths, biased):
  """As if the table had all of them."""
  rng = np.random.default_rng(0)
  q, k = normal(rng, B, H, T, K), normal(rng, B * H, C, K)
  u, v_bias, r = normal(rng, H, K), normal(rng, H, K), normal(rng, C, H, K)
  b = normal(rng, C, H) if biased else None
  r = r[jnp.maximum(jnp.arange(C), C - 51)]
  tables = [ring.table(r), ring.table(r, 50), ring.table(r, 500)]
  assert [x.shape[2] for x in tables] == widths

  @jax.jit
  def scores(at):
    return [ring.scores(q, k, x, u, v_bias, at, b) for x in tables]

  for at in 0, 7, C - 1:
    expected, *found = scores(at)
    for x in found:
      np.testing.assert_allclose(x, expected, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_values_whose_sum_is_beyond_float16():
  v = jnp.full([B * H, 5, K], 40_000, jnp.float16)
  mask = jnp.ones([B, 2, 5], bool)
  out = ring.attend(jnp.zeros([B, H, 2, 5]), v, mask)
  assert out.shape == (B, H, 2, K) and out.dtype == jnp.float16
  np.testing.assert_array_equal(out, np.float16(40_000))
  with pytest.raises(ValueError, match='v is int8; allowed: floating'):
    ring.attend(jnp.zeros([B, H, 2, 5]), v.astype(jnp.int8), mask)


@pytest.mark.parametrize('W', [8, 10])
@pytest.mark.parametrize('T', [1, 2, 5, 7])
def test_scores_turn_alike_in_every_way(T, W):
  C = 7
  x = normal(np.random.default_rng(0), B, H, T, W)  # queries and their scores
  as_they_are = lambda x: x

  @jax.jit
  def ways(x, at):
    return [
      ring.by_slot(as_they_are, x, at, C),
      ring._sliced(as_they_are, x, at, C),
      ring._gathered(x[..., :C], at),
    ]

  for at in range(C):
    i, slot = np.indices([T, C])
    expected = np.asarray(x)[..., i, C - 1 - (at + i - slot) % C]
    for found in ways(x, at):
      np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('T', [1, 2, 3, 7])
def test_writing_goes_on_from_the_first_slot(T):
  rng = np.random.default_rng(0)
  old, new = normal(rng, B * H, 7, K), normal(rng, B, H, T, K)
  for at in range(7):
    expected = np.array(old)
    expected[:, (at + np.arange(T)) % 7] = np.reshape(new, [B * H, T, K])
    found = jax.jit(ring.write)(old, new, jnp.int32(at))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('counts', [(0, 0), (2, 2), (3, 0), (1, 4), (2, 1)])
def test_rewinding(counts):
  """Rows that lose more than others still end at the same slot."""
  C, M = 9, 5
  x = normal(np.random.default_rng(0), B * H, C, K)
  for at in range(C):
    (found,), now = jax.jit(ring.rewind)((x,), jnp.int32(at), jnp.array(counts))
    assert now == (at - min(counts)) % C
    for row, n in enumerate(counts):
      kept = in_order(x, at - 1 - n, M)[row]
      np.testing.assert_array_equal(in_order(found, now - 1, M)[row], kept)


@pytest.mark.parametrize(
  'platform, dtype, way',
  [
    ('cpu', 'bfloat16', ['bitcast_convert_type']),
    ('tpu', 'bfloat16', ['layout_constraint']),
    ('cpu', 'float32', []),
  ],
)
def test_how_a_token_is_written(platform, dtype, way, monkeypatch):
  """A CPU would widen the whole ring, a TPU would reorder it."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  old, new = jnp.zeros([B * H, 7, K], dtype), jnp.zeros([B, H, 1, K], dtype)
  jaxpr = str(jax.make_jaxpr(lambda *x: ring.write(*x))(old, new, 3))
  ways = 'bitcast_convert_type', 'layout_constraint'
  assert [x for x in ways if x in jaxpr] == way


def test_a_kernel_moves_the_scores_of_several_queries():
  """If there is one, to a multiple of 128 slots."""
  moved = []

  def to_slots(x, at, C):
    moved.append((x.shape[2], C))
    return x[..., :C]

  def run(q, k, r, bias):
    more = dict(at=3, to_slots=to_slots)
    return ring.scores(q, k, ring.table(r), bias, bias, **more)

  for T, C in (2, 128), (3, 256), (1, 128), (2, 127), (2, 192):
    shapes = (B, H, T, K), (B * H, C, K), (C, H, K), (H, K)
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    assert jax.eval_shape(run, *given).shape == (B, H, T, C)
  assert moved == [(2, 128), (3, 256)]


def test_it_is_written_in_place():
  """No copy of a ring in a loop of segments, of one token or of several."""

  def turns(rings, at, new):
    def turn(carry, new):
      k, v, at = carry
      k, v = (ring.write(x, new, at) for x in (k, v))
      T, C = new.shape[2], k.shape[1]
      q, bias = new, jnp.zeros([H, K])
      mask = ring.visibility(at, T, C, jnp.full([B], 100))
      table = ring.table(jnp.ones([C, H, K]))
      scores = ring.scores(q, k, table, bias, bias, at)
      return (k, v, (at + T) % C), ring.attend(scores, v, mask)

    return jax.lax.scan(turn, (*rings, at), new)

  for T in 1, 5:
    rings = (jnp.zeros([B * H, 111, K]),) * 2
    new = jnp.ones([3, B, H, T, K])
    arguments = tuple(map(jnp.copy, rings)), jnp.int32(0), new
    lowered = jax.jit(turns, donate_argnums=0).lower(*arguments)
    text = lowered.compile().as_text()
    shape = f'f32[{B * H},111,{K}]'
    assert f'{shape}{{2,1,0}} dynamic-update-slice(' in text
    assert not [x for x in text.splitlines() if shape in x and ' copy(' in x]
