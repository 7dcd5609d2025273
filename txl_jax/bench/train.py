"""Benchmark of training steps: `step.train_step` on `data.streams`."""

import functools
import time

import jax
import ml_collections
import numpy as np

from txl_jax.data import streams
from txl_jax.errors import UserError
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.training import metrics, optim
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

_SEGMENTS = 64  # of a row of the corpus; memory is emptied after them


def prepare(model, spec):
  """Compiles the step and makes two.

  Args:
    model: the model to train.
    spec: namespace of the specification, see `pairs`.

  Returns:
    The shapes of the parameters, and a function () -> dict that makes
    spec.steps steps and tells of them as `pairs` says.

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
  text = streams.Streams(corpus, B, T)

  config = ml_collections.ConfigDict(
    dict(
      name='adam',
      lr=spec.lr,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      state_dtype='float32',
      clip=spec.clip,
      weight_decay=0.0,
      schedule='constant',
      warmup=0,
      lr_floor=0.0,
    )
  )
  optimiser = optim.optimiser(config)
  key = jax.random.key(spec.seed)
  create = functools.partial(state_lib.create, model, optimiser, B)
  abstract = jax.eval_shape(create, key)
  mesh = mesh_lib.make_mesh()
  shardings = state_lib.shardings(abstract, mesh)
  step = step_lib.jit_train_step(
    mesh,
    abstract,
    model=model,
    optimiser=optimiser,
    schedule=optim.schedule(config, spec.steps),
    accumulate=1,
    key=key,
  )

  rows, placed = np.arange(B), mesh_lib.rows(mesh)

  def batch(index):
    arrays = streams.arrays([text.batch(index)])
    return placement.from_rows(arrays, rows, B, placed)

  done = 0  # steps
  state = jax.jit(create, out_shardings=shardings)(key)

  def measure(count):
    nonlocal state, done
    sums = jax.device_put(metrics.zeros(), mesh_lib.replicated(mesh))
    state, marker = state.replace(sums=sums), None
    begin, data_seconds = time.perf_counter(), 0.0
    for _ in range(count):
      # The device may still be busy with the step before: the time that
      # batches take is no less than the time waited for them.
      start = time.perf_counter()
      arrays = batch(done)
      data_seconds += time.perf_counter() - start
      state = step(state, arrays)
      done += 1
      # As in `train`: no more than one step waits behind the running one.
      jax.block_until_ready(marker)
      marker = state.step + 0
    jax.block_until_ready(state)
    seconds = time.perf_counter() - begin
    return dict(
      tokens=count * B * T,
      seconds=seconds,
      data_seconds=data_seconds,
      nats=float(state.sums.nll / state.sums.tokens),
    )

  measure(2)  # compiles
  return abstract.params, lambda: measure(spec.steps)
