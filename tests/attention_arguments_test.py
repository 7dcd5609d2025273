"""Arguments of `txl_jax.attention` that do not fit are told by their names."""

import jax.numpy as jnp
import pytest

from txl_jax import attention
from txl_jax.ops import kernels

B, T, M, H, K = 2, 4, 3, 2, 8
S = M + T
GOOD = dict(
  q=(B, T, H, K),
  k=(B, S, H, K),
  v=(B, S, H, K),
  r=(S, H, K),
  u=(H, K),
  v_bias=(H, K),
  b=(S, H),
)


def call(**shapes):
  arrays = {k: jnp.zeros(shape) for k, shape in (GOOD | shapes).items()}
  mask = attention.visibility(T, M, jnp.array([3, 0]))
  return attention.relative_attention(**arrays, mask=mask)


def test_what_fits():
  assert call().shape == (B, T, H, K)


@pytest.mark.parametrize(
  'name, shape, allowed',
  [
    ('q', (T, H, K), r'\[B, T, H, K\]'),
    ('k', (B, S, 3, K), r'\[B, S, H, K\] with B = 2, H = 2, K = 8'),
    ('k', (1, S, H, K), r'\[B, S, H, K\] with B = 2, H = 2, K = 8'),
    ('v', (B, S, H, 5), r'\[B, S, H, K\] with B = 2, S = 7, H = 2, K = 8'),
    ('r', (T, H, K), r'\[S, H, K\] with S = 7, H = 2, K = 8'),
    ('u', (H,), r'\[H, K\] with H = 2, K = 8'),
    ('v_bias', (K, H), r'\[H, K\] with H = 2, K = 8'),
    ('b', (S, 1), r'\[S, H\] with S = 7, H = 2'),
  ],
)
def test_wrong_shapes(name, shape, allowed):
  found = ', '.join(map(str, shape))
  message = rf'^{name} is \[{found}\]; allowed: .*{allowed}'
  with pytest.raises(ValueError, match=message):
    call(**{name: shape})
  arrays = {k: jnp.zeros(x) for k, x in (GOOD | {name: shape}).items()}
  with pytest.raises(ValueError, match=message):
    kernels.relative_attention(**arrays)


def test_fewer_keys_than_queries():
  few = dict(k=(B, 3, H, K), v=(B, 3, H, K), r=(3, H, K), b=(3, H))
  with pytest.raises(ValueError, match=r'^k is .* S at least T = 4, the mem'):
    call(**few)


@pytest.mark.parametrize('shape', [(B, T, T), (3, T, S), (T, S)])
def test_a_mask_of_another_shape(shape):
  arrays = [jnp.zeros(x) for x in GOOD.values()]
  message = r'^mask is \[.*\]; allowed: \[B, T, S\] with B = 2, T = 4, S = 7'
  with pytest.raises(ValueError, match=message):
    attention.relative_attention(*arrays[:6], jnp.ones(shape, bool))
  scores = jnp.zeros([B, H, T, S])
  with pytest.raises(ValueError, match=message):
    attention.attend(scores, arrays[2], jnp.ones(shape, bool))


def test_a_mask_for_all_rows_of_another_size():
  arrays = [jnp.zeros(x) for x in GOOD.values()]
  message = (
    r'^mask is \[1, 4, 9\]; allowed: \[B, T, S\] with B = 1, T = 4, S = 7$'
  )
  with pytest.raises(ValueError, match=message):
    attention.relative_attention(*arrays[:6], jnp.ones([1, 4, 9], bool))


def test_a_mask_of_numbers():
  arrays = [jnp.zeros(x) for x in GOOD.values()]
  with pytest.raises(ValueError, match=r'^mask is float32; allowed: bool$'):
    attention.relative_attention(*arrays[:6], jnp.ones([1, T, S]))


@pytest.mark.parametrize(
  'memory, states, lengths, message',
  [
    ((3,), (B, T, 5), None, r'memory is \[3\]; allowed: \[B, M\]'),
    ((B, M, 5), (B, T, 4), None, r'states is .* with B = 2, D = 5$'),
    ((B, M, 5), (1, T, 5), None, r'states is .* with B = 2, D = 5$'),
    ((B, M, 5), (B, T, 5), (3,), r'lengths is \[3\]; allowed: \[B\] with'),
  ],
)  # fmt: skip
def test_memory_and_states(memory, states, lengths, message):
  lengths = None if lengths is None else jnp.zeros(lengths, int)
  with pytest.raises(ValueError, match=message):
    attention.update_memory(jnp.zeros(memory), jnp.zeros(states), lengths)


def test_other_functions():
  with pytest.raises(ValueError, match=r'^filled is \[2, 1\]; allowed: \[B\]'):
    attention.visibility(T, M, jnp.zeros([2, 1], int))
  with pytest.raises(ValueError, match=r'^x is \[5, 4\]; allowed: .* T <= S'):
    attention.relative_shift(jnp.zeros([5, 4]))
