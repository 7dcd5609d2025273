"""A program and its terminal: Ctrl-C, and the standard streams.

`begin` comes before the imports of a program, which take a second: so this file
imports little.
"""

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_unwinding: list[bool] = []
_on_leave: list[Callable[[], None]] = []


def begin() -> None:
  """Makes Ctrl-C end the program, its streams safe to use, and it start sooner.

  What cannot be written to standard error is dropped, for it is only for
  people; standard output must be open, or this ends the program with a line. A
  character that an encoding lacks is written as its number.
  """
  # A file that is opened later must not get the number of a closed stream.
  while os.open(os.devnull, os.O_RDWR) < 2:
    pass
  # Tracing makes millions of objects, and few of them are garbage: looking for
  # it as often as Python does took a fifth of the time until the first step.
  gc.set_threshold(100_000)
  errors: Any = dict(errors='backslashreplace')
  raw: Any = io.BufferedWriter(_Stream(2))
  encoding = getattr(sys.stderr, 'encoding', 'utf-8')
  sys.stderr = io.TextIOWrapper(raw, encoding, **errors, line_buffering=True)
  out: Any = sys.stdout
  if out is None:
    print(
      'error: standard output is closed; type >FILE',
      file=sys.stderr,
    )
    sys.exit(1)
  errors |= {k: getattr(out, k) for k in ('line_buffering', 'write_through')}
  raw = _Stream(1, 'standard output')
  raw = raw if out.write_through else io.BufferedWriter(raw)  # as python -u
  sys.stdout = io.TextIOWrapper(raw, out.encoding, **errors)
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, interrupt)
    # The interpreter would die of one that comes when all is done.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
  """Where Ctrl-C first leaves every context, to clean up: KeyboardInterrupt."""
  _unwinding.append(True)
  try:
    yield
  finally:
    _unwinding.clear()


def on_leave(function: Callable[[], None]) -> None:
  """Registers what `clear` calls; only the last one counts."""
  _on_leave[:] = [function]


def clear() -> None:
  """Takes what is being drawn off the terminal, before the last words."""
  for function in _on_leave:
    with contextlib.suppress(Exception):
      function()


def interrupt(*_: Any) -> None:
  """Ends the program, with a line and status 130; a handler of SIGINT.

  Libraries swallow a KeyboardInterrupt that is raised within them, or crash.
  """
  if _unwinding:
    _unwinding.clear()
    raise KeyboardInterrupt
  try:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    clear()
    # A terminal has shown ^C, perhaps after an open line.
    os.write(2, b'\ninterrupted\n' if os.isatty(2) else b'interrupted\n')
    sys.stdout.flush()  # it may wait for who reads it, until a second Ctrl-C
  finally:
    os._exit(130)


def end(status: int) -> NoReturn:
  """Ends the program after its last line, whatever threads still do or say."""
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os._exit(status)


class _Stream(io.FileIO):
  """A stream whose first error names it, if it has a name.

  Later text is dropped, or the interpreter would fail once more when it ends.
  """

  def __init__(self, number: int, name: str = ''):
    super().__init__(number, 'w', closefd=False)
    self._unfailed = name

  def write(self, data):
    try:
      return super().write(data)
    except OSError as e:
      if not self._unfailed:
        return len(data)
      e.filename, self._unfailed = self._unfailed, ''
      raise
