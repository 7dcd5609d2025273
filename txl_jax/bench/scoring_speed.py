"""Speed of scoring: the call of `evaluation.scoring` on `data.streams`.

Shapes: B batch, T segment, G segments in a call.
"""

import math
import time
import types
from typing import Any

import jax
import numpy as np

from txl_jax import models
from txl_jax.data import streams
from txl_jax.evaluation import scoring
from txl_jax.models import base


class Scoring:
  """Scoring of random tokens, whole calls at a time; see `ours`."""

  def __init__(self, config: Any, spec: types.SimpleNamespace):
    """Makes the corpus and the parameters."""
    B, T = spec.batch, spec.segment
    G = min(spec.segments_per_call, spec.steps)
    self._shape = B, T, G
    self._model = models.at_test_time(config, spec.vocab, 'eval')
    calls = max(2, math.ceil(spec.steps / G))  # two to warm up with
    rng = np.random.default_rng(spec.seed)
    self._corpus = rng.integers(spec.vocab, size=calls * G * B * T + 1)
    key = jax.random.key(spec.seed)
    self.params = jax.jit(base.init_params, static_argnums=0)(self._model, key)
    self._memory = jax.jit(self._model.init_memory, static_argnums=0)(B)

  def run(self, steps: int) -> dict[str, float]:
    """Scores some segments, rounded up to whole calls."""
    B, T, G = self._shape
    calls = math.ceil(steps / G)
    tokens = calls * G * B * T
    begin, data_seconds, nll = time.perf_counter(), 0.0, 0.0
    parts = streams.segments(self._corpus, B, T, G)
    for _ in range(calls):
      start = time.perf_counter()
      inputs, targets, _ = jax.device_put(next(parts))
      data_seconds += time.perf_counter() - start
      self._memory, scores = scoring.jit_score(
        self.params, self._memory, inputs, targets, model=self._model
      )
      nll += float(np.asarray(scores).sum(dtype=np.float64))
    seconds = time.perf_counter() - begin
    return dict(
      tokens=tokens,
      seconds=seconds,
      data_seconds=data_seconds,
      nats=nll / tokens,
    )
