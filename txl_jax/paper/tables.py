"""Tables of the paper with the figures of runs beside them."""

import json
import pathlib
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txl_jax.experiment.collect import Run
from txl_jax.paper import curves, logs, published
from txl_jax.program import markdown


class Figure(NamedTuple):
  """Values of several runs, measured with the same options."""

  values: Sequence[float]
  others: int = 0  # number of runs measured with other options
  how: str = ''  # the options, as JSON
  where: str = ''  # the hardware of a speed
  before: str = ''  # text before the mean
  after: str = ''  # text after the mean, or in place of it

  @property
  def mean(self) -> float:
    """The mean of the values."""
    return statistics.fmean(self.values)

  def __str__(self) -> str:
    """The mean and, for several values, the standard deviation."""
    if not self.values:
      return self.after
    digits = 3 if abs(self.mean) < 10 else 2 if abs(self.mean) < 1000 else 0
    if all(isinstance(x, int) for x in self.values):  # tokens
      digits = 0
    text = f'{self.before}{self.mean:.{digits}f}'
    if len(self.values) > 1:
      text += f' ± {statistics.stdev(self.values):.{digits}f}'
    return text + self.after


_NOTES = {  # {kind of table: text above it}
  'lengths': 'Init and best are from the sweep over attention lengths; in '
  'training: the best validation figure of a run, by segments.',
  'recl': 'In brackets: the 95 % interval. ≥: even the longest context brought '
  'a gain. Its reach: limited by training; n/a: shorter than a first context.',
}


def of_paper(
  groups: Mapping[str, Sequence[Run]],
  evaluations: Sequence[Run],
  folder: pathlib.Path,
  every: bool,
) -> Iterator[str]:
  """Yields the tables of the paper with figures of runs, as blocks of Markdown.

  `groups` are {experiment: runs that differ only in seed}, `evaluations` are
  all runs: an analysis may cover several of them (RECL) or none (evaluation
  speed). Curves are written into the folder. If `every` is true, tables without
  a run are included.
  """
  for table in published.TABLES:
    parts = [*_part(table, groups, evaluations, '', folder, every)]
    files = {x.partition(':')[0] for row in table.rows for x in row.small}
    for file in sorted(files):
      if small := [*_part(table, groups, evaluations, file, folder)]:
        parts += [
          f'### Table {table.number}, small: {file}',
          f'CPU-sized twins of its rows: {published.SMALL[file]}. Model, text '
          "and training are not the paper's: judge differences by the spread "
          "between seeds; the order may differ from the paper's. A row without "
          'a published figure is not in the paper.',
          *small,
        ]
    if table.number == 5:
      ptb = [run for run in evaluations if run.experiment == 'ptb']
      parts += logs.beside(ptb, folder)
    if parts:
      number = f'Table {table.number}: ' if table.number else ''
      yield f'## {number}{table.title}'
      yield from parts


def _part(table, groups, evaluations, file, folder, every=False):
  """Yields a table, or its twins in a config file, and its curves.

  Nothing without a figure (for kind 'test': without a run) unless `every`.
  """
  runs = {  # a row per experiment
    _label(row, file, groups): groups[experiment]
    for row in table.rows
    if not row.length and (experiment := row.experiment_of(file)) in groups
  }
  text, has_figures = _table(table, groups, evaluations, file, runs)
  if has_figures or every or (runs and table.kind == 'test'):
    if table.kind in _NOTES and has_figures:
      yield _NOTES[table.kind]
    yield text
    name = f'table_{table.number}' if table.number else 'studies'
    name += f'_{file}' if file else ''
    yield from curves.learning(runs, folder / name)


def _label(row, file, groups):
  """The model of a row; a twin has no size and its own segment length."""
  if not file:
    return row.model
  runs = groups.get(row.experiment_of(file), ())
  T = runs[0].config['train.segment_len'] if runs else 'another length'
  of_twin = re.sub(r'(?<=segments of )\d+', f'{T}', row.model)
  return of_twin.removesuffix(', 128M')


def _table(table, groups, evaluations, file, runs_by_label):
  """The Markdown of a table, and whether a run has a figure in it."""
  columns = table.columns
  units = {run.unit for runs in runs_by_label.values() for run in runs}
  unit = ' or '.join(sorted(units))
  ours = [*columns, *(['ppl in training'] if table.kind == 'lengths' else [])]
  if file:
    ours = [c.replace('ppl ', f'{unit} ') for c in ours]
  if len(ours) < 2:
    ours = [unit] if file or not columns else []
  ours = [f'ours, {c}' for c in ours] or ['ours']
  compared = columns and not file and table.kind != 'recl'
  differences = ['difference'] if compared else []
  header = ['', *columns, *ours, *differences, 'runs']
  rows = []
  any_figure = False
  for row in table.rows:
    experiment = row.experiment_of(file)
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
      main = min(1, len(columns) - 1)  # in a sweep, the best length
      ours = figures[main]
      cells.append(f'{ours.mean - row.published[main]:+.2f}' if ours else '')
    rows.append([*cells, _counts(figures, runs)])
  return markdown.table(header, rows), any_figure


