"""What the terminal shows of a run."""

import shutil
import sys
import time


class Console:
  """Progress on standard error.

  On a terminal one line is rewritten in place; elsewhere each call is a line.
  """

  def __init__(self, silent: bool = False):
    """Shows nothing if it is silent, as in all processes but one."""
    self._silent, self._terminal = silent, sys.stderr.isatty()
    self._open, self._last = False, 0.0

  def progress(self, text: str, pause: float = 0.0) -> None:
    """Shows where the run is, unless it did `pause` seconds ago or less."""
    if self._silent or time.monotonic() - self._last < pause:
      return
    self._last = time.monotonic()
    if self._terminal:
      width = shutil.get_terminal_size().columns - 1
      print(f'\r{text[:width]:{width}}', end='', file=sys.stderr, flush=True)
      self._open = True
    else:
      print(text, file=sys.stderr, flush=True)

  def say(self, text: str) -> None:
    """Shows a line that stays."""
    if not self._silent:
      self.close()
      print(text, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Ends a line that is rewritten, so that what follows has its own."""
    if self._open:
      print(file=sys.stderr, flush=True)
      self._open = False


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
