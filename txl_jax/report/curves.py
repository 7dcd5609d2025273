"""The learning curves of a report: several runs in each."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax.evaluation import figures
from txl_jax.program import pictures
from txl_jax.report import page
from txl_jax.report.collect import Run

Rows = Mapping[str, Sequence[Run]]  # runs that differ in their seed, by label


def learning(rows: Rows, name: pathlib.Path) -> Iterator[str]:
  """The picture of validation figures against the tokens trained on.

  The name is a path to which `_learning.png` is added. Of several runs the mean
  is drawn, between the lowest and the highest; each unit has a panel.
  """
  units: dict[str, dict[str, Any]] = {}
  for label, runs in rows.items():
    found = [c for c in (run.curve() for run in runs) if c[0]]
    if found and (band := _band(found))[0]:
      units.setdefault(runs[0].unit, {})[label] = band
  if not units:
    return
  panels = {figures.NAMES[unit]: units[unit] for unit in sorted(units)}

  def plot(figure):
    parts = figure.subfigures(len(panels), 1, squeeze=False)[:, 0]
    for part, (unit, bands) in zip(parts, panels.items()):
      axes = part.subplots()
      pictures.lines(axes, {k: (x, y) for k, (x, y, _, _) in bands.items()})
      for i, (x, _, low, high) in enumerate(bands.values()):
        colour = pictures.COLOURS[i % len(pictures.COLOURS)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
      axes.set_xlabel('tokens of training, millions')
      axes.set_ylabel(f'validation, {unit}')

  path = name.with_name(f'{name.name}_learning.png')
  labels = [label for bands in panels.values() for label in bands]
  width = max(7.5, 4.5 + 0.07 * max(map(len, labels)))  # they are beside it
  height = sum(max(4, 0.35 * len(bands)) for bands in panels.values())
  if pictures.draw(path, plot, (width, height)):
    names = ' or '.join(panels)
    yield page.picture(path, f'validation, {names} against tokens of training')


def _band(curves):
  """x in millions; mean, lowest and highest y, where all curves have one."""
  x = sorted(set.intersection(*(set(x) for x, _ in curves)))
  values = [[dict(zip(*curve))[i] for curve in curves] for i in x]
  y = ([*map(f, values)] for f in (statistics.fmean, min, max))
  return [i / 1e6 for i in x], *y
