"""The last word of a process that cannot have it itself.

A process that is killed, or aborted by the runtime, leaves a trace of the
runtime as its last line, or none. A small second process reads what it is told
through a pipe; when the pipe ends it writes the last line it has read.
"""

import contextlib
import os
import subprocess
import sys

_PROGRAM = """
import sys
last = b''
for line in sys.stdin.buffer:
  last = line
if last.strip():
  sys.stderr.buffer.write(last)
"""


class Witness:
  """Writes the line it was told last when this process has ended."""

  def __init__(self):
    """Starts it; signals for a whole group of processes do not reach it."""
    self._process = subprocess.Popen(
      [sys.executable, '-I', '-S', '-c', _PROGRAM],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      start_new_session=True,
    )
    assert self._process.stdin
    self._pipe = self._process.stdin.fileno()
    os.set_blocking(self._pipe, False)

  def tell(self, line):
    """Replaces the line; '' is none. Never waits: a full pipe skips it."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
      os.write(self._pipe, line.encode() + b'\n')
