"""The tables of the paper, beside the figures of runs."""

import json
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from txl_jax.report import curves, page, paper
from txl_jax.report.collect import Run
from txl_jax.runs.console import duration

Groups = Mapping[str, Sequence[Run]]  # runs by their experiment
_T = TypeVar('_T')


class Figure(NamedTuple):
  """Equal measurements of several runs."""

  values: Sequence[float]
  others: int = 0  # runs that were measured in another way, not among these
  where: str = ''  # the hardware, where it matters

  @property
  def mean(self) -> float:
    """Of the values."""
    return statistics.fmean(self.values)

  def __str__(self) -> str:
    """The mean, and the standard deviation where there are several."""
    digits = 3 if abs(self.mean) < 10 else 2 if abs(self.mean) < 1000 else 0
    if all(isinstance(x, int) for x in self.values):  # tokens
      digits = 0
    mean = f'{self.mean:.{digits}f}'
    if len(self.values) == 1:
      return mean
    return f'{mean} ± {statistics.stdev(self.values):.{digits}f}'


def of_paper(
  groups: Groups, evaluations: Sequence[Run], folder: pathlib.Path
) -> Iterator[page.Block]:
  """Every table of the paper, the figures and curves of runs beside it.

  The runs of an experiment are the groups; all runs besides, whose analyses may
  be of several (RECL) or of none (evaluation speed). Pictures are put into the
  folder.
  """
  for table in paper.TABLES:
    yield page.Heading(2, f'Table {table.number}: {table.title}')
    twins = {x.partition(':')[0] for row in table.rows for x in row.small}
    for file in '', *sorted(twins):
      there = {
        _label(row, file): groups[experiment]
        for row in table.rows
        if (experiment := _experiment(row, file)) in groups
      }
      if file and there:
        yield page.Heading(3, f'Table {table.number} in small: {file}')
        yield 'The order of its rows, with models for a CPU.'
      if there or not file:
        yield _beside(table, groups, evaluations, file)
      name = folder / f'table_{table.number}{f"_{file}" if file else ""}'
      yield from curves.learning(there, name)
      if table.kind == 'lengths':
        yield from curves.sweeps(there, name)
      if table.kind == 'recl':
        yield from curves.contexts(there, evaluations, name)


def _experiment(row, file):
  """The experiment of a row; in small, its twin in a file."""
  return row.twin(file) if file else row.experiment


def _beside(table, groups, evaluations, file):
  """A table of the paper, ours beside it; in small, the twins in a file."""
  columns = table.columns
  ours = ['ours'] if len(columns) == 1 else [f'ours, {c}' for c in columns]
  if file:
    unit = _units(groups, table, file)
    if table.kind == 'test':
      ours = [f'ours, {unit}']
    ours = [c.replace('ppl ', f'{unit} ') for c in ours]
  differences = [] if file or table.kind == 'recl' else ['difference']
  header = ['', *columns, *ours, *differences, 'runs', 'hardware', 'time']
  rows = []
  for row in table.rows:
    experiment = _experiment(row, file)
    if file and not experiment:
      continue
    runs = groups.get(experiment, ())
    figures = MEASURES[table.kind](row, runs, evaluations, experiment)
    cells = [_label(row, file), *map(_plain, row.published)]
    cells += [str(f) if f else '' for f in figures]
    if differences:
      main = min(1, len(columns) - 1)  # the best, where there are several
      found = figures[main]
      cells.append(f'{found.mean - row.published[main]:+.2f}' if found else '')
    cells += _counted(figures[0], runs)
    rows.append(cells)
  return page.Table(header, rows)


def _label(row, file):
  """The model of a row; the small one has another size."""
  return row.model.removesuffix(', 128M') if file else row.model


def _units(groups, table, file):
  """'bpc' or 'ppl' where the figures have it, of the twins in a file."""
  twins = (row.twin(file) for row in table.rows)
  found = {run.unit for twin in twins for run in groups.get(twin, ())}
  return ' or '.join(sorted(found))


def _plain(x):
  return x if isinstance(x, str) else f'{x:,}'


