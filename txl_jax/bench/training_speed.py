"""Speed of training: the step of `training.step` on `data.streams`."""

import time
import types
from typing import Any

import jax
import numpy as np

from txl_jax.data import streams
from txl_jax.errors import UserError
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.training import metrics
from txl_jax.training import step as step_lib

_SEGMENTS = 64  # of a row of the corpus; memory is emptied after them


class Training:
  """Training on random tokens, some steps at a time; see `ours`."""

  def __init__(self, config: Any, spec: types.SimpleNamespace):
    """Makes the corpus and the first state.

    Raises:
      UserError: the batch cannot be divided among the devices.
    """
    B, T = spec.batch, spec.segment
    if B % jax.device_count():
      raise UserError(
        f'--batch is {B}; allowed: multiples of {jax.device_count()} (devices)'
      )
    rng = np.random.default_rng(spec.seed)
    corpus = rng.integers(spec.vocab, size=_SEGMENTS * B * T + 1)
    self._text = streams.Streams(corpus, B, T)
    self._shape, self._mesh = (B, T), mesh_lib.make_mesh()
    built = step_lib.build(config, spec.vocab, self._mesh)
    self._step = built.step
    self._state = mesh_lib.make(built.create, built.abstract)
    self._done = 0  # steps

  @property
  def params(self) -> Any:
    """The parameters."""
    return self._state.params

  def run(self, steps: int) -> dict[str, float]:
    """Makes some steps."""
    B, T = self._shape
    sums = jax.device_put(metrics.zeros(), mesh_lib.replicated(self._mesh))
    state, marker = self._state.replace(sums=sums), None
    rows, placed = np.arange(B), mesh_lib.rows(self._mesh)
    begin, data_seconds = time.perf_counter(), 0.0
    for _ in range(steps):
      # The device may still be busy with the step before: the time that
      # batches take is no less than the time waited for them.
      start = time.perf_counter()
      arrays = streams.arrays([self._text.batch(self._done)])
      batch = placement.from_rows(arrays, rows, B, placed)
      data_seconds += time.perf_counter() - start
      state = self._step(state, batch)
      self._done += 1
      # As in the loop of training: no more than one step waits.
      jax.block_until_ready(marker)
      marker = state.step + 0
    jax.block_until_ready(state)
    seconds = time.perf_counter() - begin
    self._state = state
    return dict(
      tokens=steps * B * T,
      seconds=seconds,
      data_seconds=data_seconds,
      nats=float(state.sums.nll) / metrics.tokens_of(state.sums),
    )
