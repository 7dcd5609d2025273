"""Progress of a program, shown on standard error.

On a terminal rich draws a line for each phase, below whatever is printed
meanwhile, and erases it when the phase is over. No line is longer than the
terminal is wide: the parts of a line come in order of importance, and the last
are left out first. The columns of rich.progress know no order: of a line of
training in 40 columns it left '… step… 4.4166 bpc  1,687 tokens/s  lr…' with
15.0.0. Elsewhere, as in a file, each call writes a line.
"""

import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from txl_jax.program import terminal

TOKENS = '{:,} of {:,} tokens'  # how much of a text has been read
_GAP = '  '  # between two parts of a line
_BAR = 10, 40  # fewest and most columns of a bar
_PER_SECOND = 4  # how often the lines are drawn
_BLOCKS = '▁▂▃▄▅▆▇█'
_SPARKS = 24  # most columns of a curve


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
    self.parts: Sequence[str] = ()
    self._begin = time.monotonic()
    self._reports: list[tuple[float, int]] = []  # the first and the last one

  def reach(self, done: int) -> None:
    """Notes how far it is."""
    self._reports[1:] = [(time.monotonic(), done)]
    self.done = done

  def restart(self, done: int) -> None:
    """Forgets the rate so far, before something is compiled anew."""
    self._reports.clear()
    self.done = done

  def count(self) -> str:
    """Progress in words; '' if it is not known."""
    return self._form.format(self.done, self.total) if self._form else ''

  def left(self) -> float | None:
    """Seconds left at the rate since the first report, if known.

    The time before that is mostly compilation. They count down between reports.
    """
    if len(self._reports) < 2 or not self.total:
      return None
    (begin, first), (end, last) = self._reports
    if last <= first:
      return None
    rest = (end - begin) / (last - first) * (self.total - last)
    return max(rest - (time.monotonic() - end), 0.0)

  def line(self, width: int) -> Text:
    """Its line, without the part that shows that it is alive."""
    left, passed = self.left(), time.monotonic() - self._begin
    when = f'{duration(passed)}' if left is None else f'{duration(left)} left'
    count = [self.count()] if self.done else []
    name = Text(self.name, 'bold')
    return fit([name, Text(when, 'cyan'), *count, *self.parts], width)


class Row:
  """The line of a phase with a spinner, and a bar if there is room."""

  def __init__(self, phase: Phase, spinner: Spinner):
    """Rich draws it."""
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


class _Terminal(rich.console.Console):
  """Never hides the cursor: a killed process could not show it again."""

  def show_cursor(self, show: bool = True) -> bool:
    """Does nothing."""
    del show
    return False


def _terminal():
  """Standard error, if it is a terminal that can move its cursor."""
  # Colours may be forced upon a pipe, but not lines that are redrawn.
  dumb = os.environ.get('TERM', '').lower() in ('dumb', 'unknown')
  if dumb or not sys.stderr.isatty():
    return None
  return _Terminal(
    stderr=True,
    force_terminal=True,
    force_jupyter=False,
    markup=False,
    emoji=False,
    highlight=False,
  )


class Console:
  """Shows nothing if it is silent, as in all processes but one."""

  def __init__(self, silent: bool = False):
    """Checks whether standard error is a terminal."""
    self._silent, self._last = silent, -math.inf
    self._screen = None if silent else _terminal()
    self._simple = False  # the terminal may lack all but ASCII
    if self._screen:
      self._simple = not self._screen.encoding.lower().startswith('utf')
      terminal.on_leave(self.close)
    self._spinner = Spinner('line' if self._simple else 'dots')
    self._open: list[Phase] = []  # outer ones first
    self._live: Live | None = None
    self._loose: Phase | None = None  # for `progress` outside a phase

  @property
  def live(self) -> bool:
    """Whether there is a terminal, on which lines are redrawn."""
    return self._screen is not None

  @contextlib.contextmanager
  def phase(
    self, name: str, total: int = 0, form: str = '', *, plain: str = ''
  ) -> Iterator[Phase]:
    """A phase of the program; its `reach` is told how much of a total is done.

    The form words that, as in '{:,} of {:,} tokens'. Without a terminal the
    line `plain`, if given, announces the phase.
    """
    phase = Phase(name, total, form)
    if self._screen:
      self._drop()
      self._push(phase)
    elif plain:
      self._print(plain)
    try:
      yield phase
    finally:
      self._pop(phase)

  def reach(self, phase: Phase, done: int, pause: float) -> None:
    """Shows how far a phase is; in a file, a line every `pause` seconds."""
    phase.reach(done)
    if not self._screen:
      self.progress(phase.count(), pause)

  def figures(self, phase: Phase, parts: Sequence[str], plain: str) -> None:
    """Shows figures of a phase, the important ones first, or the plain line."""
    phase.parts = parts
    if not self._screen:
      self._print(plain)

  def progress(self, text: str, pause: float = 0.0) -> None:
    """Shows where the program is, at most once in `pause` seconds."""
    if self._screen:
      if self._loose is None:
        self._loose = Phase(text)
        self._push(self._loose)
      self._loose.name = text
    elif time.monotonic() - self._last >= pause:
      self._last = time.monotonic()
      self._print(text)

  def say(self, text: str) -> None:
    """Shows a line that stays, wrapped if it is too long."""
    self._drop()
    if self._screen:
      self._screen.print(Text(text), soft_wrap=True)
    else:
      self._print(text)

  def table(self, rows: Mapping[str, Sequence[str]]) -> None:
    """Shows names and what they are, on a terminal alone.

    Each is a line of the parts that fit.
    """
    if not self._screen:
      return
    grid = Table.grid(padding=(0, 2))
    names = max(map(len, rows))
    for name, parts in rows.items():
      value = fit(parts, max(self._screen.width - names - 3, 1))
      grid.add_row(Text(name, 'bold cyan', no_wrap=True), value)
    self._screen.print(grid)

  def evaluated(
    self, parts: Sequence[str], figures: Sequence[float], plain: str
  ) -> None:
    """Shows an evaluation and the figures so far, the lowest of which is best.

    The parts are for a terminal, the first of them before the curve.
    """
    if self._screen:
      more = [] if self._simple else [curve(figures)]
      line = fit([*parts[:1], *more, *parts[1:]], self._screen.width - 1)
      self._screen.print(line)
    else:
      self._print(plain)

  def close(self) -> None:
    """Removes what should not stay and restores standard error."""
    self._loose = None
    self._open.clear()
    live, self._live = self._live, None
    if live:
      live.stop()

  def _push(self, phase):
    """Shows the line of one more phase."""
    self._open.append(phase)
    if self._live:
      self._live.refresh()
      return
    self._live = Live(
      get_renderable=lambda: rich.console.Group(
        *(Row(phase, self._spinner) for phase in [*self._open])
      ),
      console=self._screen,
      transient=True,
      redirect_stdout=False,  # the product, which may go elsewhere
      vertical_overflow='crop',
      refresh_per_second=_PER_SECOND,
    )
    self._live.start(refresh=True)

  def _pop(self, phase):
    """Removes the line of a phase and of those within it."""
    if phase in self._open:
      del self._open[self._open.index(phase) :]
    if not self._open:
      self.close()

  def _drop(self):
    """Ends the line of `progress`."""
    if self._loose:
      self._pop(self._loose)
    self._loose = None

  def _print(self, text):
    if not self._silent:
      print(text, file=sys.stderr, flush=True)