def _counts(figures, runs):
  """The number of runs behind the figures of a row, with remarks."""
  if not (figures := [f for f in figures if f]):
    return ''
  first = figures[0]
  most = max(len(f.values) for f in figures)
  notes = []
  if unfinished := sum(not run.finished for run in runs):
    notes.append(f'{unfinished} not finished')
  if first.others:
    notes.append(f'{first.others} with other options')
  if len(first.values) < most:
    notes.append(f'{len(first.values)} in the sweep')
  if first.where:
    notes.append(first.where)
  return f'{most or ""}' + (f' ({", ".join(notes)})' if notes else '')


def _figures(measured, columns: int) -> list[Figure | None]:
  """A Figure per column, from pairs (options, values of all columns).

  Uses the largest group with equal options; None if nothing was measured.
  """
  groups: dict[str, list] = {}
  for how, values in measured:
    groups.setdefault(json.dumps(how, sort_keys=True), []).append(values)
  if not groups:
    return [None] * columns
  how = max(groups, key=lambda x: len(groups[x]))
  others = sum(map(len, groups.values())) - len(groups[how])
  values = zip(*groups[how], strict=True)
  return [Figure(column, others, how) for column in values]


def _test(row, runs, *_):
  """The figure on the test split."""
  tests = (run.analyses.get('eval_test') for run in runs)
  return _figures(([a.get('eval'), [a[a['unit']]]] for a in tests if a), 1)


def _validation(row, runs, *_):
  """The best figure on the validation split in training."""
  values = [run.best[run.unit] for run in runs if run.best]
  return [Figure(values) if values else None]


def _lengths(row, runs, *_):
  """Init, best and best length of the sweep; best figure in training.

  If the row names a length, the figures at that length replace the best.
  """
  measured = []
  for a in (run.analyses.get('attention_length') for run in runs):
    if not a or a['split'] != 'validation':  # as in the paper
      continue
    by_length = {x['attention_length_tokens']: x for x in a['lengths']}
    if best := by_length.get(row.length) if row.length else a['best']:
      values = [x[a['unit']] for x in (a['init'], best)]
      values += [best['attention_length_tokens']]
      measured.append(([a.get('options'), a.get('eval')], values))
  return [*_figures(measured, 3), *_validation(row, runs)]


def _recl(_, _runs, evaluations, experiment):
  """Relative effective context lengths (RECL) for each of SHARES.

  RECL depends on the group of compared models. Results of the largest group are
  shown, with all seeds of its models.
  """
  groups: dict[Any, list] = {}
  for run in evaluations:
    a = run.analyses.get('recl', {'group': (), 'results': ()})
    by_share = {(r['name'], r['share']): r for r in a['results']}
    each = [
      [by_share.get((m['name'], share)) for share in published.SHARES]
      for m in a['group']
      if m['experiment'] == experiment
    ]
    if found := [results for results in each if None not in results]:
      models = tuple(sorted(m['experiment'] for m in a['group']))
      groups.setdefault(models, []).extend(found)
  if not groups:
    return [None] * len(published.SHARES)
  largest = groups[max(groups, key=len)]
  return [_context(results) for results in zip(*largest, strict=True)]


def _context(results):
  """A Figure of the RECL of one model with several seeds."""
  lengths = [r['recl_tokens'] for r in results]
  if None in lengths:
    return Figure((), after='n/a')
  ends = [c for r in results for c in r.get('interval_tokens') or ()]
  after = f' [{min(ends)}, {max(ends)}]' if ends else ''
  if any(r.get('at_reach') for r in results):
    after += ' (its reach)'
  before = '≥ ' if any(r.get('at_end') for r in results) else ''
  return Figure(lengths, before=before, after=after)


def _speed(row, _runs, evaluations, *_):
  """The slowdown at the attention length of the row, for one device."""
  measured = []
  for a in (run.analyses.get('eval_speed') for run in evaluations):
    for x in a['lengths'] if a else ():
      if x['attention_length_tokens'] == row.length:
        window = a.get('options', {}).get('window', 'same')
        names = [a['hardware']['device'], a.get('experiment', '').rstrip('+')]
        names += [window] if window != 'same' else []
        where = ', '.join(filter(None, names))
        measured.append(([where, a.get('config')], [x['times_slower']]))
  (figure,) = _figures(measured, 1)
  return [figure and figure._replace(where=json.loads(figure.how)[0])]


# {kind of table: function that collects the figures of a row}.
MEASURES = {
  'test': _test,
  'validation': _validation,
  'lengths': _lengths,
  'recl': _recl,
  'speed': _speed,
}
