"""Learning curves of a report; each is the mean over runs."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax.evaluation import units
from txl_jax.experiment.collect import Run
from txl_jax.paper import pictures


def learning(
  rows: Mapping[str, Sequence[Run]], name: pathlib.Path
) -> Iterator[str]:
  """Plots metrics against training tokens; yields its Markdown.

  The file is `name` with the suffix `_learning.png`. For {label: runs}, lines
  are means over runs, a pale one of training and one of validation, with a band
  from the lowest to the highest run; each unit has a panel.
  """
  by_unit: dict[str, dict[str, Any]] = {}
  for label, runs in rows.items():
    bands = [_band(runs, split) for split in ('validation', 'train')]
    if any(x for x, *_ in bands):
      by_unit.setdefault(runs[0].unit, {})[label] = bands
  if not by_unit:
    return
  panels = {units.NAMES[unit]: by_unit[unit] for unit in sorted(by_unit)}

  def plot(figure):
    parts = figure.subfigures(len(panels), squeeze=False).flat
    for part, (unit, bands) in zip(parts, panels.items()):
      axes = part.subplots()
      for k, look in (1, {'alpha': 0.45, 'linewidth': 0.9}), (0, {}):
        pictures.lines(axes, {x: y[k][:2] for x, y in bands.items()}, **look)
      for i, ((x, _, low, high), _) in enumerate(bands.values()):
        colour = pictures.style(i)['color']
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
      axes.set_xlabel('training tokens, millions')
      axes.set_ylabel(f'validation (pale: training), {unit}')
      y = [x for pair in bands.values() for band in pair for x in band[1]]
      if max(y) > 10 * min(y) > 0:  # perplexity falls by orders of magnitude
        axes.set_yscale('log')
        axes.yaxis.set_major_formatter('{x:g}')

  path = name.with_name(f'{name.name}_learning.png')
  labels = [label for bands in panels.values() for label in bands]
  # Labels are beside the plot.
  width = max(7.5, 4.5 + 0.07 * max(map(len, labels)))
  height = sum(max(4, 0.35 * len(bands)) for bands in panels.values())
  if pictures.draw(path, plot, (width, height)):
    text = f'{" or ".join(panels)} against training tokens'
    yield f'![{text}]({path.name})'


def _band(runs, split):
  """x in millions, and mean, minimum and maximum y, where all curves have x."""
  curves = [x for x in (run.curve(split) for run in runs) if x] or [{}]
  x = sorted(set.intersection(*map(set, curves)))
  values = [[curve[i] for curve in curves] for i in x]
  y = ([*map(f, values)] for f in (statistics.fmean, min, max))
  return [i / 1e6 for i in x], *y