def _counted(figure, runs):
  """How many runs a figure is of, their hardware and their mean time."""
  if not figure:
    return ['', '', '']
  young = sum(not r.finished for r in runs)
  notes = [f'{young} not finished'] * bool(young)
  notes += [f'{figure.others} measured otherwise'] * bool(figure.others)
  count = f'{len(figure.values)}' + (f' ({", ".join(notes)})' if notes else '')
  return [count, *(_where(runs) if runs else (figure.where, ''))]


def _where(runs):
  """The hardware of runs, and their mean time."""
  found = (a for run in runs for a in run.analyses.values())
  # One without a run has no such entry: it may be of fresh weights.
  kinds = dict.fromkeys(a['trained_on'] for a in found if 'trained_on' in a)
  seconds = statistics.fmean(run.seconds for run in runs)
  return ', '.join(kinds), duration(seconds)


def _figures(
  groups: Mapping[Any, Sequence[Sequence[float]]], columns: int
) -> list[Figure | None]:
  """A Figure for each column of rows of values, in groups of equal ones.

  That of the largest group, the first of those; None without any.
  """
  if not groups:
    return [None] * columns
  kept = max(groups.values(), key=len)
  others = sum(map(len, groups.values())) - len(kept)
  return [Figure(column, others) for column in zip(*kept, strict=True)]


def _grouped(measured: Iterable[tuple[Any, _T]]) -> dict[str, list[_T]]:
  """Pairs of (how, what) -> what was measured in each way."""
  groups: dict[str, list[_T]] = {}
  for how, what in measured:
    groups.setdefault(json.dumps(how, sort_keys=True), []).append(what)
  return groups


def _test(row, runs, evaluations, experiment):
  """The figure on the test split."""
  del row, evaluations, experiment
  tested = _grouped(
    (a.get('eval'), [a[a['unit']]])
    for run in runs
    if (a := run.analyses.get('eval_test')) is not None
  )
  return _figures(tested, 1)


def _lengths(row, runs, evaluations, experiment):
  """Of the sweep over attention lengths: init, best, and its length."""
  del row, evaluations, experiment

  def values(a):
    init, best, unit = a['init'], a['best'], a['unit']
    return [init[unit], best[unit], best['attention_length_tokens']]

  sweeps = [a for run in runs if (a := run.sweep) is not None]
  ways = (([a.get('options'), a.get('eval')], values(a)) for a in sweeps)
  return _figures(_grouped(ways), 3)


def _recl(row, runs, evaluations, experiment):
  """Relative effective context lengths, of whichever run has measured them.

  They depend on the group: the largest counts, with all of the same models,
  as of other seeds.
  """
  del row, runs
  groups: dict[Any, list] = {}
  for run in evaluations:
    a = run.analyses.get('recl', {'group': (), 'results': ()})
    there = {(r['name'], r['share']): r['recl_tokens'] for r in a['results']}
    own = [
      [there.get((m['name'], share)) for share in paper.SHARES]
      for m in a['group']
      if m['experiment'] == experiment
    ]
    if found := [lengths for lengths in own if None not in lengths]:
      models = tuple(sorted(m['experiment'] for m in a['group']))
      groups.setdefault(models, []).extend(found)
  if not groups:
    return [None] * 3
  largest = max(groups, key=len)
  return _figures({largest: groups[largest]}, 3)


def _speed(row, runs, evaluations, experiment):
  """The ratio at the attention length that the row names, on one device."""
  del runs, experiment
  length = int(row.model.split()[-1].replace(',', ''))
  found = _grouped(
    (a['hardware']['device'], [measured['times_slower']])
    for run in evaluations
    if (a := run.analyses.get('eval_speed')) is not None
    for measured in a['lengths']
    if measured['attention_length_tokens'] == length
  )
  (figure,) = _figures(found, 1)
  if figure:
    where = json.loads(max(found, key=lambda how: len(found[how])))
    figure = figure._replace(where=where)
  return [figure]


# How the figures of a table are found, by its kind.
MEASURES = {
  'test': _test,
  'lengths': _lengths,
  'recl': _recl,
  'speed': _speed,
}
