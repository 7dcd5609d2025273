"""Penalties on activations, entry by entry."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.models import base

B, T, D = 3, 5, 4


def by_hand(states, dropped, lengths, size, change):
  squares, changes = [], []
  for b in range(B):
    for t in range(lengths[b]):
      for d in range(D):
        squares.append(dropped[b, t, d] ** 2)
        if t > 0:
          changes.append((states[b, t, d] - states[b, t - 1, d]) ** 2)
  mean = lambda x: sum(x) / len(x) if x else 0.0
  return size * mean(squares) + change * mean(changes)


def penalty(states, dropped, scored, size, change):
  weights = dict(activation_reg=size, temporal_activation_reg=change)
  config = types.SimpleNamespace(**weights)
  run = functools.partial(base.penalty, config)
  counts = scored.sum(), (scored[:, 1:] & scored[:, :-1]).sum()
  sums = jax.jit(run)(states, dropped, scored)
  return sum(x / max(n, 1) for x, n in zip(sums, counts, strict=True))


@pytest.mark.parametrize('lengths', [None, (5, 2, 0), (1, 1, 0), (0, 0, 0)])
@pytest.mark.parametrize('size, change', [(2.0, 0.0), (0.0, 1.0), (2.0, 0.5)])
def test_activations(lengths, size, change):
  rng = np.random.default_rng(0)
  states, dropped = rng.normal(size=[2, B, T, D])
  expected = by_hand(states, dropped, lengths or [T] * B, size, change)
  scored = np.arange(T) < np.array(lengths or [T] * B)[:, None]
  with jax.enable_x64(True):
    out = penalty(states, dropped, scored, size, change)
  np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_pairs_of_scored_neighbours_alone():
  """A target that is not scored in the middle breaks two pairs."""
  states = np.zeros([1, 5, 1])
  states[0, :, 0] = 1, 2, 4, 8, 16
  scored = np.array([[True, True, False, True, True]])
  assert penalty(states, states, scored, 0.0, 1.0) == (1 + 64) / 2


def test_one_position_has_no_change():
  x = np.ones([B, 1, D], np.float32)
  assert penalty(x, x, np.ones(x.shape[:2], bool), 0.0, 1.0) == 0


def test_bfloat16_is_summed_in_float32():
  x = jnp.full([B, 400, D], 0.1, jnp.bfloat16)
  out = penalty(x, x, np.ones(x.shape[:2], bool), 1.0, 1.0)
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, float(x[0, 0, 0]) ** 2, rtol=1e-5)
