"""How the next token is chosen: `sampling.Sampling` and `sampling.adjust`."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from txl_jax.generation.sampling import Sampling, adjust

# What the processors of transformers 4.35.2 give for these logits when the
# tokens 1, 3, 6 and 7 are seen; x is -inf.
x = -np.inf


@pytest.mark.default_cases('1.0-0.5-3-1.0-want2')
@pytest.mark.parametrize(
  'penalty, temperature, top_k, top_p, want',
  [
    (1.5, 0.8, 5, 0.9, [3.125, x, x, 2.5, x, 1.5625, x, 1.666667]),
    (1.5, 2.0, 0, 0.7, [1.25, x, x, 1.0, x, 0.625, x, 0.666667]),
    (1.0, 0.5, 3, 1.0, [5.0, x, x, 6.0, x, x, x, 4.0]),
    (0.5, 1.0, 4, 0.8, [x, x, x, 6.0, x, x, x, x]),
  ],
)
def test_adjust_equals_hugging_face(penalty, temperature, top_k, top_p, want):
  logits = jnp.array([[2.5, -1.0, 0.75, 3.0, -0.5, 1.25, 0.0, 2.0]])
  seen = jnp.array([[0, 1, 0, 1, 0, 0, 1, 1]], bool)
  sampling = Sampling(temperature, top_k, top_p, penalty)
  got = adjust(logits, seen, sampling)[0]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def warp(logits, seen, sampling):
  """One row, token by token; None where top_p is too close to decide."""
  out = [float(x) for x in logits]
  for i in range(len(out)):
    if seen[i] and out[i] > 0:
      out[i] /= sampling.repetition_penalty
    elif seen[i]:
      out[i] *= sampling.repetition_penalty
    out[i] /= sampling.temperature or 1
  order = sorted(range(len(out)), key=lambda i: (-out[i], i))
  kept = order[: sampling.top_k or len(out)]
  weights = [np.exp(out[i] - out[order[0]]) for i in kept]
  if sampling.top_p < 1:
    total = 0.0
    for n, w in enumerate(weights):
      total += w / sum(weights)
      if abs(total - sampling.top_p) < 1e-5:
        return None
      if total >= sampling.top_p:
        kept = kept[: n + 1]
        break
  return [x if i in kept else -np.inf for i, x in enumerate(out)]


# Quarters and powers of two are exact in float32, so that ties stay ties.
quarters = st.integers(-12, 12).map(lambda n: n / 4)
powers = st.sampled_from([0.5, 1.0, 2.0])


@pytest.mark.thorough
@hypothesis.settings(deadline=None, max_examples=40, derandomize=True)
@hypothesis.given(
  rows=st.lists(
    st.lists(st.tuples(quarters, st.booleans()), min_size=6, max_size=6),
    min_size=2,
    max_size=2,
  ),
  sampling=st.builds(
    Sampling,
    temperature=st.sampled_from([0, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.01, 0.3, 0.6, 0.9, 0.99, 1.0]),
    repetition_penalty=powers,
  ),
)
def test_adjust_equals_a_direct_program(rows, sampling):
  logits = np.array([[x for x, _ in row] for row in rows], np.float32)
  seen = np.array([[s for _, s in row] for row in rows])
  want = [warp(*row, sampling) for row in zip(logits, seen)]
  hypothesis.assume(None not in want)
  got = np.asarray(adjust(jnp.array(logits), jnp.array(seen), sampling))
  np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
def test_of_equal_logits_the_lower_id_counts_as_larger():
  logits, seen = jnp.zeros([1, 4]), jnp.zeros([1, 4], bool)

  def kept(**kw):
    return np.isfinite(adjust(logits, seen, Sampling(**kw))[0]).tolist()

  assert kept(top_k=3) == [True, True, True, False]
  assert kept(top_p=1e-50) == [True, False, False, False]
  assert kept(top_p=0.5) == [True, True, False, False]  # 2 / 4 reach 0.5
  assert kept(top_p=0.51) == [True, True, True, False]


def test_forbidden_tokens_are_excluded_before_all_else():
  logits = jnp.array([[3.0, 2.0, 1.0, 0.0]])
  seen = jnp.zeros([1, 4], bool)

  def kept(**kw):
    return np.isfinite(
      adjust(logits, seen, Sampling(forbidden=(0, 2), **kw))[0]
    ).tolist()

  assert kept() == [False, True, False, True]
  assert kept(top_k=1) == [False, True, False, False]
  greedy = adjust(logits, seen, Sampling(temperature=0, forbidden=(0, 2)))
  assert greedy.argmax() == 1
  # Of what is allowed, 1 has the share e² / (e² + 1) = 0.88.
  assert kept(top_p=0.88) == [False, True, False, False]
  assert kept(top_p=0.89) == [False, True, False, True]
