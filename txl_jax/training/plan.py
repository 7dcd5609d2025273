"""What a run will compute; problems are reported before anything is written.

Shapes: B batch, T segment.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.documents import Documents
from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import perplexity
from txl_jax.parallel import capacity, placement
from txl_jax.program.errors import UserError
from txl_jax.training import step as step_lib
from txl_jax.training.options import Config

# Keys for the width of a layer: each model has some of them.
_WIDTHS = 'd_ff', 'd_hidden', 'blocks'


class Plan(NamedTuple):
  """The parts of a run; all of them fit in memory, as far as is known."""

  streams: streams.Streams
  validation: np.ndarray | Documents  # the tokens that evaluations score
  built: step_lib.Built


def make(config: Config, corpus: Prepared, mesh: Mesh) -> Plan:
  """The Plan; UserError if a split is too short, or the memory too small."""
  train = config.train
  order: Any = dict(seed=config.seed, sentences=corpus.sentences('train'))
  size: Any = dict(batch_size=train.batch_size, segment_len=train.segment_len)
  text = streams.Streams(
    corpus.text('train'), **size, varlen=train.varlen, **order
  )
  validation = corpus.text('validation', train.eval_tokens)
  if len(validation) < 2:
    raise UserError(
      f'the validation split has {len(validation)} tokens; allowed: at least '
      '2, of which one is scored'
    )
  built = step_lib.build(config, len(corpus.vocabulary), mesh)
  _check_step(config, built, mesh, text)
  perplexity.check(
    built.model.at_test_time(train.segment_len),
    built.model.inference_params(built.abstract.params),
    validation,
    **evaluation(config),
    mesh=mesh,
    keys=('train.eval_batch_size', 'train.segment_len', 'model.mem_len'),
  )
  return Plan(text, validation, built)


def evaluation(config: Config) -> dict[str, Any]:
  """Options of `perplexity` for the evaluations of training."""
  return dict(
    batch_size=config.train.eval_batch_size,
    segment_len=config.train.segment_len,
    segments_per_call=config.eval.segments_per_call,
  )


def _check_step(config, built, mesh, text):
  """Checks that the training step fits in memory."""
  B, placed = config.train.batch_size, placement.rows(mesh)

  def rows(*shape, dtype: Any = np.int32):
    return jax.ShapeDtypeStruct((B, *shape), dtype, sharding=placed)

  batch = {
    'inputs': rows(text.width),
    'targets': rows(text.width),
    'lengths': rows() if text.padded else None,
    'reset': rows(dtype=bool),
  }
  state = built.abstract
  sizes = *_of_model(config, 'd_model', *_WIDTHS, 'n_layer'), 'mesh.fsdp'
  length, rows_too = _of_model(config, 'mem_len'), 'train.batch_size'
  held = {
    'the parameters': (state.params, sizes),
    'the optimiser': (state.opt_state, ('optim.state_dtype', *sizes)),
    'the average': (state.average, ('optim.average', *sizes)),
    'the memory': (state.memory, (*length, rows_too)),
    'the batch': (batch, (rows_too,)),
  }
  lower = rows_too, 'train.accumulate', 'train.segment_len'
  parts = {k: (capacity.on_a_device(x), keys) for k, (x, keys) in held.items()}
  capacity.check('a training step', mesh, parts)  # before the compiler tries
  # The same program is called later: it is traced and compiled once.
  between = capacity.between(built.step.trace(state, batch).lower().compile())
  remat = _of_model(config, 'remat')
  parts['what is computed'] = between, (*lower, *remat, *sizes)
  capacity.check('a training step', mesh, parts)


def _of_model(config, *names):
  """The keys of the model with these names, as far as it has them."""
  return tuple(f'model.{name}' for name in names if name in config.model)
