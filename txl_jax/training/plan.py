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


class Plan(NamedTuple):
  """The parts of a run."""

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
  perplexity.check(
    built.model,
    validation,
    train.eval_batch_size,
    train.segment_len,
    keys=('train.eval_batch_size', 'train.segment_len'),
  )
  _compile(config, built, mesh, text)
  return Plan(text, validation, built)


def evaluation(config: Config) -> dict[str, Any]:
  """Options of `perplexity` for the evaluations of training."""
  return dict(
    batch_size=config.train.eval_batch_size,
    segment_len=config.train.segment_len,
    segments_per_call=config.eval.segments_per_call,
  )


def _compile(config, built, mesh, text):
  """Compiles the training step, which is traced and compiled once.

  UserError if it does not fit into memory.
  """
  B, placed = config.train.batch_size, placement.rows(mesh)

  def rows(*shape, dtype: Any = np.int32):
    return jax.ShapeDtypeStruct((B, *shape), dtype, sharding=placed)

  batch = {
    'inputs': rows(text.width),
    'targets': rows(text.width),
    'lengths': rows() if text.padded else None,
    'reset': rows(dtype=bool),
  }
  compiled = built.step.trace(built.abstract, batch).lower().compile()
  capacity.check('a training step', compiled, mesh.local_devices)
