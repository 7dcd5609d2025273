"""Pictures of a report: several runs in each."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

from txl_jax.evaluation import figures
from txl_jax.program import pictures
from txl_jax.report import page
from txl_jax.report.collect import Run

Rows = Mapping[str, Sequence[Run]]  # runs that differ in their seed, by label
# {label: (x, mean y, lowest y, highest y)}
Bands = Mapping[str, tuple[Sequence, Sequence, Sequence, Sequence]]


def learning(rows: Rows, name: pathlib.Path) -> Iterator[page.Picture]:
  """Validation figures against the tokens trained on.

  The name is that of the table, a path to which the kind of the picture is
  added.
  """
  bands = {}
  for label, runs in rows.items():
    if found := [c for c in (run.curve() for run in runs) if c[0]]:
      bands[label] = _band(found)
  units = {run.unit for runs in rows.values() for run in runs}
  names = ' or '.join(figures.NAMES[unit] for unit in sorted(units))
  shown = f'validation, {names}'
  yield from _drawn(name, 'learning', bands, 'tokens of training', shown)


def sweeps(rows: Rows, name: pathlib.Path) -> Iterator[page.Picture]:
  """Figures against the attention length at evaluation."""
  bands, unit = {}, ''
  for label, runs in rows.items():
    if found := [run.sweep for run in runs if run.sweep]:
      unit = found[0]['unit']
      curves = [_columns(a, unit) for a in found]
      bands[label] = _band(curves)
  shown = figures.NAMES.get(unit, '')
  yield from _drawn(name, 'lengths', bands, 'attention length, tokens', shown)


def contexts(
  rows: Rows, evaluations: Sequence[Run], name: pathlib.Path
) -> Iterator[page.Picture]:
  """The mean nll against the tokens of context, from the groups of RECL."""
  bands = {}
  for label, runs in rows.items():
    own = {run.experiment for run in runs}
    found = [
      _measured(a['contexts_tokens'], member['mean_nats'])
      for a in _analyses(evaluations, 'recl')
      for member in a['group']
      if member['experiment'] in own
    ]
    if found:
      bands[label] = _band(found)
  shown = 'nats per token'
  yield from _drawn(name, 'context', bands, 'tokens of context', shown)


def _analyses(runs, program):
  return [a for run in runs if (a := run.analyses.get(program)) is not None]


def _measured(x, y):
  """Without the contexts beyond the reach of a model."""
  pairs = [(a, b) for a, b in zip(x, y) if b is not None]
  return [a for a, _ in pairs], [b for _, b in pairs]


def _columns(sweep, unit):
  rows = sweep['lengths']
  x = [r['attention_length_tokens'] for r in rows]
  return x, [r[unit] for r in rows]


def _band(curves):
  """The mean, lowest and highest of equal measurements, where all have one."""
  at = set.intersection(*(set(x) for x, _ in curves))
  x = sorted(at)
  values = [[dict(zip(*curve))[i] for curve in curves] for i in x]
  return x, [*map(statistics.fmean, values)], [*map(min, values)], [
    *map(max, values)
  ]  # fmt: skip


def _drawn(name, kind, bands: Bands, x_name, y_name):
  """The picture of lines, each between its lowest and highest."""
  bands = {label: band for label, band in bands.items() if band[0]}
  if not bands:
    return

  def plot(figure):
    axes = figure.subplots()
    pictures.lines(axes, {k: (x, y) for k, (x, y, _, _) in bands.items()}, '')
    for i, (x, _, low, high) in enumerate(bands.values()):
      colour = pictures.COLOURS[i % len(pictures.COLOURS)]
      axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)

  path = name.with_name(f'{name.name}_{kind}.png')
  width = max(7.5, 4.5 + 0.07 * max(map(len, bands)))  # labels are beside it
  if pictures.draw(path, plot, (width, max(4, 0.35 * len(bands)))):
    yield page.Picture(path, f'{y_name} against {x_name}')
