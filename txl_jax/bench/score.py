"""Benchmark of scoring: `step.score` on `data.streams.segments`.

Shapes: B batch, T segment, G segments in a call.
"""

import math
import time

import jax
import numpy as np

from txl_jax.data import streams
from txl_jax.evaluation import scoring
from txl_jax.models import base


def prepare(model, spec):
  """Compiles the scoring call and makes one.

  Args:
    model: the model to score with.
    spec: namespace of the specification, see `pairs`.

  Returns:
    The parameters, and a function () -> dict that scores spec.steps segments,
    rounded up to whole calls, and tells of them as `pairs` says.
  """
  B, T = spec.batch, spec.segment
  G = min(spec.segments_per_call, spec.steps)
  tokens = math.ceil(spec.steps / G) * G * B * T
  rng = np.random.default_rng(spec.seed)
  corpus = rng.integers(spec.vocab, size=tokens + 1)

  key = jax.random.key(spec.seed)
  params = jax.jit(base.init_params, static_argnums=0)(model, key)
  memory = jax.jit(model.init_memory, static_argnums=0)(B)

  def score(inputs, targets, lengths):
    nonlocal memory
    memory, nll = scoring.jit_score(
      params, memory, inputs, targets, lengths, model=model
    )
    return float(np.asarray(nll).sum(dtype=np.float64))

  score(*next(streams.segments(corpus, B, T, G))[:3])

  def measure():
    begin, data_seconds, nll = time.perf_counter(), 0.0, 0.0
    parts = streams.segments(corpus, B, T, G)
    for _ in range(tokens // (G * B * T)):
      start = time.perf_counter()
      arrays = jax.device_put(next(parts)[:3])
      data_seconds += time.perf_counter() - start
      nll += score(*arrays)
    seconds = time.perf_counter() - begin
    return dict(
      tokens=tokens,
      seconds=seconds,
      data_seconds=data_seconds,
      nats=nll / tokens,
    )

  return params, measure
