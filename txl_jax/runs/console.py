"""Progress of a program, shown on standard error.

On a terminal rich draws a line for each phase, below whatever is printed
meanwhile, and erases it when the phase is over. The parts of a line come in
order of importance, and it ends where the terminal does; the columns of
rich.progress know no order. Elsewhere, as in a file, each call writes a line.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence

import rich.console
from rich.console import Group
from rich.live import Live
from rich.text import Text

from txl_jax.program import terminal

TOKENS = '{:,} of {:,} tokens'  # how much of a text has been read
_GAP = '  '  # between two parts of a line
_PER_SECOND = 4  # how often the lines are drawn
_SPINNER = '-\\|/'  # the sign that the program is alive


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

  def line(self) -> str:
    """Its line, the important parts first."""
    now, left = time.monotonic(), self.left()
    sign = _SPINNER[int(now * _PER_SECOND) % len(_SPINNER)]
    when = duration(now - self._begin)
    if left is not None:
      when = f'{duration(left)} left'
    count = [self.count()] if self.done else []
    return _GAP.join([f'{sign} {self.name}', when, *count, *self.parts])


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
    if self._screen:
      terminal.on_leave(self.close)
    self._open: list[Phase] = []  # outer ones first
    self._live: Live | None = None

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
    self._open.append(phase)
    if self._screen:
      self._draw()
    elif plain:
      self.say(plain)
    try:
      yield phase
    finally:
      if phase in self._open:
        del self._open[self._open.index(phase) :]
      if not self._open:
        self.close()

  def _draw(self):
    if not self._live:
      self._live = Live(
        get_renderable=self._lines,
        console=self._screen,
        transient=True,
        redirect_stdout=False,  # the product, which may go elsewhere
        vertical_overflow='crop',
        refresh_per_second=_PER_SECOND,
      )
      self._live.start()
    self._live.refresh()

  def _lines(self):
    """The lines of the phases; some terminals wrap in the last column."""
    width = self._screen.width - 1 if self._screen else 0
    lines = [Text(phase.line()) for phase in self._open]
    for line in lines:
      line.truncate(width, overflow='ellipsis')
    return Group(*lines)

  def reach(self, phase: Phase, done: int, pause: float) -> None:
    """Shows how far a phase is; in a file, a line every `pause` seconds."""
    phase.reach(done)
    if not self._screen:
      self.progress(phase.count(), pause)

  def figures(self, phase: Phase, parts: Sequence[str], at: str) -> None:
    """Shows figures of a phase, the important ones first; in a file, of what.

    It may have gone on since they were measured.
    """
    phase.parts = parts
    if not self._screen:
      self.say(_GAP.join([at, *parts]))

  def progress(self, text: str, pause: float = 0.0) -> None:
    """Shows where the program is, at most once in `pause` seconds."""
    if time.monotonic() - self._last >= pause:
      self._last = time.monotonic()
      self.say(text)

  def say(self, text: str) -> None:
    """Shows a line that stays, wrapped if it is too long."""
    if self._screen:
      self._screen.print(Text(text), soft_wrap=True)
    elif not self._silent:
      print(text, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Removes what should not stay and restores standard error."""
    self._open.clear()
    live, self._live = self._live, None
    if live:
      live.stop()
