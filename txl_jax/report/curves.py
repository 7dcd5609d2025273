"""Learning curves of a report; each is the mean over runs."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax.evaluation import units
from txl_jax.report.collect import Run
from txl_jax.shell import pictures

Rows = Mapping[str, Sequence[Run]]  # {label: runs that differ only in seed}


def learning(rows: Rows, name: pathlib.Path) -> Iterator[str]:
  """Plots validation metrics against training tokens; yields its Markdown.

  The file is `name` with the suffix `_learning.png`. A line is the mean over
  runs, with a band from the lowest to the highest; each unit has a panel.
  """
  by_unit: dict[str, dict[str, Any]] = {}
  for label, runs in rows.items():
    lines = [line for line in (run.curve() for run in runs) if line[0]]
    if lines and (band := _band(lines))[0]:
      by_unit.setdefault(runs[0].unit, {})[label] = band
  if not by_unit:
    return
  panels = {units.NAMES[unit]: by_unit[unit] for unit in sorted(by_unit)}

  def plot(figure):
    parts = figure.subfigures(len(panels), 1, squeeze=False)[:, 0]
    for part, (unit, bands) in zip(parts, panels.items()):
      axes = part.subplots()
      pictures.lines(axes, {k: (x, y) for k, (x, y, _, _) in bands.items()})
      for i, (x, _, low, high) in enumerate(bands.values()):
        colour = pictures.COLOURS[i % len(pictures.COLOURS)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
      axes.set_xlabel('training tokens, millions')
      axes.set_ylabel(f'validation, {unit}')

  path = name.with_name(f'{name.name}_learning.png')
  labels = [label for bands in panels.values() for label in bands]
  # Labels are beside the plot.
  width = max(7.5, 4.5 + 0.07 * max(map(len, labels)))
  height = sum(max(4, 0.35 * len(bands)) for bands in panels.values())
  if pictures.draw(path, plot, (width, height)):
    text = f'validation, {" or ".join(panels)} against training tokens'
    yield f'![{text}]({path.name})'


def _band(curves):
  """x in millions, and mean, minimum and maximum y, where all curves have x."""
  x = sorted(set.intersection(*(set(x) for x, _ in curves)))
  values = [[dict(zip(*curve))[i] for curve in curves] for i in x]
  y = ([*map(f, values)] for f in (statistics.fmean, min, max))
  return [i / 1e6 for i in x], *y
