"""Builds data, model and compiled step of a run; writes no file.

Shapes: B batch, E context, T segment.
"""

from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.documents import Documents
from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import scoring
from txl_jax.ops.kernels import proof
from txl_jax.parallel import hardware, placement
from txl_jax.program import errors, settings, target_device
from txl_jax.program.errors import UserError
from txl_jax.training import step as step_lib
from txl_jax.training.train_config import Config


class Plan(NamedTuple):
  """Data, attention kernel, jitted step and length of a run."""

  streams: streams.Streams
  validation: np.ndarray | Documents  # the tokens that evaluations score
  kernel: proof.Choice  # of attention
  built: step_lib.Built
  steps: int  # total, including those already made


def make(
  config: Config,
  corpus: Prepared,
  mesh: Mesh,
  done: int,
  kept_kernel: str,
  say: Callable[[str], Any] = lambda line: None,
) -> Plan:
  """The Plan of a run that has already made `done` steps.

  With model.attention=auto, `kept_kernel` is the choice that an earlier start
  has kept, and lines on the choice are given to `say`.
  UserError if a split is too short, device memory is too small, or the config
  ends training before `done`.
  """
  train = config.train
  batches = make_streams(config, corpus)
  config = epochs_to_steps(config, batches)
  if config.train.steps < done:
    allowed = f'at least {batches.locate(done - 1)[0] + 1}, '
    allowed += f'as the run has made {done} steps'
    errors.refuse('train.epochs', train.epochs, allowed)
  validation = corpus.token_stream('validation', train.eval_tokens)
  if len(validation) < 2:
    raise UserError(
      f'the validation split has {len(validation)} tokens; allowed: at least '
      '2, of which one is scored'
    )
  kernel = _kernel(config, batches, kept_kernel)
  for line in kernel.lines:
    say(line)
  named = {'model.attention': kernel.name} if kernel.name else {}
  with_kernel = settings.replace(config, named)
  built = step_lib.build(with_kernel, len(corpus.vocabulary), mesh)
  cut = eval_batching(config)
  del cut['segments_per_call']
  own = 'eval_' if train.eval_segment_len else ''
  length = f'train.{own}segment_len'
  keys = 'train.eval_batch_size', length, 'train.eval_context'
  scoring.check(built.model, validation, **cut, keys=keys)
  _compile(config, built, mesh, batches)
  return Plan(batches, validation, kernel, built, config.train.steps)


def make_streams(config: Config, corpus: Prepared) -> streams.Streams:
  """The training batches; UserError if the split is too short."""
  train = config.train
  return streams.Streams(
    corpus.token_stream('train'),
    train.batch_size,
    train.segment_len,
    varlen=train.varlen,
    limit=train.varlen_limit,
    rates=train.varlen_rate,
    apart=train.rows == 'apart',
    context=train.context,
    seed=config.seed,
    sentences=corpus.sentences('train'),
  )


def epochs_to_steps(config: Config, batches: streams.Streams) -> Config:
  """Converts the epochs of a config to train.steps and optim.average_start."""
  epochs = config.train.epochs
  steps = config.train.steps
  values = {}
  # train.steps bounds the number of epochs whose lengths are drawn.
  if epochs and batches.locate(steps)[0] >= epochs:
    values['train.steps'] = batches.first_step(epochs)
  if epoch := config.optim.average_start_epoch:
    values['optim.average_start'] = batches.first_step(epoch)
  return settings.replace(config, values)


def _kernel(config, batches, kept):
  """The implementation of attention, '' if the model has none."""
  if (name := getattr(config.model, 'attention', '')) != 'auto':
    return proof.Choice(name, [])
  T = batches.context + batches.widths[-1]
  case = proof.case(config.model, T)
  return proof.proven(case, kept)


def eval_batching(config: Config) -> dict[str, Any]:
  """Arguments of `scoring.score` for evaluations during training."""
  return dict(
    batch_size=config.train.eval_batch_size,
    segment_len=config.train.eval_segment_len or config.train.segment_len,
    context=config.train.eval_context or config.train.context,
    segments_per_call=config.eval.segments_per_call,
  )


def _compile(config, built, mesh, batches):
  """Compiles the training step for each width; UserError if it is too large.

  JAX keeps the programs: the first step does not compile again.
  """
  lowered = [
    built.step.trace(built.abstract, batch).lower()
    for batch in batch_shapes(config, batches, mesh)
  ]
  # For a GPU or TPU, XLA compiles a program on one core; for a CPU, on all. The
  # main thread waits, so that Python answers signals.
  alone = target_device.device().platform == 'cpu'
  with futures.ThreadPoolExecutor(1 if alone else None) as threads:
    for compiled in threads.map(lambda x: x.compile(), lowered):
      hardware.check_memory('a training step', compiled, mesh.local_devices)


def batch_shapes(
  config: Config, batches: streams.Streams, mesh: Mesh
) -> list[dict[str, Any]]:
  """The batches of `train_step`, one for each width, narrow to wide.

  Each is the dict of a `streams.Batch`, of ShapeDtypeStructs with shardings.
  """
  placed = placement.by_rows(mesh)

  def abstract(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)

  empty = (
    batches.empty(config.train.batch_size, width) for width in batches.widths
  )
  return [jax.tree.map(abstract, vars(batch)) for batch in empty]


def check_rows(config: Config, parts: int) -> None:
  """Raises UserError unless each microbatch divides into `parts` row shards."""
  B, A = config.train.batch_size, config.train.accumulate
  if B % (A * parts):
    allowed = f'multiples of {A * parts} (train.accumulate {A} x {parts}, '
    allowed += 'the number of row shards of a batch on the mesh)'
    errors.refuse('train.batch_size', B, allowed)


def summary_lines(config: Config, batches: streams.Streams) -> list[str]:
  """Console lines: epochs in steps; a warning if the warm-up never ends."""
  converted = epochs_to_steps(config, batches)
  ends = config.train.epochs
  averages = config.optim.average_start_epoch
  lines = []
  if ends or averages or config.train.eval_every_epochs:
    lines.append(f'epoch 1 has {batches.first_step(1):,} steps')
  if ends:
    lines.append(f'training ends after step {converted.train.steps:,}')
  if averages:
    start = converted.optim.average_start
    lines.append(f'weights are averaged after step {start:,}')
  if (warmup := config.optim.warmup) > (steps := converted.train.steps):
    lines.append(
      f'warning: training has {steps:,} steps and optim.warmup {warmup:,}: the '
      'learning rate does not reach optim.lr; set for example '
      f'--config.optim.warmup={steps // 10}'
    )
  return lines
