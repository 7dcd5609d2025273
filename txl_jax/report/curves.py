"""The learning curves of a report: several runs in each."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

from txl_jax.evaluation import figures
from txl_jax.program import pictures
from txl_jax.report import page
from txl_jax.report.collect import Run

Rows = Mapping[str, Sequence[Run]]  # runs that differ in their seed, by label


def learning(rows: Rows, name: pathlib.Path) -> Iterator[str]:
  """The picture of validation figures against the tokens trained on.

  The name is that of the table, a path to which `_learning.png` is added. Of
  several runs the mean is drawn, between the lowest and the highest.
  """
  bands = {}
  for label, runs in rows.items():
    if found := [c for c in (run.curve() for run in runs) if c[0]]:
      bands[label] = _band(found)
  bands = {label: band for label, band in bands.items() if band[0]}
  if not bands:
    return
  units = {run.unit for runs in rows.values() for run in runs}
  names = ' or '.join(figures.NAMES[unit] for unit in sorted(units))

  def plot(figure):
    axes = figure.subplots()
    pictures.lines(axes, {k: (x, y) for k, (x, y, _, _) in bands.items()})
    for i, (x, _, low, high) in enumerate(bands.values()):
      colour = pictures.COLOURS[i % len(pictures.COLOURS)]
      axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel('tokens of training')
    axes.set_ylabel(f'validation, {names}')

  path = name.with_name(f'{name.name}_learning.png')
  width = max(7.5, 4.5 + 0.07 * max(map(len, bands)))  # labels are beside it
  if pictures.draw(path, plot, (width, max(4, 0.35 * len(bands)))):
    yield page.picture(path, f'validation, {names} against tokens of training')


def _band(curves):
  """x, and mean, lowest and highest y, where all of the curves have one."""
  x = sorted(set.intersection(*(set(x) for x, _ in curves)))
  values = [[dict(zip(*curve))[i] for curve in curves] for i in x]
  return x, *([*map(f, values)] for f in (statistics.fmean, min, max))
