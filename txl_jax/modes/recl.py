"""--mode=recl: the relative effective context length of a group of runs."""

import functools
import os
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.evaluation import recl
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import buckets, pictures, settings
from txl_jax.program.errors import UserError


def run(job: Job) -> None:
  """Measures the run of the job among the others of the section `recl`.

  UserError: see `analysis.open_run` and `analysis.open_other`; or the split is
  too short, or no model is read as far as the first context.
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
  readers = []
  for _, own, found in group:  # all of them, before the first is measured
    model = models.at_test_time(own, subject.vocab_size, 'eval')
    trained = found.config['train.segment_len']
    longest = int(min(lengths[-1], recl.reach(model, trained)))
    options: Any = dict(
      batch_size=o.batch_size,
      segment_len=int(min(own.eval.segment_len, model.reach(trained))),
      mesh=subject.mesh,
    )
    recl.check(model, found.params, longest, **options)
    readers.append((model, longest, options))
  if (most := max(longest for _, longest, _ in readers)) < o.step:
    reads = f'{most}, the most that a model of the group reads'
    settings.refuse('recl.step', o.step, f'at most {reads}')
  nll, members = [], []
  for (folder, _, found), (model, longest, options) in zip(group, readers):
    read = functools.partial(
      recl.after_context, model, found.params, tokens, at, **options
    )
    name = folder.resolve().name
    told = lambda c, name=name: job.console.progress(f'{name}: context {c:,}')
    nll.append(recl.table(read, lengths, len(at), longest, told))
    again = sum(name == x['run'] for x in members)
    members.append(
      analysis.model_of(folder, found)
      | {'name': f'{name} ({again + 1})' if again else name}
      | {'reads_at_most_tokens': longest}
      | {'segment_len': options['segment_len'] if model.remembers() else None}
      | {'mean_nats': _within(longest, lengths, nll[-1].mean(1).tolist())}
    )
  results = [
    {
      'name': member['name'],
      'share': share,
      'recl_tokens': found.length,
      'at_end': found.at_end,
      'at_reach': found.at_reach,
      'interval_tokens': found.interval,
      'gains': _within(longest, lengths[1:], found.gains),
    }
    for share in o.shares
    for member, (_, longest, _), found in zip(
      members,
      readers,
      recl.effective(np.stack(nll), lengths, share, o.resamples),
    )
  ]
  record = analysis.conditions(job, subject, 'recl') | {
    'contexts_tokens': [*lengths],
    'positions': len(at),
    'resamples': o.resamples,
    'threshold': recl.THRESHOLD,
    'group': members,
    'results': results,
  }
  shown = functools.partial(plot, record=record)
  analysis.report(job, record, table(record), shown, (10, 5.5))


def _within(longest, lengths, values):
  """Values of contexts, None for those above the longest."""
  return [x if c <= longest else None for c, x in zip(lengths, values)]


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: a row for each model, a column for each r."""
  found = {(r['name'], r['share']): r for r in record['results']}
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  names = [member['name'] for member in record['group']]
  rows = [
    (name, *(_shown(found[name, share]) for share in shares)) for name in names
  ]
  longest, resamples = record['contexts_tokens'][-1], record['resamples']
  within = f'; in brackets, 95 % of {resamples:,} resamples of the positions'
  lines = [
    analysis.heading(record),
    f'{record["positions"]:,} positions, contexts to {longest:,} tokens'
    f'{within if resamples else ""}',
    *analysis.table(('', *(f'r = {share:g}' for share in shares)), rows),
  ]
  for member in record['group']:
    name, most = member['name'], member['reads_at_most_tokens']
    T, asked = member['segment_len'], record['eval']['segment_len']
    if most < longest:
      lines.append(f'{name} reads {most:,} tokens at most')
    if T is not None and asked > T:
      lines.append(f'{name} reads segments of {T:,}, those of its training')
  return lines


def _shown(result):
  """A length in a cell of the table."""
  length, interval = result['recl_tokens'], result['interval_tokens']
  if length is None:
    return 'n/a'
  end = ' (its reach)' if result['at_reach'] else ''
  within = f' [{interval[0]:,}, {interval[1]:,}]' if interval else ''
  return f'{">= " if result["at_end"] else ""}{length:,}{end}{within}'


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Mean nll of each model against the context; beside it the gains."""
  contexts = record['contexts_tokens']
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  grid = figure.add_gridspec(len(shares), 2)
  axes = figure.add_subplot(grid[:, 0])
  _lines(axes, contexts, {m['name']: m['mean_nats'] for m in record['group']})
  axes.set_xlabel('context c, tokens')
  axes.set_ylabel('nll, nats per token')
  axes.set_title(f'{record["corpus"]} {record["split"]}')
  figure.legend(loc='outside lower center', ncols=4, frameon=False)
  every = [g for r in record['results'] for g in r['gains'] if g is not None]
  top = 1.3 * max(every, default=0) + recl.THRESHOLD
  for row, share in enumerate(shares):
    beside, last = figure.add_subplot(grid[row, 1], sharex=axes), shares[-1]
    rows = [r for r in record['results'] if r['share'] == share]
    _plot_gains(beside, contexts, {r['name']: r['gains'] for r in rows}, top)
    beside.set_title(f'gain g(c, c + {contexts[0]:,}), r = {share:g}')
    beside.set_xlabel('context c, tokens' if share == last else '')
    beside.tick_params(labelbottom=share == last)


def _plot_gains(axes, contexts, gains, top):
  """Gains of each model and the threshold; linear below it, else by logs."""
  axes.axhline(recl.THRESHOLD, color=pictures.INK, linewidth=1)
  _lines(axes, contexts, gains)
  axes.set_yscale('symlog', linthresh=recl.THRESHOLD)
  ticks = 0, 0.003, recl.THRESHOLD, 0.03, 0.1, 0.3, 1
  axes.set_yticks(ticks, [f'{100 * x:g} %' for x in ticks])
  axes.minorticks_off()
  axes.set_ylim(0, top)


def _lines(axes, contexts, values):
  """A line for each model, {name: values}, as far as it has any."""
  for i, (name, y) in enumerate(values.items()):
    if not (y := [value for value in y if value is not None]):
      continue
    colour, style = i % len(pictures.COLOURS), i // len(pictures.COLOURS)
    axes.plot(
      contexts[: len(y)], y, pictures.STYLES[style % 3],
      color=pictures.COLOURS[colour], marker='o', markersize=3, linewidth=1.4,
      label=name,
    )  # fmt: skip
