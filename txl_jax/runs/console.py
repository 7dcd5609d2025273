"""Progress of a program, shown on standard error.

On a terminal each phase has a line that is redrawn while it lasts; see
`display`. Elsewhere, as in a file, each call writes a line, where rich.progress
writes nothing before it ends.
"""

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax.program import terminal
from txl_jax.runs import display
from txl_jax.runs.display import Phase, curve, duration

__all__ = ['TOKENS', 'Console', 'Phase', 'duration']

TOKENS = '{:,} of {:,} tokens'  # how much of a text has been read


class Console:
  """Shows nothing if it is silent, as in all processes but one."""

  def __init__(self, silent: bool = False):
    """Checks whether standard error is a terminal."""
    self._silent, self._last = silent, -math.inf
    self._screen: display.Screen | None = None
    if not silent and display.is_terminal():
      self._screen = display.Screen()
      terminal.on_leave(self.close)
    self._loose: Phase | None = None  # for `progress` outside a phase

  @property
  def live(self) -> bool:
    """Whether there is a terminal, on which lines are redrawn."""
    return self._screen is not None

  @contextlib.contextmanager
  def phase(
    self,
    name: str,
    total: int = 0,
    form: str = '',
    *,
    plain: str = '',
  ) -> Iterator[Phase]:
    """A phase of the program; its `reach` is told how much of a total is done.

    The form words that, as in '{:,} of {:,} tokens'. Without a terminal the
    line `plain`, if given, announces the phase.
    """
    phase = Phase(name, total, form)
    if self._screen:
      self._drop()
      self._screen.push(phase)
    elif plain:
      self._print(plain)
    try:
      yield phase
    finally:
      if self._screen:
        self._screen.pop(phase)

  def reach(self, phase: Phase, done: int, pause: float) -> None:
    """Shows how far a phase is; in a file, a line every `pause` seconds."""
    phase.reach(done)
    if not self._screen:
      self.progress(phase.count(), pause)

  def figures(self, phase: Phase, parts: Sequence[str], plain: str) -> None:
    """Shows figures of a phase, the important ones first, or the plain line."""
    phase.parts = tuple(parts)
    if not self._screen:
      self.progress(plain)

  def progress(self, text: str, pause: float = 0.0) -> None:
    """Shows where the program is, at most once in `pause` seconds."""
    if self._silent:
      return
    if self._screen:
      if self._loose is None:
        self._loose = Phase(text)
        self._screen.push(self._loose)
      self._loose.name = text
    elif time.monotonic() - self._last >= pause:
      self._last = time.monotonic()
      self._print(text)

  def say(self, text: str) -> None:
    """Shows a line that stays."""
    self._drop()
    if self._screen:
      self._screen.say(text)
    else:
      self._print(text)

  def plain(self, text: str) -> None:
    """Shows a line if there is no terminal."""
    if not self._screen:
      self._print(text)

  def table(self, rows: Mapping[str, Sequence[str]]) -> None:
    """Shows, on a terminal, what each name stands for, in parts."""
    if self._screen:
      self._screen.table(rows)

  def evaluated(
    self,
    parts: Sequence[str],
    figures: Sequence[float],
    plain: str,
  ) -> None:
    """Shows an evaluation and the figures so far, the lowest of which is best.

    The parts are for a terminal, the first of them before the curve.
    """
    if not self._screen:
      self._print(plain)
      return
    more: list[Any] = [] if self._screen.simple else [curve(figures)]
    self._screen.row([*parts[:1], *more, *parts[1:]])

  def sample(self, title: str, text: str) -> None:
    """Shows what a model has written; in one line if there is no terminal."""
    if self._screen:
      self._screen.frame(title, text)
    else:
      self._print(f'{title}: {text!r}')

  def close(self) -> None:
    """Removes what should not stay and restores standard error."""
    self._loose = None
    if self._screen:
      self._screen.close()

  def _drop(self):
    """Ends the line of `progress`."""
    if self._screen and self._loose:
      self._screen.pop(self._loose)
    self._loose = None

  def _print(self, text):
    if not self._silent:
      print(text, file=sys.stderr, flush=True)
