"""--mode=sliding_window: a window that moves by one token, beside segments.

A model without memory that reads disjoint segments has little context at their
beginning: context fragmentation (Dai et al. 2019, Section 3.1). With a window
every token is predicted from the W before it (Al-Rfou et al. 2018), at W times
the cost.

Shapes: B streams, n tokens, W window.
"""

import functools
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.api import call_options
from txl_jax.evaluation import figures, perplexity
from txl_jax.models import base, windowed
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program.errors import UserError

_WAYS = 'segments', 'window'
_KEYS = 'eval.batch_size', 'sliding_window.window'


def compare(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  window: int,
  *,
  progress: Any = lambda scored: None,
  **cut: Any,
) -> list[np.ndarray]:
  """Nll of each token but the first, float32 [n - 1]: by segments, by window.

  The model, at test time, has no memory; `cut`, which includes B, is for
  `perplexity.score`. UserError if the window is longer than the model reads.
  """
  slow = windowed.Windowed(model.vocab_size, model.config, model, window)
  cut |= {'segment_len': window}
  for each in (model, slow):
    perplexity.check(each, tokens, cut['batch_size'], window, _KEYS)
  cut |= {'progress': progress}
  return [
    perplexity.of_each(each, params, tokens, **cut) for each in (model, slow)
  ]


def positions(n: int, batch_size: int, window: int) -> np.ndarray:
  """int64 [n]: the position, from 1 to W, of each token in its segment.

  The n scored tokens are cut into B streams as `perplexity.score` does.
  """
  stream = -(-n // batch_size)
  return np.arange(n) % stream % window + 1


def by_position(
  segments: np.ndarray, window: np.ndarray, position: np.ndarray
) -> list[dict[str, Any]]:
  """Mean nll, in nats, at positions 1, 2, 3-4, 5-8, ... from arrays [n].

  A token at a position sees that many tokens of its segment.
  """
  rows, first, last, longest = [], 1, 1, int(position.max())
  while first <= longest:
    there = (first <= position) & (position <= last)
    row = {
      'first': first,
      'last': min(last, longest),
      'tokens': int(there.sum()),
      'segments_nats': float(segments[there].mean(dtype=np.float64)),
      'window_nats': float(window[there].mean(dtype=np.float64)),
    }
    rows.append(row)
    first, last = last + 1, 2 * last
  return rows


def run(job: Job) -> None:
  """Scores the split in both ways; UserError if the model has a memory."""
  config, o = job.config, job.config.sliding_window
  subject = analysis.open_run(job, o.tokens)
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  if model.remembers():
    ev: Any = config.eval
    has = 'mem_len' in ev.model
    without = ', or --config.eval.model.mem_len=0' if has else ''
    raise UserError(
      'a sliding window is for models without memory, and this one has one; '
      f'allowed: such a model{without}'
    )
  W = o.window or subject.found.config['train.segment_len']
  n = len(subject.tokens) - 1
  both = compare(
    model, subject.found.params, subject.tokens, W, mesh=subject.found.mesh,
    progress=functools.partial(job.read, of=n), **call_options.cut(config),
  )  # fmt: skip
  at = positions(n, config.eval.batch_size, W)
  record = analysis.conditions(job, subject, 'sliding_window') | {
    'window_tokens': W,
    'scored_tokens': n,
    **{
      way: figures.figures(float(nll.mean(dtype=np.float64)), subject.unit)
      for way, nll in zip(_WAYS, both)
    },
    'positions': by_position(both[0], both[1], at),
  }
  analysis.report(job, record, table(record))


def _span(row):
  return '-'.join(str(x) for x in sorted({row['first'], row['last']}))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  rows = []
  for r in record['positions']:
    both = (f'{r[f"{way}_nats"]:.4f}' for way in _WAYS)
    rows.append((_span(r), f'{r["tokens"]:,}', *both))
  for name in ('nats', record['unit']):
    both = (f'{record[way][name]:.4f}' for way in _WAYS)
    rows.append((f'all, {name}', f'{record["scored_tokens"]:,}', *both))
  W = record['window_tokens']
  own = f'segments of {W}', f'window {W}'
  header = 'position in the segment', 'tokens', *own
  return [analysis.heading(record), *analysis.table(header, rows)]
