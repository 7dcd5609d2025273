"""--mode=recl: the relative effective context length of a group of runs."""

import functools
import os
from typing import Any

import numpy as np

from txl_jax import buckets, models, pictures
from txl_jax.errors import UserError
from txl_jax.evaluation import recl
from txl_jax.modes import analysis
from txl_jax.modes.job import Job


def run(job: Job) -> None:
  """Measures the run of the job among the others of the section `recl`.

  UserError: see `analysis.open_run` and `analysis.open_other`; or the split is
  too short.
  """
  config, o = job.config, job.config.recl
  subject = analysis.open_run(job)
  tokens, lengths = subject.tokens, recl.contexts(o.step, o.longest)
  if len(tokens) <= lengths[-1]:
    raise UserError(
      f'recl.longest is {o.longest}, and eval.split has {len(tokens)} tokens; '
      'allowed: fewer'
    )
  at = recl.positions(len(tokens), lengths[-1], o.positions)
  group = [(job.folder, config, subject.found)]
  for name in o.others:
    folder = buckets.place(os.path.expanduser(name), 'recl.others')
    group.append((folder, *analysis.open_other(job, subject, folder)))
  nll, members, readers = [], [], []
  for _, own, found in group:  # all of them, before the first is measured
    model = models.at_test_time(own, subject.vocab_size, 'eval')
    options: Any = dict(
      batch_size=o.batch_size,
      segment_len=own.eval.segment_len,
      mesh=subject.mesh,
    )
    recl.check(model, found.params, lengths[-1], **options)
    readers.append((model, options))
  for i, (folder, _, found) in enumerate(group):
    model, options = readers[i]
    read = functools.partial(
      recl.after_context, model, found.params, tokens, at, **options
    )
    name = folder.resolve().name
    told = lambda c, name=name: job.console.progress(f'{name}: context {c:,}')
    nll.append(recl.table(read, lengths, told))
    longest = recl.reads(model, lengths[-1])
    again = sum(name == x['run'] for x in members)
    members.append(
      analysis.model_of(folder, found)
      | {'name': f'{name} ({again + 1})' if again else name}
      | {'reads_at_most_tokens': longest, 'mean_nats': nll[i].mean(1).tolist()}
    )
  results = [
    {
      'name': member['name'],
      'share': share,
      'recl_tokens': found.length,
      'at_end': found.at_end,
      'gains': list(found.gains),
    }
    for share in o.shares
    for member, found in zip(
      members, recl.effective(np.stack(nll), lengths, share)
    )
  ]
  record = analysis.conditions(job, subject, 'recl') | {
    'contexts_tokens': [*lengths],
    'positions': len(at),
    'threshold': recl.THRESHOLD,
    'group': members,
    'results': results,
  }
  analysis.report(job, record, table(record), lambda f: plot(f, record))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: a row for each model, a column for each r."""
  found = {(r['name'], r['share']): r for r in record['results']}
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]

  def shown(name, share):
    r = found[name, share]
    return f'{">= " if r["at_end"] else ""}{r["recl_tokens"]:,}'

  names = [member['name'] for member in record['group']]
  rows = [(name, *(shown(name, share) for share in shares)) for name in names]
  lines = [
    analysis.heading(record),
    f'{record["positions"]:,} positions, contexts to '
    f'{record["contexts_tokens"][-1]:,} tokens',
    *analysis.table(('', *(f'r = {share:g}' for share in shares)), rows),
  ]
  longest = record['contexts_tokens'][-1]
  limits = {m['name']: m['reads_at_most_tokens'] for m in record['group']}
  return lines + [
    f'{name} reads the last {L:,} tokens at most'
    for name, L in limits.items()
    if longest > L
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Mean nll of each model against the context."""
  axes, x = figure.subplots(), record['contexts_tokens']
  series = {m['name']: (x, m['mean_nats']) for m in record['group']}
  pictures.lines(axes, series)
  axes.set_xlabel('context, tokens')
  axes.set_ylabel('nll, nats per token')
  axes.set_title(f'{record["corpus"]} {record["split"]}')
