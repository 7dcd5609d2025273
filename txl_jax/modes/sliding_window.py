"""--mode=sliding_window: a moving window beside disjoint segments."""

from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.api import call_options
from txl_jax.evaluation import figures, sliding_window
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import pictures
from txl_jax.program.errors import UserError

_WAYS = 'segments', 'window'


def run(job: Job) -> None:
  """Scores the split in both ways.

  UserError: see `analysis.open_run`; or the model has a memory.
  """
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

  def progress(scored):
    job.console.progress(f'{scored:,} of {n:,} tokens', pause=5.0)

  more = dict(mesh=subject.mesh, progress=progress, **call_options.cut(config))
  both = sliding_window.compare(
    model, subject.found.params, subject.tokens, W, **more
  )
  at = sliding_window.positions(n, config.eval.batch_size, W)
  rows = sliding_window.by_position(*both, at)
  record = analysis.conditions(job, subject, 'sliding_window') | {
    'window_tokens': W,
    'scored_tokens': n,
    **{
      way: figures.figures(float(nll.mean(dtype=np.float64)), subject.unit)
      for way, nll in zip(_WAYS, both)
    },
    'positions': [
      {
        'first': row.first,
        'last': row.last,
        'tokens': row.tokens,
        'segments_nats': row.segments,
        'window_nats': row.window,
      }
      for row in rows
    ],
  }
  analysis.report(job, record, table(record), lambda f: plot(f, record))


def _span(row):
  return '-'.join(str(x) for x in sorted({row['first'], row['last']}))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  unit = record['unit']
  rows = [
    (
      _span(r),
      f'{r["tokens"]:,}',
      f'{r["segments_nats"]:.4f}',
      f'{r["window_nats"]:.4f}',
    )
    for r in record['positions']
  ]
  scored = f'{record["scored_tokens"]:,}'
  for name in ('nats', unit):
    both = [f'{record[way][name]:.4f}' for way in _WAYS]
    rows.append((f'all, {name}', scored, both[0], both[1]))
  W = record['window_tokens']
  header = (
    'position in the segment',
    'tokens',
    f'segments of {W}',
    f'window {W}',
  )
  return [analysis.heading(record), *analysis.table(header, rows)]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Nll against the position in the segment."""
  axes, rows = figure.subplots(), record['positions']
  x = [(r['first'] * r['last']) ** 0.5 for r in rows]
  W = record['window_tokens']
  names = {'segments_nats': f'segments of {W}', 'window_nats': f'window of {W}'}
  series = {name: (x, [r[k] for r in rows]) for k, name in names.items()}
  pictures.lines(axes, series)
  pictures.lengths_axis(axes, (), 'position of the token in its segment')
  axes.set_xticks(x, [*map(_span, rows)])
  axes.set_ylabel('nll, nats per token')
  axes.set_title(f'{record["run"]}, {record["corpus"]} {record["split"]}')
