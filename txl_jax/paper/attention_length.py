"""--mode=attention_length: nll by the number of tokens that each token sees.

Reproduces Table 6 of Dai et al. (2019); docs/evaluation.md defines the
attention length.

Shapes: n tokens, L attention length.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.evaluation import scoring, units
from txl_jax.experiment import analysis
from txl_jax.experiment.job import Job
from txl_jax.models import base, windowed
from txl_jax.program import settings
from txl_jax.program.errors import UserError

_MARKS = 'init', 'best', 'enough'
# A smaller relative improvement does not justify a longer attention length: the
# rule by which Dai et al. chose 1,600 words and 3,800 characters.
THRESHOLD = 0.001
_INIT = (
  'the attention length of training: model.mem_len or, without memory, '
  'train.context + train.segment_len'
)


def at_length(model: base.LanguageModel, length: int) -> base.LanguageModel:
  """The model in which each token sees the last L tokens, itself included.

  With memory it reads segments, see `with_memory`; without, it reads a window
  of L tokens anew for each token. UserError if its positions end before.
  """
  if not model.remembers():
    return windowed.around(model, length, 'the attention length')
  return with_memory(model, length)


def with_memory(model: base.LanguageModel, length: int) -> base.LanguageModel:
  """The model in which each token sees the last L tokens through a memory.

  It has mem_len = L and same_length = 'M'. Without the key same_length, a token
  also sees the tokens before it in its segment. UserError if the model has no
  key mem_len.
  """
  overrides = settings.keys(settings.overrides(type(model.config)))
  if 'mem_len' not in overrides:
    raise UserError(
      f'{type(model).__name__} has no attention length; allowed: a model with '
      'the key mem_len'
    )
  if 'same_length' in overrides:
    return model.at_test_time(mem_len=length, same_length='M')
  return model.at_test_time(mem_len=length)


def enough(figures: Sequence[float]) -> int | None:
  """Index of the first figure whose successor is at most 0.1 % lower.

  The figures are of increasing lengths; lower is better. None if each one
  improves by more.
  """
  pairs = enumerate(itertools.pairwise(figures))
  small = (k for k, (now, then) in pairs if now - then <= THRESHOLD * now)
  return next(small, None)


def sweep(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  lengths: Sequence[int],
  *,
  batch_size: int,
  segment_len: int,
  segments_per_call: int,
  mesh: Mesh | None = None,
  progress: Callable[[int, int], None] = lambda length, scored: None,
) -> dict[int, scoring.SplitScore]:
  """Scores tokens [n] at each attention length: {L: score}.

  The model is in test mode; for B, T, G and the mesh see `scoring.score`.
  `progress` is called with L and the number of tokens scored so far. UserError,
  before any scoring, if the model cannot be scored at one of the lengths.
  """
  by_length = {n: at_length(model, n) for n in sorted(set(lengths))}
  for model_at in by_length.values():
    scoring.check(model_at, tokens, batch_size, segment_len)
  scores = {}
  for length, model_at in by_length.items():
    scores[length] = scoring.score(
      model_at, params, tokens, batch_size=batch_size, segment_len=segment_len,
      segments_per_call=segments_per_call, mesh=mesh,
      progress=functools.partial(progress, length),
    )  # fmt: skip
  return scores


def run(job: Job) -> None:
  """Scores the split at the lengths that the model can read."""
  config = job.config
  ev = job.config.eval
  subject = analysis.open_run(job, config.attention_length.tokens)
  trained = subject.restored.config
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  T = ev.segment_len
  lengths = [*config.attention_length.lengths]
  init = trained['train.segment_len'] + trained.get('train.context', 0)
  reach = model.reach(init)
  remembers = model.remembers()
  if remembers:
    init = trained.get('model.mem_len', 0) or init
    if reach < T:
      T = int(reach)
      message = f'segments of {T} tokens, not eval.segment_len'
      job.console.say(f'{message}: the model has no more positions')
  elif reach < max(lengths):
    lengths = [length for length in lengths if length <= reach]
    message = f'attention_length.lengths above {reach} are left out'
    job.console.say(f'{message}: the model reads no more tokens')

  def progress(length, scored):
    job.show_read(scored, len(subject.tokens) - 1, f'length {length:,}: ')

  scores = sweep(
    model, subject.restored.params, subject.tokens, [*lengths, init],
    batch_size=ev.batch_size, segment_len=T,
    segments_per_call=ev.segments_per_call, mesh=subject.restored.mesh,
    progress=progress,
  )  # fmt: skip
  rows = [
    {
      'attention_length_tokens': length,
      **units.to_units(score.nats, subject.unit),
      'scored_tokens': score.scored,
      'seconds': score.seconds,
    }
    for length, score in scores.items()
  ]
  longer = [r for r in rows if r['attention_length_tokens'] >= init]
  k = enough([r[subject.unit] for r in longer])
  record = analysis.conditions(job, subject, 'attention_length') | {
    'init_is': _INIT,
    'init': next(r for r in rows if r['attention_length_tokens'] == init),
    'best': min(rows, key=lambda r: r['nats']),
    'enough': None if k is None else longer[k],
    'segment_len': T if remembers else None,
    'same_length': not remembers or hasattr(model.config, 'same_length'),
    'lengths': rows,
  }
  analysis.report(job, record, table(record))


def table(record: dict[str, Any]) -> list[str]:
  """The lines to print: a row for each length, then the marks explained."""
  unit = record['unit']
  rows = [
    (
      f'{r["attention_length_tokens"]:,}',
      f'{r[unit]:.4f}',
      f'{r["nats"]:.5f}',
      f'{r["seconds"]:.1f}',
      ' '.join(mark for mark in _MARKS if record[mark] == r),
    )
    for r in record['lengths']
  ]
  header = 'attention length', unit, 'nats', 'seconds', ''
  lines = [
    analysis.heading(record),
    *analysis.table(header, rows),
    f'init: {record["init_is"]}',
    'best: the lowest figure of the lengths tried',
    'enough: the shortest length >= init that the next one beats by at most '
    f'{100 * THRESHOLD:g} %{"" if record["enough"] else "; none found"}',
  ]
  if not record['same_length']:
    lines.append(
      'the length is that of the memory: a token also sees the tokens before '
      f'it in its segment of {record["segment_len"]}'
    )
  return lines
