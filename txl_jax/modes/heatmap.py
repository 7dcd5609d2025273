"""--mode=heatmap: a text coloured by the nll of its tokens."""

from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.api import call_options
from txl_jax.evaluation import heatmap, perplexity
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import buckets
from txl_jax.program.errors import UserError

_MOST = 10  # tokens in the table
_BEFORE = 40  # characters shown before each, at most


def run(job: Job) -> None:
  """Writes the page of the section `heatmap`.

  UserError: see `analysis.open_run` and `analysis.open_other`; or the text
  begins behind the split.
  """
  config, o = job.config, job.config.heatmap
  subject = analysis.open_run(job)
  n = len(subject.tokens)
  if o.start > n - 2:
    raise UserError(
      f'heatmap.start is {o.start}, and eval.split has {n} tokens; allowed: 0 '
      f'to {n - 2}'
    )
  first, end = max(0, o.start - o.context), min(o.start + o.tokens, n)
  read, ids = subject.tokens[first:end], subject.tokens[o.start : end].tolist()

  def score(own, found):
    """Nll float [n] of the text; nan for a token that nothing is before."""
    at = subject.vocab_size, 'eval', own.eval.window
    model = models.at_test_time(own, *at)
    options = call_options.cut(own) | {'batch_size': 1, 'mesh': subject.mesh}
    perplexity.check(model, found.params, read, **options)
    nll = perplexity.of_each(model, found.params, read, **options)
    return np.concatenate([[np.nan], nll.astype(np.float64)])[-len(ids) :]

  nll, other, against = score(config, subject.found), None, None
  if o.against:
    folder = buckets.place(o.against, 'heatmap.against')
    own, found = analysis.open_other(job, subject, folder)
    other, against = score(own, found), analysis.model_of(folder, found)
  shown = heatmap.shown(subject.found.vocabulary, ids)
  none = [None] * len(ids)
  columns = shown, ids, _json(nll), none if other is None else _json(other)
  names = 'text', 'id', 'nll_nats', 'other_nll_nats'
  record = analysis.conditions(job, subject, 'heatmap') | {
    'start': o.start,
    'context_tokens': o.start - first,
    'against': against,
    'mean_nats': float(np.nanmean(nll)),
    'other_mean_nats': None if other is None else float(np.nanmean(other)),
    'text': [dict(zip(names, row)) for row in zip(*columns)],
  }
  lines = table(record)
  page = heatmap.page(
    f'{record["run"]}', '; '.join(lines[:2]), shown, nll, other
  )
  analysis.report(job, record, lines, text=('html', page))


def _json(values):
  return [None if np.isnan(x) else float(x) for x in values]


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  there = [
    (i, r) for i, r in enumerate(record['text']) if r['nll_nats'] is not None
  ]
  mean = f'mean nll {record["mean_nats"]:.4f} nats'
  if against := record['against']:
    other = f'{record["other_mean_nats"]:.4f} of {against["run"]}'
    mean = f'{mean}, {other}'

  def surprise(item):
    return item[1]['nll_nats'] - (item[1]['other_nll_nats'] or 0)

  def passage(i):
    *before, last = (r['text'] for r in record['text'][max(i - 16, 0) : i + 1])
    before = ''.join(before)[-_BEFORE:]
    return f'{before}[{last.strip() or last}]'.replace('\n', ' ')

  rows = [
    (
      passage(i),
      record['start'] + i,
      f'{r["nll_nats"]:.3f}',
      f'{np.exp(-r["nll_nats"]):.2g}',
      *([f'{r["other_nll_nats"]:.3f}'] if against else []),
    )
    for i, r in sorted(there, key=surprise, reverse=True)[:_MOST]
  ]
  header = ['most surprising', 'place', 'nats', 'p']
  if against:
    header = ['most surprising beside the other', *header[1:], against['run']]
  return [analysis.heading(record), mean, *analysis.table(header, rows)]
