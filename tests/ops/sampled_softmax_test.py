"""The softmax from a few words against that over all, in float64."""

import jax
import numpy as np
import pytest

from txl_jax.ops import sampled_softmax

D, V = 6, 21


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def test_nll_tends_to_the_exact_one():
  rng = np.random.default_rng(0)
  h = np.random.default_rng(1).normal(size=[5, D])
  w, b = rng.normal(size=[V, D]), rng.normal(size=V)
  targets = np.array([0, 3, V - 1, 7, -1], np.int32)
  scores = h @ w.T + b
  total = np.log(np.exp(scores).sum(-1))
  exact = np.where(targets >= 0, total - scores[range(5), targets], 0)
  run = jax.jit(sampled_softmax.nll, static_argnames='samples')
  many = run(h, targets, w, b, samples=400_000, key=jax.random.key(0))
  np.testing.assert_allclose(many, exact, rtol=0.01)
  # The sum itself is right on average however few words are drawn.
  keys = jax.random.split(jax.random.key(1), 20_000)
  few = jax.vmap(lambda k: run(h, targets, w, b, samples=8, key=k))(keys)
  ratio = (np.exp(few[:, :4]) - 1).mean(0) / (np.exp(exact[:4]) - 1)
  np.testing.assert_allclose(ratio, 1, atol=0.05)
  assert few.std(0)[:4].min() > 0.01 and not few[:, 4].any()
