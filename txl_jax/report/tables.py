"""The tables of the paper, beside the figures of runs."""

import json
import pathlib
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txl_jax.report import curves, logs, page, paper
from txl_jax.report.collect import Run

Groups = Mapping[str, Sequence[Run]]  # runs by their experiment


class Figure(NamedTuple):
  """Equal measurements of several runs."""

  values: Sequence[float]
  others: int = 0  # runs that were measured in another way, not among these
  how: str = ''  # they were measured
  where: str = ''  # the hardware, where it matters
  before: str = ''  # what is shown around it
  after: str = ''  # alone, where there is no value

  @property
  def mean(self) -> float:
    """Of the values."""
    return statistics.fmean(self.values)

  def __str__(self) -> str:
    """The mean, and the standard deviation where there are several."""
    if not self.values:
      return self.after
    digits = 3 if abs(self.mean) < 10 else 2 if abs(self.mean) < 1000 else 0
    if all(isinstance(x, int) for x in self.values):  # tokens
      digits = 0
    text = f'{self.before}{self.mean:.{digits}f}'
    if len(self.values) > 1:
      text += f' ± {statistics.stdev(self.values):.{digits}f}'
    return text + self.after


# What is measured besides the columns of the paper, by the kind of a table.
_BESIDES = {'lengths': ('ppl in training',)}
# And what is said of its figures.
_SAID = {
  'lengths': (
    'Init and best are of the sweep over attention lengths, which may be of '
    'fewer tokens, and moves a window token by token where there is no memory. '
    'In training: the best validation figure of a run, in segments whose first '
    'tokens see little and, with half the loss, were never trained.'
  ),
  'recl': (
    'In brackets: where 95 % of the results lie if the positions are drawn '
    'anew; of several seeds, from the lowest end to the highest. ≥: even the '
    'longest context tried was of use. Its reach: the model was trained to '
    'read no more. n/a: it was trained to read less than the shortest context. '
    'RECL counts gains alone: where the mean nll rises with the '
    'context, the length does not mean that the context is used.'
  ),
}


def of_paper(
  groups: Groups,
  evaluations: Sequence[Run],
  folder: pathlib.Path,
  every: bool = False,
) -> Iterator[str]:
  """The tables of the paper with figures and curves of runs, in Markdown.

  Those in which a run has a row, or every one. The runs of an experiment are
  the groups; all runs besides, whose analyses may be of several (RECL) or of
  none (evaluation speed). Pictures are put into the folder.
  """
  for table in paper.TABLES:
    parts = [*_part(table, groups, evaluations, '', folder, every)]
    for file in sorted(
      {x.partition(':')[0] for row in table.rows for x in row.small}
    ):
      if small := [*_part(table, groups, evaluations, file, folder)]:
        parts += [
          f'### Table {table.number} in small: {file}',
          f'Twins of its rows for a CPU: {paper.SMALL[file]}. Model, text and '
          "training are not the paper's: read the figures and how far seeds "
          'differ, not an order. A row without a published figure is not in '
          'the paper.',
          *small,
        ]
    if table.number == 5:
      variants = groups.get('ptb', ()), groups.get('ptb+', ())
      parts += logs.beside([run for x in variants for run in x], folder)
    if parts:
      number = f'Table {table.number}: ' if table.number else ''
      yield f'## {number}{table.title}'
      yield from parts


def _part(table, groups, evaluations, file, folder, every=False):
  """A table or its twins in a file, where a run has a row; and its curves."""
  there = _there(table, groups, file)
  made, has_figures = _beside(table, groups, evaluations, file)
  if has_figures or every or (there and table.kind == 'test'):
    if table.kind in _SAID and has_figures:
      yield _SAID[table.kind]
    yield made
    name = f'table_{table.number}' if table.number else 'studies'
    name += f'_{file}' if file else ''
    yield from curves.learning(there, folder / name)


def _there(table, groups, file):
  """The runs of rows by their labels, of one row for each experiment."""
  return {
    _label(row, file, groups): groups[experiment]
    for row in table.rows
    if not row.length and (experiment := _experiment(row, file)) in groups
  }


def _label(row, file, groups):
  """The model of a row; the small one has another size and other segments."""
  if not file:
    return row.model
  runs = groups.get(_experiment(row, file), ())
  T = runs[0].config['train.segment_len'] if runs else 'another length'
  of_twin = re.sub(r'(?<=segments of )\d+', f'{T}', row.model)
  return of_twin.removesuffix(', 128M')


def _experiment(row, file):
  """The experiment of a row; in small, its twin in a file."""
  return row.twin(file) if file else row.experiment


