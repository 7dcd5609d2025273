"""Draws plots in one style with matplotlib, if it is installed.

matplotlib is the extra `plot`; it is imported only when a plot is drawn.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txl_jax.experiment import analysis
from txl_jax.experiment.job import Job
from txl_jax.program import files

# From Okabe and Ito (2008), distinguishable for the colour-blind.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'
STYLES = '-', '--', ':'  # changes each time the colours repeat
INK, PALE = '#333333', '#8a8a8a'
MISSING = 'picture left out: pip install matplotlib'

_STYLE: Any = {
  'figure.facecolor': 'white',
  'font.size': 9.5,
  'text.color': INK,
  'text.parse_math': False,  # a $ in a folder name starts no formula
  'axes.edgecolor': PALE,
  'axes.labelcolor': INK,
  'axes.titlelocation': 'left',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.color': '#e4e4e4',
  'xtick.color': PALE,
  'ytick.color': PALE,
  'xtick.labelcolor': INK,
  'ytick.labelcolor': INK,
  'lines.linewidth': 1.8,
}


def draw(
  path: files.AnyPath,
  plot: Callable[[Any], None],
  size: tuple[float, float] = (7, 4),
) -> bool:
  """Writes the PNG of a matplotlib Figure into which `plot` draws.

  `size` is in inches, at 100 dots per inch. Returns False, and writes no file,
  without matplotlib. UserError if the file cannot be written.
  """
  try:
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: Agg, no window
  except ImportError:
    return False
  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    figure = Figure(figsize=size, dpi=100, layout='constrained')
    plot(figure)
    warnings.filterwarnings('ignore', 'Glyph')  # missing in the font
    with files.writing(f'{path}'), files.replacing(path) as f:
      figure.savefig(f, format='png')
  return True


def report(
  job: Job,
  record: dict[str, Any],
  text: Sequence[str],
  plot: Callable[..., None],
  size: tuple[float, float],
) -> None:
  """Reports a measurement with `analysis.report`, and draws it.

  `text` are the printed lines. `plot` draws the record into a Figure whose size
  is in inches.
  """
  plot = functools.partial(plot, record=record)
  draw_it = functools.partial(draw, plot=plot, size=size)
  if not analysis.report(job, record, text, draw_it):
    job.console.say(MISSING)


def style(i: int) -> dict[str, str]:
  """The colour and style of line i."""
  repeats, colour = divmod(i, len(COLOURS))
  return {'color': COLOURS[colour], 'linestyle': STYLES[repeats % len(STYLES)]}


def lines(
  axes: Any, series: Mapping[str, Sequence[Sequence]], **look: Any
) -> None:
  """Draws lines {label: (x, y)}; the legend is ordered by their last points.

  With a `look`, keywords of matplotlib, they are not in the legend.
  """
  ends = []
  for i, (label, (x, y)) in enumerate(series.items()):
    # Markers show a line of one point, and the points of a short line.
    marker = 'o' if len(x) < 10 else ''
    options = {**style(i), 'label': label, 'marker': marker, **look}
    (line,) = axes.plot(x, y, markersize=3, **options)
    ends.append(([0, *y][-1], i, line))
  axes.margins(x=0.02)
  handles = [line for *_, line in sorted(ends, reverse=True)]
  if not look:
    axes.figure.legend(
      handles=handles, loc='outside right upper', frameon=False
    )
