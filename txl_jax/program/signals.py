"""Ctrl-C, the standard streams, and the end of a program.

A program calls `begin` before its other imports, which take a second. Until
then Python answers Ctrl-C with a traceback, so this file imports little.
"""

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator

TYPE_CHECKING = False  # `typing` takes as long to import as all of the above
if TYPE_CHECKING:
  from typing import Any, NoReturn

_unwinding: list[bool] = []
_on_leave: list[Callable[[], None]] = []


def catch() -> None:
  """Makes Ctrl-C end the program with a line, unless it is ignored."""
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, interrupt)
    # A Ctrl-C while the interpreter exits would print a traceback.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def begin() -> None:
  """Prepares Ctrl-C, the standard streams and garbage collection.

  Text that cannot be written to standard error is dropped. If standard output
  is closed, the program ends with a one-line error. Characters that an encoding
  lacks are written as escapes.
  """
  catch()
  # A file opened later must not get the descriptor of a closed stream.
  while os.open(os.devnull, os.O_RDWR) < 2:
    pass
  # Tracing makes millions of objects, few of them garbage: with the default
  # threshold, collection took a fifth of the time until the first step.
  gc.set_threshold(100_000)
  stderr: Any = io.BufferedWriter(_Stream(2))
  sys.stderr = io.TextIOWrapper(
    stderr,
    getattr(sys.stderr, 'encoding', 'utf-8'),
    errors='backslashreplace',
    line_buffering=True,
  )
  out: Any = sys.stdout
  if out is None:
    print('error: standard output is closed; add >FILE', file=sys.stderr)
    sys.exit(1)
  stdout: Any = _Stream(1, 'standard output')
  if not out.write_through:  # it is with python -u
    stdout = io.BufferedWriter(stdout)
  sys.stdout = io.TextIOWrapper(
    stdout,
    out.encoding,
    errors='backslashreplace',
    line_buffering=out.line_buffering,
    write_through=out.write_through,
  )


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
  """Lets Ctrl-C raise KeyboardInterrupt in the block, so contexts clean up."""
  _unwinding.append(True)
  try:
    yield
  finally:
    _unwinding.clear()


def on_leave(function: Callable[[], None]) -> None:
  """Registers the function that `clear` calls, instead of any earlier one."""
  _on_leave[:] = [function]


def clear() -> None:
  """Removes progress lines from the terminal, before the last message."""
  for function in _on_leave:
    with contextlib.suppress(Exception):
      function()


def interrupt(*_: object) -> None:
  """Ends the program with a line and status 130; the handler of SIGINT.

  Libraries swallow a KeyboardInterrupt that is raised in them, or crash.
  """
  if _unwinding:
    _unwinding.clear()
    raise KeyboardInterrupt
  try:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    clear()
    # A terminal has shown ^C, perhaps after an open line.
    os.write(2, b'\ninterrupted\n' if os.isatty(2) else b'interrupted\n')
    sys.stdout.flush()  # may wait for its reader, until a second Ctrl-C
  finally:
    os._exit(130)


def end(status: int) -> 'NoReturn':
  """Exits at once after the last line, without waiting for threads."""
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os._exit(status)


class _Stream(io.FileIO):
  """A standard stream; only a named one raises its first write error.

  Other failed writes are dropped, as they would fail again at exit.
  """

  def __init__(self, descriptor: int, name: str = ''):
    super().__init__(descriptor, 'w', closefd=False)
    self._unfailed = name

  def write(self, data):
    try:
      return super().write(data)
    except OSError as e:
      if not self._unfailed:
        return len(data)
      e.filename, self._unfailed = self._unfailed, ''
      raise
