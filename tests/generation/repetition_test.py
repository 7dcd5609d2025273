"""Repetition, against loops over all places, and by hand."""

import numpy as np
import pytest

from txl_jax.generation import repetition


def by_hand_repeated(tokens, K):
  seen, again, grams = set(), 0, 0
  for i in range(len(tokens) - K + 1):
    gram = tuple(tokens[i : i + K])
    again += gram in seen
    grams += 1
    seen.add(gram)
  return again / grams if grams else 0.0


def by_hand_longest(tokens):
  best, n = 0, len(tokens)
  for i in range(n):
    for j in range(i + 1, n):
      k = 0
      while j + k < n and tokens[i + k] == tokens[j + k]:
        k += 1
      best = max(best, k)
  return best


def by_hand_copied(tokens, context, K):
  covered = set()
  for i in range(len(tokens) - K + 1):
    for j in range(len(context) - K + 1):
      if tokens[i : i + K] == context[j : j + K]:
        covered |= {*range(i, i + K)}
  return len(covered) / len(tokens) if tokens else 0.0


def test_as_loops_over_all_places():
  rng = np.random.default_rng(0)
  for _ in range(60):
    n, V = rng.integers(0, 40), rng.integers(1, 6)
    tokens = rng.integers(0, V, n)
    context = rng.integers(0, V, rng.integers(0, 20))
    assert repetition.longest(tokens) == by_hand_longest(tokens.tolist())
    for K in 1, 2, 3, 8:
      repeated = repetition.repeated(tokens, K)
      assert repeated == pytest.approx(by_hand_repeated(tokens.tolist(), K))
      copied = repetition.copied(tokens, context, K)
      lists = tokens.tolist(), context.tolist()
      assert copied == pytest.approx(by_hand_copied(*lists, K))


def test_by_hand():
  abab = np.array([0, 1, 0, 1, 0, 1, 2])
  assert repetition.repeated(abab, 1) == 4 / 7
  assert repetition.repeated(abab, 2) == 3 / 6
  assert repetition.longest(abab) == 4  # 0101, and again from the third
  assert repetition.copied(abab, np.array([9, 1, 2]), 2) == 2 / 7
  assert repetition.longest(np.arange(50)) == 0
  assert repetition.longest(np.zeros(50, int)) == 49


def test_a_long_text_that_is_one_token():
  """Nothing here takes the square of its length."""
  tokens = np.zeros(100_000, np.uint8)
  assert repetition.longest(tokens) == 99_999
  assert repetition.repeated(tokens, 16) == pytest.approx(1, abs=1e-4)
