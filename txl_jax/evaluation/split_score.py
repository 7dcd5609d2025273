"""Scores a split: its summed nll, with memory carried across segments.

Shapes: B streams, E context, T segment, G segments per call to the device.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.options import SPLITS
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import placement
from txl_jax.program import settings
from txl_jax.program.errors import UserError, refuse
from txl_jax.program.settings import ON_RESUME, file_path, key, length, size

KEYS = 'eval.batch_size', 'eval.segment_len', 'eval.context'


@dataclasses.dataclass(frozen=True)
class Eval:
  """The section `eval`; `eval.model` overrides keys of the model."""

  MAY_CHANGE = ON_RESUME

  split: str = key('validation', 'The split to score.', choices=SPLITS)
  batch_size: int = size(
    1, 'Number of streams the split is cut into; 1 is exact.'
  )
  segment_len: int = size(512, 'T: tokens per segment.', at_most=1_000_000)
  context: int = length(
    0,
    'E: up to this many tokens before each segment are read again with it, but '
    'not scored; for models without memory.',
  )
  window: int = length(
    0,
    'W: predict each token from the W tokens before it, sliding the '
    'window by one token. Slow; for models without memory. 0 scores segment by '
    'segment.',
  )
  first_token: str = key(
    'none',
    'Whether the first token is scored.',
    choices={
      'none': 'no',
      'eos': 'yes, after a prepended <eos>: for words, but not for documents '
      'or lm1b',
    },
  )
  segments_per_call: int = size(16, 'Segments scored per call to the devices.')
  temperature: float = key(
    1.0,
    'If not 1, also report results with the logits divided by it; not for an '
    'adaptive softmax.',
    at_least=0.01,
  )
  nll_file: str = file_path(
    '', '.npy file to write the nll of each scored token to.'
  )
  model: settings.Overrides = dataclasses.field(
    default_factory=settings.Overrides
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if self.window and self.context:
      yield 'context', '0 with eval.window'


@dataclasses.dataclass(frozen=True)
class SplitScore:
  """Result of scoring a split."""

  nll: float  # nats, summed over the scored tokens
  scored: int  # number of scored tokens
  seconds: float  # wall time

  @property
  def nats(self) -> float:
    """Mean nll per token, in nats."""
    return self.nll / self.scored

  @property
  def tokens_per_second(self) -> float:
    """Scored tokens per second, including compilation."""
    return self.scored / self.seconds


def score(
  model: base.LanguageModel,
  params: Any,
  tokens: streams.Scored,
  *,
  batch_size: int,
  segment_len: int,
  segments_per_call: int,
  context: int = 0,
  mesh: Mesh | None = None,
  each: Callable[[np.ndarray, np.ndarray], None] = lambda at, nll: None,
  progress: Callable[[int], None] = lambda scored: None,
) -> SplitScore:
  """Scores each of the n >= 2 tokens of a split once, except the first.

  The split is cut into B = batch_size streams, each starting with an empty
  memory, so the mean nll of the n - 1 scored tokens is slightly higher than the
  exact one of B = 1. Up to E = context tokens of the same stream or document
  before a segment are read again with it, for models without memory.

  The tokens, integers [n] in [0, V), may be memory-mapped. The model is in test
  mode, see `models.base`. The streams are divided over the mesh of the
  parameters, if there is one, and padded with empty ones. `each` is called on
  every process with the indices int64 [k] of scored tokens, from 0, and their
  nll float32 [k]; `progress` with the number of tokens scored so far. An
  exception in `progress` ends the scoring.
  """
  begin = time.monotonic()
  cut = tokens, batch_size, segment_len, segments_per_call, context
  rows, segment_len, group, context = _shape(model, *cut, mesh)
  shardings = scoring.memory_shardings(model, mesh)
  memory = jax.jit(lambda: model.init_memory(rows), out_shardings=shardings)()
  variables = base.freeze(model, params)
  total, scored = 0.0, 0
  cut = batch_size, segment_len, group, context, rows - batch_size
  resets = isinstance(tokens, streams.Documents)
  for x, targets, positions, before, begins in streams.segments(tokens, *cut):
    inputs = x, targets, begins if resets else None, before if context else None
    memory, nll = scoring.jit_score(
      variables, memory, *inputs, model=model, mesh=mesh
    )
    real = targets >= 0
    values = placement.fetch(nll)[real]
    total += float(values.sum(dtype=np.float64))
    scored += values.size
    each(positions[real] - 1, values)
    progress(scored)
  return SplitScore(total, scored, time.monotonic() - begin)


def check(
  model: base.LanguageModel,
  tokens: streams.Scored,
  batch_size: int,
  segment_len: int,
  context: int = 0,
  keys: tuple[str, str, str] = KEYS,
) -> None:
  """Raises a UserError for invalid arguments of `score`.

  Refuses more streams than tokens, segments too long for the model, and context
  for a model with memory. `keys` are the config keys of B, T and E.
  """
  check_context(model, context, keys[2])
  if len(tokens) <= batch_size:
    raise UserError(
      f'{keys[0]} is {batch_size}: that many streams need {batch_size + 1} '
      f'tokens, but there are only {len(tokens)}; allowed: fewer streams'
    )
  cut = tokens, batch_size, segment_len, 1, context
  _, T, _, E = _shape(model, *cut, None)
  if model.reach() < T + E:
    less = f' minus {keys[2]} ({context})' if context else ''
    allowed = f'at most {model.reach()}{less} for this model'
    refuse(keys[1], segment_len, allowed)


def check_context(model: base.LanguageModel, context: int, key: str) -> None:
  """Raises a UserError for a context with a model that has memory."""
  if context and model.remembers():
    refuse(key, context, '0, since the model has a memory')


def _shape(model, tokens, batch_size, segment_len, segments_per_call, E, mesh):
  """Rows, T, G and E of each call that scores tokens [n]."""
  # Empty rows are added so that every device has the same number.
  rows = batch_size
  rows += -rows % placement.row_parts(mesh) if mesh else 0
  if isinstance(tokens, streams.Documents):
    each = streams.Segments(tokens.starts, segment_len).cut(batch_size)
    group = min(segments_per_call, int(np.diff(each).max()))
    return rows, segment_len, group, E
  # Short streams use shorter segments and fewer per call. Lengths are rounded
  # up to a power of two, so texts of similar length share a compiled program.
  per_stream = -(-(len(tokens) - 1) // batch_size)
  rounded = 1 << (per_stream - 1).bit_length()
  if rounded > model.reach():
    rounded = per_stream
  T, E = min(segment_len, rounded), min(E, rounded)
  return rows, T, min(segments_per_call, -(-per_stream // T)), E
