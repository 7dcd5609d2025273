"""What a terminal shows while the program works: a line for each phase.

The lines are drawn by rich, below whatever is printed meanwhile, and disappear
when their phase is over. No line is longer than the terminal is wide: the parts
of a line come in order of importance, and the last are left out first.

The columns of rich.progress know no order: of a line of training in 40 columns
it left '… step… 4.4166 bpc  1,687 tokens/s  lr…', without the name and the time
left (15.0.0).
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import rich.console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_GAP = '  '  # between two parts of a line
_BAR = 10, 40  # fewest and most columns of a bar
_PER_SECOND = 4  # how often the lines are drawn
_BLOCKS = '▁▂▃▄▅▆▇█'
_OTHER = '\N{REPLACEMENT CHARACTER}'
_WIDEST = 100  # most columns of a frame
_SPARKS = 24  # most columns of a curve


def is_terminal() -> bool:
  """Whether standard error is a terminal that can move its cursor."""
  # Colours may be forced upon a pipe, but not lines that are redrawn.
  dumb = os.environ.get('TERM', '').lower() in ('dumb', 'unknown')
  return sys.stderr.isatty() and not dumb


def duration(seconds: float) -> str:
  """Seconds as people read them: 45s, 12m05s, 3h20m, 2d04h."""
  s = int(max(seconds, 0))
  if s < 60:
    return f'{s}s'
  if s < 3600:
    return f'{s // 60}m{s % 60:02d}s'
  if s < 86400:
    return f'{s // 3600}h{s % 3600 // 60:02d}m'
  return f'{s // 86400}d{s % 86400 // 3600:02d}h'


def fit(parts: Iterable[str | Text], width: int) -> Text:
  """The first parts that fit in a line of that width; the first may be cut."""
  line = Text(no_wrap=True, end='')
  for part in parts:
    before = Text(_GAP) if line else Text()
    longer = Text.assemble(line, before, part, no_wrap=True, end='')
    if longer.cell_len > width:
      if not line:
        longer.truncate(width, overflow='ellipsis')
        return longer
      break
    line = longer
  return line


def curve(values: Sequence[float], width: int = _SPARKS) -> Text:
  """Figures as a line of blocks, with the lowest, the best, highlighted.

  With more figures than columns, each column shows the best of several.
  """
  n = min(len(values), width)
  cuts = [len(values) * i // n for i in range(n + 1)] if n else []
  columns = [min(values[a:b]) for a, b in itertools.pairwise(cuts)]
  line = Text()
  for x in columns:
    low, high = min(columns), max(columns)
    height = (x - low) / (high - low) if high > low else 0.0
    block = _BLOCKS[round(height * (len(_BLOCKS) - 1))]
    line.append(block, 'bold green' if x == low else 'cyan')
  return line


class Phase:
  """What the program is doing: its name, how far it is, and other figures."""

  def __init__(self, name: str, total: int = 0, form: str = ''):
    """The form words how far it is, as in '{:,} of {:,} tokens'."""
    self.name, self.total, self._form = name, total, form
    self.done = 0
    self.parts: tuple[str, ...] = ()
    self.left: Callable[[], float | None] = self._left
    self._begin = time.monotonic()
    self._reports: list[tuple[float, int]] = []  # the first and the last one

  def reach(self, done: int) -> None:
    """Notes how far it is."""
    self._reports[1:] = [(time.monotonic(), done)]
    self.done = done

  def count(self) -> str:
    """How far it is, in words; '' if that is not known."""
    return self._form.format(self.done, self.total) if self._form else ''

  def whole(self) -> float | None:
    """Seconds for all of it at the rate since the first report, if known.

    The time before that is mostly compilation.
    """
    if len(self._reports) < 2:
      return None
    (begin, first), (end, last) = self._reports
    return (end - begin) / (last - first) * self.total if last > first else None

  def _left(self):
    """Seconds left; they count down between reports."""
    whole = self.whole()
    if not whole:
      return None
    end, last = self._reports[-1]
    rest = whole * (1 - last / self.total)
    return max(rest - (time.monotonic() - end), 0.0)

  def line(self, width: int) -> Text:
    """Its line, without the part that shows that it is alive."""
    left, passed = self.left(), time.monotonic() - self._begin
    when = f'{duration(passed)}' if left is None else f'{duration(left)} left'
    count = [self.count()] if self.done else []
    name = Text(self.name, 'bold')
    return fit([name, Text(when, 'cyan'), *count, *self.parts], width)


class _Row:
  """The line of a phase with a spinner, and a bar if there is room."""

  def __init__(self, phase: Phase, spinner: Spinner):
    self._phase, self._spinner = phase, spinner

  def __rich_console__(self, console, options):
    sign = cast(Text, self._spinner.render(console.get_time()))
    # Some terminals already wrap in the last column.
    width, phase = options.max_width - 1, self._phase
    line = Text.assemble(sign, ' ', phase.line(width - 2), end='')
    room = min(width - line.cell_len - len(_GAP), _BAR[1])
    yield line
    if phase.total and room >= _BAR[0]:
      yield Text(_GAP, end='')
      yield ProgressBar(phase.total, phase.done, width=room)
    yield Text('')


class _Console(rich.console.Console):
  """Never hides the cursor: a killed process could not show it again."""

  def show_cursor(self, show: bool = True) -> bool:
    """Does nothing."""
    del show
    return False


class Screen:
  """The lines of the open phases, outer ones first."""

  def __init__(self, console: rich.console.Console | None = None):
    """Draws on standard error unless a console is given."""
    self.console = console or _Console(
      stderr=True,
      force_terminal=True,
      force_jupyter=False,
      markup=False,
      emoji=False,
      highlight=False,
    )
    simple = not self.console.encoding.lower().startswith('utf')
    self.simple = simple  # the terminal may lack all but ASCII
    self._spinner = Spinner('line' if simple else 'dots')
    self._open: list[Phase] = []
    self._live: Live | None = None

  def _render(self):
    rows = [_Row(phase, self._spinner) for phase in [*self._open]]
    return rich.console.Group(*rows)

  def push(self, phase: Phase) -> None:
    """Shows the line of one more phase."""
    self._open.append(phase)
    if self._live:
      self._live.refresh()
      return
    self._live = Live(
      get_renderable=self._render,
      console=self.console,
      transient=True,
      redirect_stdout=False,  # the product, which may go elsewhere
      vertical_overflow='crop',
      refresh_per_second=_PER_SECOND,
    )
    self._live.start(refresh=True)

  def pop(self, phase: Phase) -> None:
    """Removes the line of a phase and of those within it."""
    if phase in self._open:
      del self._open[self._open.index(phase) :]
    if not self._open:
      self.close()

  def close(self) -> None:
    """Removes all lines."""
    self._open.clear()
    live, self._live = self._live, None
    if live:
      live.stop()

  def say(self, text: str) -> None:
    """Prints a line that stays, wrapped if it is too long."""
    self.console.print(Text(text), soft_wrap=True)

  def row(self, parts: Iterable[str | Text]) -> None:
    """Prints a line that stays, of the parts that fit."""
    self.console.print(fit(parts, self.console.width - 1))

  def frame(self, title: str, text: str) -> None:
    """Prints a text in a frame; control characters are shown as symbols."""
    clean = ''.join(
      c if c.isprintable() or c == '\n' else _OTHER for c in text.expandtabs(4)
    )
    if self.simple:
      clean = clean.encode('ascii', 'replace').decode()
    body, width = Text(clean), min(self.console.width, _WIDEST)
    self.console.print(
      Panel(body, title=title, title_align='left', width=width)
    )

  def table(self, rows: Mapping[str, Sequence[str]]) -> None:
    """Prints names and what they are, a line each, of the parts that fit."""
    grid = Table.grid(padding=(0, 2))
    names = max(map(len, rows))
    for name, parts in rows.items():
      value = fit(parts, max(self.console.width - names - 3, 1))
      grid.add_row(Text(name, 'bold cyan', no_wrap=True), value)
    self.console.print(grid)
