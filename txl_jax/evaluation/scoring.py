"""Scores a split: its summed nll, with memory carried across segments.

Shapes: B streams, E context, T segment, G segments per call, K top tokens.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.data_config import SPLITS
from txl_jax.models import base, ring_model
from txl_jax.parallel import mesh as mesh_lib
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


def _joined(model, G, B, T, top):
  """Number of segments joined into one call of the model, a divisor of G.

  B is the number of rows on a device.
  """
  if ring_model.joint_segment_len(model) != T:
    return 1
  # The logits of all are there at once if the most likely tokens are asked for.
  most = 512 if top else ring_model.joint_tokens(model)
  fits = [n for n in range(1, G + 1) if n * B * T <= most and G % n == 0]
  return max(fits, default=1)


def score_segments(
  variables: Any,
  memory: Any,
  inputs: jax.Array,
  targets: jax.Array,
  begins: jax.Array | None = None,
  context: jax.Array | None = None,
  *,
  model: base.LanguageModel,
  mesh: Mesh | None = None,
  top: int = 0,
) -> tuple[Any, ...]:
  """Returns the memory after G segments, and their nll float32 [G, B, T].

  With top = K > 0 also log-probabilities float32 [G, B, T, K], in descending
  order, and ids int32 of the K most likely tokens at each target, from logits
  [B, T, V] without the temperature.

  The memory has B rows; inputs are int32 [G, B, E + T], targets [G, B, T]; a
  target of -1 is not scored. The memory of a row is reset before each segment
  that `begins`, bool [G, B], marks. `context`, int32 [G, B], is the number of
  context tokens of a row, which are not scored (see `models.base`); None if
  E = 0. The variables come from `base.freeze` and are on the mesh.
  """
  G, B, T = targets.shape
  rows = -(-B // placement.row_parts(mesh)) if mesh else B
  n = 1 if begins is not None else _joined(model, G, rows, T, top)

  def join(x):  # [G, B, T] -> [G / n, B, n T]
    parts = x.reshape(-1, n, B, x.shape[-1])
    return jnp.swapaxes(parts, 1, 2).reshape(-1, B, n * x.shape[-1])

  def body(memory, segments):
    *segments, begin, before = segments
    if begin is not None:
      memory = model.reset_memory(memory, begin)
    # Padding follows the last scored token of a document or row, so padding in
    # the memory is never seen. Models without memory need the lengths, because
    # positions may count from the end of a row.
    ends = jnp.where(segments[1] >= 0, jnp.arange(1, n * T + 1)[None], 0)
    lengths = None if model.remembers() else jnp.max(ends, axis=1)
    context: dict[str, Any] = {}
    if before is not None:
      lengths = before + lengths
      context = {'context': before}
    out: Any = model.apply(
      variables, *segments, memory, train=False, lengths=lengths, **context
    )
    found = [out.nll]
    if top:
      logits, _ = model.apply(
        variables, segments[0], memory, lengths=lengths, method='logits'
      )
      logits = base.without_context(logits, segments[1], before)
      found += jax.lax.top_k(jax.nn.log_softmax(logits), top)
    return out.memory, found

  def cut(x):  # [G / n, B, n T, ...] -> [G, B, T, ...]
    parts = x.reshape(-1, B, n, T, *x.shape[3:])
    return jnp.swapaxes(parts, 1, 2).reshape(G, B, T, *x.shape[3:])

  with mesh_lib.ambient(mesh):
    segments = join(inputs), join(targets), begins, context
    memory, scored = jax.lax.scan(body, memory, segments)
  if shardings := base.memory_shardings(model, mesh):
    # A sharding unlike the argument's would make the next call recompile.
    memory = jax.lax.with_sharding_constraint(memory, shardings)
  return memory, *map(cut, scored)


# Compiled once per model and shapes: Linen modules with equal fields are equal,
# and hash alike.
jit_score = jax.jit(
  score_segments, static_argnames=('model', 'mesh', 'top'), donate_argnums=1
)


def batches(
  model: base.LanguageModel,
  tokens: streams.Scored,
  batch_size: int,
  segment_len: int,
  segments_per_call: int,
  context: int,
  mesh: Mesh | None,
) -> tuple[int, Iterator[tuple[tuple[Any, ...], np.ndarray]]]:
  """The rows of a memory, and for each call that scores a split its arguments.

  They are inputs, targets, begins and context of `score_segments`; with them
  come the indices of the targets in tokens, int64 [G, B, T].
  """
  rows, T, G, E = _shape(
    model, tokens, batch_size, segment_len, segments_per_call, context, mesh
  )
  resets = isinstance(tokens, streams.Documents)
  groups = streams.segments(tokens, batch_size, T, G, E, rows - batch_size)
  return rows, (
    ((x, targets, begins if resets else None, before if E else None), positions)
    for x, targets, positions, before, begins in groups
  )


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
  each: Callable[..., None] = lambda at, *scored: None,
  progress: Callable[[int], None] = lambda scored: None,
  top: int = 0,
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
  results of `score_segments`, [k] and [k, K]; `progress` with the number of
  tokens scored so far. An exception in `progress` ends the scoring.
  """
  begin = time.monotonic()
  rows, calls = batches(
    model, tokens, batch_size, segment_len, segments_per_call, context, mesh
  )
  shardings = base.memory_shardings(model, mesh)
  memory = jax.jit(lambda: model.init_memory(rows), out_shardings=shardings)()
  variables = base.freeze(model, params)
  total = 0.0
  scored = 0
  options = dict(model=model, mesh=mesh, top=top)
  for inputs, positions in calls:
    memory, *found = jit_score(variables, memory, *inputs, **options)
    targets = inputs[1]
    real = targets >= 0
    nll, *best = (placement.fetch(x)[real] for x in found)
    total += float(nll.sum(dtype=np.float64))
    scored += nll.size
    each(positions[real] - 1, nll, *best)
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
  _, T, _, E = _shape(model, tokens, batch_size, segment_len, 1, context, None)
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
