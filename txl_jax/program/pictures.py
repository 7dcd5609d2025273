"""Pictures of figures: one style for all of them, where matplotlib is there.

matplotlib is the extra `plot`; it is imported only where something is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txl_jax.program import files

# Of Okabe and Ito (2008), which the colour-blind can tell apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'
STYLES = '-', '--', ':'  # of lines, where there are more than colours
INK, PALE = '#333333', '#8a8a8a'
MISSING = 'picture left out: pip install matplotlib'

_STYLE: Any = {
  'font.size': 9.5,
  'text.parse_math': False,  # names of folders are no formulas
  'axes.edgecolor': PALE,
  'axes.titlelocation': 'left',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#e4e4e4',
  'grid.linewidth': 0.6,
  'xtick.color': PALE,
  'ytick.color': PALE,
  'lines.linewidth': 1.8,
}


def draw(
  path: files.AnyPath,
  plot: Callable[[Any], None],
  size: tuple[float, float] = (7, 4),
) -> bool:
  """Writes the PNG of what `plot` draws into a matplotlib Figure.

  The size is in inches, of 100 dots each. False, and no file, where there is no
  matplotlib; UserError if the file cannot be written.
  """
  try:
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: Agg, no window
  except ImportError:
    return False
  with matplotlib.rc_context(_STYLE):
    figure = Figure(figsize=size, dpi=100, layout='constrained')
    plot(figure)
    with files.writing(f'{path}'), files.replacing(path) as f:
      figure.savefig(f, format='png')
  return True


def lines(
  axes: Any, series: Mapping[str, tuple[Sequence, Sequence]], marker: str = 'o'
) -> None:
  """Lines of {label: (x, y)}, with a legend."""
  for i, (label, (x, y)) in enumerate(series.items()):
    colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % 3]
    axes.plot(x, y, style, marker=marker, color=colour, label=label)
  axes.margins(x=0.02)
  axes.figure.legend(loc='outside right upper', frameon=False)


def lengths_axis(axes: Any, ticks: Sequence[int], name: str) -> None:
  """A logarithmic x axis whose ticks are numbers of tokens."""
  axes.set_xscale('log', base=2)
  axes.set_xticks(ticks, [f'{n:,}' for n in ticks])
  axes.minorticks_off()
  axes.set_xlabel(name)
