"""A program and its terminal: Ctrl-C, and the standard streams.

`begin` comes before the imports of a program, which take a second: so this file
imports little.
"""

import atexit
import contextlib
import functools
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from txl_jax.program.errors import UserError

_PATIENCE = 1.0  # seconds that the last words wait for who reads them

_before_end: list[Callable[[], None]] = []
_on_leave: list[Callable[[], None]] = []


def begin() -> None:
  """Makes Ctrl-C end the program, its streams safe to use, and it start sooner.

  What cannot be written to standard error is dropped, for it is only for
  people. Standard output is the product: where that cannot be written is a
  UserError. A character that an encoding lacks is written as its number.
  """
  # Tracing makes millions of objects, and few of them are garbage: looking for
  # it as often as Python does took a fifth of the time until the first step.
  gc.set_threshold(100_000)
  # The next file that is opened would get the number of a closed stream.
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
  sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
  sys.stdout, sys.stderr = _text(1, sys.stdout), _text(2, sys.stderr)
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, interrupt)
    # The interpreter would die of one that comes when all is done.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def before_end(function: Callable[[], None]) -> Iterator[None]:
  """Calls a function, once at most, when Ctrl-C is to end the program.

  It may raise KeyboardInterrupt, to come back after the cleaning up.
  """
  _before_end.append(function)
  try:
    yield
  finally:
    with contextlib.suppress(ValueError):
      _before_end.remove(function)


def on_leave(function: Callable[[], None]) -> None:
  """Registers what `clear` calls; only the last one counts."""
  _on_leave[:] = [function]


def clear() -> None:
  """Takes what is being drawn off the terminal, before the last words."""
  for function in _on_leave:
    with contextlib.suppress(Exception):
      function()


def unwind() -> None:
  """Leaves every context before the end; for `before_end`."""
  raise KeyboardInterrupt


def interrupt(*_) -> None:
  """Ends the program, with a line and status 130; a handler of SIGINT.

  Libraries swallow a KeyboardInterrupt that is raised within them, or crash.
  """
  while _before_end:
    _before_end.pop()()
  try:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE, _PATIENCE)
    # A terminal has shown ^C, perhaps after an open line.
    line = b'\ninterrupted\n' if os.isatty(2) else b'interrupted\n'
    last = functools.partial(os.write, 2, line)
    for write in (clear, sys.stdout.flush, last):
      with contextlib.suppress(Exception):
        write()
  finally:
    os._exit(130)


def end(status: int) -> NoReturn:
  """Ends the program after its last line, whatever threads still do or say."""
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os._exit(status)


def _give_up(*_):
  raise TimeoutError


def _text(number, old):
  """A stream as Python makes it, on a file of our own."""
  raw = _Stream(number, 'w', closefd=False)
  unbuffered = getattr(old, 'write_through', False)  # python -u
  return io.TextIOWrapper(
    io.BufferedWriter(raw),
    encoding=old.encoding if old else 'utf-8',
    errors='backslashreplace',
    line_buffering=number == 2 or raw.isatty() or unbuffered,
  )


class _Stream(io.FileIO):
  """Standard error, or output, which fails once; what follows is dropped.

  Or the interpreter would fail once more, when it ends.
  """

  failed = False

  def write(self, data):
    try:
      return len(data) if self.failed else super().write(data)
    except OSError as e:
      if self.fileno() == 2:
        return len(data)
      self.failed = True
      if isinstance(e, BrokenPipeError):
        raise  # it has been read as far as anybody wants
      line = f'standard output cannot be written: {e.strerror}'
      raise UserError(line) from e
