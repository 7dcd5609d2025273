"""Segments and windows against one reading of each token's own context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from txl_jax import models
from txl_jax.modes.measurements import sliding_window

V, N, W = 11, 24, 5
FIELDS = dict(name='transformer_xl', n_layer=2, d_model=6, n_head=2, d_head=3)
FIELDS |= dict(d_ff=8, mem_len=0)


@pytest.mark.parametrize('B', [1, 2])
def test_what_each_token_is_predicted_from(B):
  model = models.build(FIELDS, V)
  params = direct.random_params(model)
  tokens = np.random.default_rng(1).integers(0, V, N).astype(np.uint8)
  found = sliding_window.compare(
    model.at_test_time(), jax.tree.map(jnp.float32, params), tokens, W,
    batch_size=B, segments_per_call=2,
  )  # fmt: skip
  size = -(-(N - 1) // B)
  at = sliding_window.positions(N - 1, B, W)
  for i in range(N - 1):
    into = i % size  # the stream
    for nll, seen in zip(found, (into % W + 1, min(into + 1, W))):
      context = tokens[i + 1 - seen : i + 1].astype(np.int64)
      start = direct.init_memory(model)
      logits, _ = direct.segment(model, params, context, start)
      expected = direct.nll(logits[-1:], tokens[i + 1 : i + 2].astype(int))
      assert nll[i] == pytest.approx(expected.item(), rel=1e-5)
    assert at[i] == into % W + 1


@pytest.mark.parametrize('longest, spans', [
  (1, [(1, 1)]),
  (5, [(1, 1), (2, 2), (3, 4), (5, 5)]),
  (8, [(1, 1), (2, 2), (3, 4), (5, 8)]),
])  # fmt: skip
def test_means_by_position(longest, spans):
  rng = np.random.default_rng(0)
  at = np.arange(50) % longest + 1
  nll = rng.random([2, 50]).astype(np.float32)
  rows = sliding_window.by_position(*nll, at)
  assert [(row['first'], row['last']) for row in rows] == spans
  for row in rows:
    these = [i for i in range(50) if row['first'] <= at[i] <= row['last']]
    assert row['tokens'] == len(these)
    segments, window = (sum(x[these]) / len(these) for x in nll)
    assert row['segments_nats'] == pytest.approx(segments)
    assert row['window_nats'] == pytest.approx(window)
