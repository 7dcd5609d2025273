"""Progress output of a program on standard error.

On a terminal, rich draws one line per phase below all other output, and erases
it at the end of the phase. The parts of a line are ordered by importance and
truncated at the terminal's width, which the columns of rich.progress cannot do.
If standard error is not a terminal, it prints plain lines.
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

from txl_jax.program import signals

TOKENS = '{:,} of {:,} tokens'  # a `form` for phases that read a text
_GAP = '  '  # between two parts of a line
_PER_SECOND = 4  # refresh rate
_SPINNER = '-\\|/'  # shows that the program is alive


def duration(seconds: float) -> str:
  """Formats seconds: 45s, 12m05s, 3h20m, 2d04h."""
  s = int(max(seconds, 0))
  if s < 60:
    return f'{s}s'
  if s < 3600:
    return f'{s // 60}m{s % 60:02d}s'
  if s < 86400:
    return f'{s // 3600}h{s % 3600 // 60:02d}m'
  return f'{s // 86400}d{s % 86400 // 3600:02d}h'


class Phase:
  """A phase of the program: its name, progress and other figures."""

  def __init__(self, name: str, total: int, form: str):
    """`form` formats the progress, such as '{:,} of {:,} tokens'."""
    self.name, self.total, self._form = name, total, form
    self.done = 0
    self.parts: Sequence[str] = ()
    self._begin = time.monotonic()
    self._reports: list[tuple[float, int]] = []  # (time, done), first and last

  def reach(self, done: int) -> None:
    """Updates the progress."""
    self._reports[1:] = [(time.monotonic(), done)]
    self.done = done

  def restart(self, done: int) -> None:
    """Resets the measured rate, before a compilation."""
    self._reports.clear()
    self.done = done

  def count(self) -> str:
    """Progress as text; '' without a form."""
    return self._form.format(self.done, self.total) if self._form else ''

  def left(self) -> float | None:
    """Seconds left at the rate since the first report; None if unknown.

    Earlier time is mostly compilation. Between reports the result counts down.
    """
    if len(self._reports) < 2 or not self.total:
      return None
    (begin, first), (end, last) = self._reports
    if last <= first:
      return None
    rest = (end - begin) / (last - first) * (self.total - last)
    return max(rest - (time.monotonic() - end), 0.0)

  def line(self) -> str:
    """Renders the phase as one line, most important parts first."""
    now = time.monotonic()
    left = self.left()
    sign = _SPINNER[int(now * _PER_SECOND) % len(_SPINNER)]
    when = duration(now - self._begin)
    if left is not None:
      when = f'{duration(left)} left'
    count = [self.count()] if self.done else []
    return _GAP.join([f'{sign} {self.name}', when, *count, *self.parts])


class _Terminal(rich.console.Console):
  """A console that never hides the cursor, which a kill would leave hidden."""

  def show_cursor(self, show: bool = True) -> bool:
    """Does nothing."""
    return False


def _terminal():
  """Standard error, if it is a terminal that can move its cursor, or None."""
  # Environment variables may force colours on a pipe, but not redrawn lines.
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
  """Terminal output of a program: progress, log lines and warnings."""

  def __init__(self, silent: bool = False):
    """A silent console, as on all processes but one, prints nothing."""
    self._silent = silent
    self._last = -math.inf
    self._screen = None if silent else _terminal()
    if self._screen:
      signals.on_leave(self.close)
    self._open: list[Phase] = []  # outer ones first
    self._live: Live | None = None

  @property
  def live(self) -> bool:
    """Whether lines are redrawn on a terminal."""
    return self._screen is not None

  @contextlib.contextmanager
  def phase(
    self, name: str, total: int = 0, form: str = '', *, plain: str = ''
  ) -> Iterator[Phase]:
    """Context of a phase; call `reach` on it with the part of total done.

    `form` formats this progress, such as '{:,} of {:,} tokens'. Without a
    terminal, the line `plain`, if given, announces the phase.
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
        redirect_stdout=False,  # results, which may go to a file
        vertical_overflow='crop',
        refresh_per_second=_PER_SECOND,
      )
      self._live.start()
    self._live.refresh()

  def _lines(self):
    """The lines of the phases; some terminals wrap in the last column."""
    assert self._screen  # else nobody draws them
    width = self._screen.width - 1
    lines = [Text(phase.line()) for phase in self._open]
    for line in lines:
      line.truncate(width, overflow='ellipsis')
    return Group(*lines)

  def reach(self, phase: Phase, done: int, pause: float = 5.0) -> None:
    """Updates a phase; without a terminal, prints it every `pause` seconds."""
    phase.reach(done)
    if not self._screen:
      self.progress(phase.count(), pause)

  def figures(self, phase: Phase, parts: Sequence[str], at: str) -> None:
    """Shows the figures of a phase, most important first.

    Without a terminal, prints them in a line that begins with `at`, the
    progress at their measurement, which may be in the past.
    """
    phase.parts = parts
    if not self._screen:
      self.say(_GAP.join([at, *parts]))

  def progress(self, text: str, pause: float = 0.0) -> None:
    """Prints a line of progress, at most once every `pause` seconds."""
    if time.monotonic() - self._last >= pause:
      self._last = time.monotonic()
      self.say(text)

  def say(self, text: str) -> None:
    """Prints a permanent line."""
    if self._screen:
      self._screen.print(Text(text), soft_wrap=True)
    elif not self._silent:
      print(text, file=sys.stderr)

  def close(self) -> None:
    """Erases the lines of open phases and restores standard error."""
    self._open.clear()
    live, self._live = self._live, None
    if live:
      live.stop()
