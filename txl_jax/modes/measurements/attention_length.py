"""--mode=attention_length: quality by how many tokens each token sees.

That is Table 6 of Dai et al. (2019). What the paper calls attention length, and
why, is in docs/evaluation.md.

Shapes: n tokens, L attention length.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.evaluation import figures, split_score
from txl_jax.experiment import analysis, call_options
from txl_jax.experiment.job import Job
from txl_jax.models import base, windowed
from txl_jax.program import settings
from txl_jax.program.errors import UserError

_MARKS = 'init', 'best', 'enough'
# A longer context that improves the figure by a smaller share is not worth it:
# the rule by which Dai et al. came to 1,600 words and 3,800 characters.
THRESHOLD = 0.001
_INIT = (
  'attention length of training: model.mem_len, or train.segment_len and '
  'train.context without memory'
)


def at_length(model: base.LanguageModel, length: int) -> base.LanguageModel:
  """The model with every token seeing the last L, itself included.

  With a memory it reads segments, see `with_memory`; without, it reads a window
  of L tokens anew for each token.
  """
  if not model.remembers():
    return windowed.Windowed(
      model.vocab_size, model.config, model=model, window=length
    )
  return with_memory(model, length)


def with_memory(model: base.LanguageModel, length: int) -> base.LanguageModel:
  """The model with every token seeing the last L by a memory, or UserError.

  That is mem_len = L and same_length = 'M'. A model that has no same_length has
  only the memory, and a token sees its own segment, up to itself, besides.
  """
  allows = settings.keys(settings.overrides(type(model.config)))
  if 'mem_len' not in allows:
    raise UserError(
      f'the context of {type(model).__name__} is no attention length; allowed: '
      'a model with the key mem_len'
    )
  if 'same_length' in allows:
    return model.at_test_time(mem_len=length, same_length='M')
  return model.at_test_time(mem_len=length)


def enough(figures: Sequence[float]) -> int | None:
  """Index of the first figure that the next one hardly improves.

  The figures, of longer and longer lengths, are better if they are lower; 0.1 %
  or less is hardly. None if there is no such figure.
  """
  pairs = itertools.pairwise(figures)
  small = (now - then <= THRESHOLD * now for now, then in pairs)
  return next((k for k, is_small in enumerate(small) if is_small), None)


def sweep(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  lengths: Sequence[int],
  *,
  progress: Callable[[int, int], None] = lambda length, scored: None,
  **cut: Any,
) -> dict[int, split_score.SplitScore]:
  """{L: score of integers [n]} of a model at test time.

  `cut`, which includes B and T, is passed to `split_score.score`; progress is
  called with L and the number of tokens scored so far. UserError, before the
  first length is scored, if one cannot be.
  """
  at = {length: at_length(model, length) for length in sorted(set(lengths))}
  for changed in at.values():
    split_score.check(changed, tokens, cut['batch_size'], cut['segment_len'])
  found = {}
  for length, changed in at.items():
    told = functools.partial(progress, length)
    text = changed, params, tokens
    found[length] = split_score.score(*text, **cut, progress=told)
  return found


def run(job: Job) -> None:
  """Scores the split at the lengths that the model reaches."""
  config, o = job.config, job.config.attention_length
  subject = analysis.open_run(job, o.tokens)
  then = subject.restored.config
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  cut, lengths = call_options.batching(config) | {'context': 0}, [*o.lengths]
  trained = then['train.segment_len'] + then.get('train.context', 0)
  init = trained
  reach, remembers = model.reach(trained), model.remembers()
  if remembers:
    init = then.get('model.mem_len', 0) or trained
    if reach < cut['segment_len']:
      cut['segment_len'] = int(reach)
      which = f'segments of {reach} tokens, not eval.segment_len'
      job.console.say(f'{which}: the model has no other positions')
  elif reach < max(lengths):
    lengths = [length for length in lengths if length <= reach]
    which = f'attention_length.lengths above {reach} are left out'
    job.console.say(f'{which}: the model reads no more tokens')

  def progress(length, scored):
    job.show_read(scored, len(subject.tokens) - 1, f'length {length:,}: ')

  text = model, subject.restored.params, subject.tokens, (*lengths, init)
  scores = sweep(*text, **cut, mesh=subject.restored.mesh, progress=progress)
  rows = [
    {
      'attention_length_tokens': length,
      **figures.to_units(score.nats, subject.unit),
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
    'segment_len': cut['segment_len'] if remembers else None,
    'same_length': not remembers or hasattr(model.config, 'same_length'),
    'lengths': rows,
  }
  analysis.report(job, record, table(record))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
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
    'enough: from init on, the first length that the next one tried improves '
    f'by {100 * THRESHOLD:g} % at most{"" if record["enough"] else "; none"}',
  ]
  if not record['same_length']:
    lines.append(
      'the length is that of the memory: a token sees its own segment, of '
      f'{record["segment_len"]}, besides'
    )
  return lines
