"""The code of docs/reuse.md, beside direct loops over queries and keys."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct, pages, programs, promotions
from txl_jax import attention


@pytest.fixture(scope='module')
def page():
  """The names that the page defines, in float64."""
  names = {}
  for block in pages.python(programs.ROOT / 'docs/reuse.md'):
    with promotions.forbidden():
      exec(block, names)
  names['W'] = {k: np.asarray(x, np.float64) for k, x in names['W'].items()}
  return names


@pytest.fixture(autouse=True)
def wide():
  with jax.enable_x64(True):
    yield


def states(page, *shape):
  return np.random.default_rng(len(shape)).normal(size=(*shape, page['D']))


def alone(page, x, span=np.inf):
  """Attention [T, H, K] over the states x [T, D] of one text."""
  q, k, v = (np.einsum('td,dhk->thk', x, page['W'][n]) for n in 'qkv')
  biases = (np.asarray(page[n], np.float64) for n in ('u', 'v_bias'))
  return direct.attend(q, k, v, page['W']['r'], *biases, span)


def assert_close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_steps_are_those_of_training(page):
  """Of two layers: from one step to the next, and of two segments."""
  T, M, attend = page['T'], page['M'], page['attend']
  x = states(page, 2, 2 * T)
  project = np.random.default_rng(5).normal(size=[page['H'] * page['K']] * 2)
  project = project[:, : page['D']] / 4

  def read(t):
    memories = [jnp.zeros([2, M, page['D']])] * 2
    filled, found = jnp.zeros([2], int), []
    for start in range(0, 2 * T, t):
      h = jnp.asarray(x[:, start : start + t])
      mask = attention.visibility(t, M, filled, span=M + 1)
      for n in range(2):
        out = attend(h, memories[n], mask)
        memories[n] = attention.update_memory(memories[n], h)
        h = h + out.reshape(2, t, -1) @ project
      filled = jnp.minimum(filled + t, M)
      found.append(h)
    return jnp.concatenate(found, axis=1)

  assert_close(read(1), read(T))
  whole = attention.visibility(T, M, jnp.array([M, M]), page['M'] + 1)
  np.testing.assert_array_equal(np.sum(whole, axis=2), M + 1)
  row = attend(x[:1, M : M + T], x[:1, :M], whole[:1])
  assert_close(row[0], alone(page, x[0, : M + T], M + 1)[M:])


@pytest.mark.thorough
def test_episodes(page):
  """Two segments, with episodes that begin in both and in none."""
  T, M = page['T'], page['M']
  x = states(page, 2, 2 * T)
  first = np.zeros([2, 2 * T], bool)
  first[0, [2, 3, 6]] = True
  first[1, 1] = True
  memory, episodes = jnp.zeros([2, M, page['D']]), jnp.zeros([2, M], jnp.int32)
  filled, found = jnp.zeros([2], jnp.int32), []
  for start in 0, T:
    now = slice(start, start + T)
    mask, episodes = page['of_episode'](first[:, now], episodes, filled)
    found.append(page['attend'](x[:, now], memory, mask))
    memory = attention.update_memory(memory, x[:, now])
    filled = jnp.minimum(filled + T, M)
  found = jnp.concatenate(found, axis=1)
  for row in range(2):
    begins = [0, *np.flatnonzero(first[row]), 2 * T]
    for a, b in itertools.pairwise(begins):
      for i in range(a, b):
        oldest = max(a, i // T * T - M)  # that the memory holds
        expected = alone(page, x[row, oldest : i + 1])[-1]
        assert_close(found[row, i], expected)


@pytest.mark.thorough
def test_padding_on_the_right(page):
  T, M = page['T'], page['M']
  x, lengths = states(page, 3, 2, T), np.array([[1, 4], [2, 0], [4, 3]])
  memory, filled = jnp.zeros([2, M, page['D']]), jnp.zeros([2], jnp.int32)
  text = [np.zeros([0, page['D']])] * 2
  for segment, real in zip(x, lengths):
    mask = attention.visibility(T, M, filled)
    out = page['attend'](segment, memory, mask)
    memory, filled = page['next_memory'](memory, segment, real, filled)
    for row, n in enumerate(real):
      seen = np.concatenate([text[row][-M:], segment[row, :n]])
      text[row] = np.concatenate([text[row], segment[row, :n]])
      if n:
        assert_close(out[row, :n], alone(page, seen)[-n:])


@pytest.mark.thorough
def test_padding_on_the_left(page):
  T, M = page['T'], page['M']
  x, padding = states(page, 2, 2 * T), np.array([0, 3])
  mask, filled = page['begin'](padding)
  memory = jnp.full([2, M, page['D']], 100.0)
  out = page['attend'](x[:, :T], memory, mask)
  memory = attention.update_memory(memory, x[:, :T])
  np.testing.assert_array_equal(filled, [3, 1])
  after = page['attend'](x[:, T:], memory, attention.visibility(T, M, filled))
  for row, n in enumerate(padding):
    assert_close(out[row, n:], alone(page, x[row, n:T]))
    assert not out[row, :n].any()
    seen = x[row, max(n, T - M) :]
    assert_close(after[row], alone(page, seen)[-T:])


def test_both_directions(page):
  T, M, K = page['T'], page['M'], page['K']
  x, W = states(page, 2, M + T), page['W']
  found = page['both_ways'](x[:, M:], x[:, :M])
  q, k, v = (np.einsum('btd,dhk->bthk', x, W[n]) for n in 'qkv')
  u, v_bias = (np.asarray(page[n], np.float64) for n in ('u', 'v_bias'))
  for row, i, h in np.ndindex(2, T, page['H']):
    query, scores = q[row, M + i, h], []
    for j in range(M + T):
      r = direct.sinusoid(M + i - j, page['D']) @ W['r'][:, h]
      score = (query + u[h]) @ k[row, j, h] + (query + v_bias[h]) @ r
      scores.append(score / np.sqrt(K))
    expected = direct.softmax(np.array(scores)) @ v[row, :, h]
    assert_close(found[row, i, h], expected)