def _beside(table, groups, evaluations, file):
  """A table of the paper, ours beside it; in small, the twins in a file.

  And whether a run has a figure in it.
  """
  columns, there = table.columns, _there(table, groups, file).values()
  unit = ' or '.join(sorted({r.unit for runs in there for r in runs}))
  ours = [*columns, *_BESIDES.get(table.kind, ())]
  if file:
    ours = [c.replace('ppl ', f'{unit} ') for c in ours]
  if len(ours) < 2:
    ours = [unit] if file or not columns else []
  ours = [f'ours, {c}' for c in ours] or ['ours']
  compared = columns and not file and table.kind != 'recl'
  differences = ['difference'] if compared else []
  header = ['', *columns, *ours, *differences, 'runs']
  rows, any_figure = [], False
  for row in table.rows:
    experiment = _experiment(row, file)
    if not (experiment if file else row.published or not columns):
      continue
    published = [f'{x:,}' for x in row.published] or [''] * len(columns)
    cells = [_label(row, file, groups), *published]
    if not experiment and table.kind != 'speed':
      cells += ['not implemented here']
      rows.append(cells + [''] * (len(header) - len(cells)))
      continue
    runs = groups.get(experiment, ())
    figures = MEASURES[table.kind](row, runs, evaluations, experiment)
    any_figure |= any(figures)
    cells += [str(f) if f else '' for f in figures]
    if compared:
      main = min(1, len(columns) - 1)  # the best, where there are several
      found = figures[main]
      cells.append(f'{found.mean - row.published[main]:+.2f}' if found else '')
    rows.append([*cells, _counted(figures, runs)])
  return page.table(header, rows), any_figure


def _counted(figures, runs):
  """How many runs figures are of, and what is to be known of them."""
  if not (found := [f for f in figures if f]):
    return ''
  figure, most = found[0], max(len(f.values) for f in found)
  young = sum(not r.finished for r in runs)
  notes = [f'{young} not finished'] * bool(young)
  notes += [f'{figure.others} measured otherwise'] * bool(figure.others)
  less = len(figure.values) < most
  notes += [f'{len(figure.values)} in a sweep'] * less
  notes += [figure.where] * bool(figure.where)
  return f'{most or ""}' + (f' ({", ".join(notes)})' if notes else '')


def _figures(measured, columns: int) -> list[Figure | None]:
  """A Figure for each column of values, of pairs (how, values).

  That of the largest group of equal ones, the first of those; None without any.
  """
  groups: dict[str, list] = {}
  for how, values in measured:
    groups.setdefault(json.dumps(how, sort_keys=True), []).append(values)
  if not groups:
    return [None] * columns
  how = max(groups, key=lambda x: len(groups[x]))
  others = sum(map(len, groups.values())) - len(groups[how])
  found = zip(*groups[how], strict=True)
  return [Figure(column, others, how) for column in found]


def _test(row, runs, *_):
  """The figure on the test split."""
  found = (run.analyses.get('eval_test') for run in runs)
  return _figures(([a.get('eval'), [a[a['unit']]]] for a in found if a), 1)


def _validation(row, runs, *_):
  """The best figure on the validation split in training."""
  found = [run.best[run.unit] for run in runs if run.best]
  return [Figure(found) if found else None]


def _lengths(row, runs, *_):
  """Of the sweep: init, best and its length; the best figure in training.

  Where the row is of another length than the best, that one.
  """
  measured = []
  for a in (run.analyses.get('attention_length') for run in runs):
    if not a or a['split'] != 'validation':  # as in the paper
      continue
    there = {x['attention_length_tokens']: x for x in a['lengths']}
    if best := there.get(row.length) if row.length else a['best']:
      values = [x[a['unit']] for x in (a['init'], best)]
      values += [best['attention_length_tokens']]
      measured.append(([a.get('options'), a.get('eval')], values))
  return [*_figures(measured, 3), *_validation(row, runs)]


def _recl(_, _runs, evaluations, experiment):
  """Relative effective context lengths, of whichever run has measured them.

  They depend on the group: the largest counts, with all of the same models,
  as of other seeds.
  """
  groups: dict[Any, list] = {}
  for run in evaluations:
    a = run.analyses.get('recl', {'group': (), 'results': ()})
    there = {(r['name'], r['share']): r for r in a['results']}
    own = [
      [there.get((m['name'], share)) for share in paper.SHARES]
      for m in a['group']
      if m['experiment'] == experiment
    ]
    if found := [results for results in own if None not in results]:
      models = tuple(sorted(m['experiment'] for m in a['group']))
      groups.setdefault(models, []).extend(found)
  if not groups:
    return [None] * len(paper.SHARES)
  largest = groups[max(groups, key=len)]
  return [_context(results) for results in zip(*largest, strict=True)]


def _context(results):
  """A Figure of the relative effective context lengths of equal models."""
  found = [r['recl_tokens'] for r in results]
  if None in found:
    return Figure((), after='n/a')
  ends = [c for r in results for c in r.get('interval_tokens') or ()]
  after = f' [{min(ends)}, {max(ends)}]' if ends else ''
  if any(r.get('at_reach') for r in results):
    after += ' (its reach)'
  return Figure(
    found, before='≥ ' * any(r.get('at_end') for r in results), after=after
  )


def _speed(row, _runs, evaluations, *_):
  """The ratio at the attention length of the row, of one model on a device."""
  measured = []
  for a in (run.analyses.get('eval_speed') for run in evaluations):
    for x in a['lengths'] if a else ():
      if x['attention_length_tokens'] == row.length:
        window = a.get('options', {}).get('window', 'same')
        names = a.get('experiment'), window if window != 'same' else ''
        where = ', '.join([a['hardware']['device'], *filter(None, names)])
        measured.append(([where, a.get('config')], [x['times_slower']]))
  (figure,) = _figures(measured, 1)
  return [figure and figure._replace(where=json.loads(figure.how)[0])]


# How the figures of a table are found, by its kind.
MEASURES = {
  'test': _test,
  'validation': _validation,
  'lengths': _lengths,
  'recl': _recl,
  'speed': _speed,
}
