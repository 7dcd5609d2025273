"""Stopping and failing of the processes of a run, all together.

A signal at one stops all at the same step. An error of one ends all, and the
last line of each names it. A process that is killed, or paused for longer than
`watch.lost_seconds`, is found by the heartbeats of jax.distributed, which ends
the others and names it by its number.

jax knows nothing of an exception: of two processes on CPUs (jax 0.10.2), one
still waited in a collective 45 s after the other had raised. Nor does its
reached_preemption_sync_point know Ctrl-C, SIGHUP or a process on its own.
"""

import contextlib
import dataclasses
import signal
import threading
import time
import traceback
from collections.abc import Iterator

from txl_jax.parallel import placement, processes
from txl_jax.program import terminal
from txl_jax.program.errors import UserError, first_line
from txl_jax.program.settings import ON_RESUME, key


@dataclasses.dataclass(frozen=True)
class Watching:
  """The section `watch` of a config."""

  MAY_CHANGE = ON_RESUME

  lost_seconds: float = key(
    45.0,
    'Seconds without a sign of life until a process counts as lost and the '
    'others end; a host that is moved or suspended may be away this long.',
    at_least=5,
    at_most=1_000_000,
  )


_PAUSE = 1.0  # seconds between two looks whether another process has failed
_MORE = 10.0  # seconds after `lost_seconds` in which jax ends a process
_LEAVE = 5.0  # seconds that a failed process waits for the others to read why
_FAILED = 'txl_jax/failed'  # key of the store: why all leave


class Stopped(Exception):
  """Training was asked to stop by `signal` and has saved its state."""

  def __init__(self, number: int, step: int):
    self.signal = number
    when = f'at step {step}, which is saved; the same command continues'
    when = when if step else 'before the first step'
    super().__init__(f'stopped by {signal.Signals(number).name} {when}')


class Watch:
  """Ends this process with the others while this context is open.

  An error that leaves the context ends the process, if there are others: they
  are told, and standard error ends with the line that names the cause.
  """

  def __init__(self, lost_seconds: float = 45.0, program: bool = True):
    """For the limit that `processes.start` was given.

    If this process is no program of ours, as a notebook, only Ctrl-C asks to
    stop, and a second one is a KeyboardInterrupt.
    """
    self._program = program
    self.step = 0  # steps made so far
    self._lost_seconds = lost_seconds
    self._count, self._here = processes.count(), processes.name()
    self._asked = 0  # the signal this process has got
    self._highest = 0  # signal of all, when `stopping` was called last
    self._done = threading.Event()
    self._listening = threading.Thread(target=self._listen, daemon=True)

  def __enter__(self) -> 'Watch':
    if self._count > 1:
      self._listening.start()
    return self

  def __exit__(self, kind, error, _):
    if self._count > 1 and error and not isinstance(error, Stopped):
      self._fail(error)
    self._done.set()
    if self._listening.ident:
      self._listening.join()

  @contextlib.contextmanager
  def signals(self) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask to stop; a second Ctrl-C ends at once.

    Stopped at the end, where one came too late for the last step. Threads get
    no signals.
    """
    again = terminal.interrupt if self._program else signal.default_int_handler

    def ask(number, _):
      self._asked = self._asked or number
      if number == signal.SIGINT:
        signal.signal(number, again)

    numbers = [signal.SIGINT]
    if threading.current_thread() is not threading.main_thread():
      numbers = []
    elif self._program:
      numbers.append(signal.SIGTERM)
      if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup does
        numbers.append(signal.SIGHUP)
    before = {n: signal.signal(n, ask) for n in numbers}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
    # What one is told now, all know the second time.
    if number := self.stopping() or self.stopping():
      raise Stopped(number, self.step)

  def stopping(self) -> int:
    """Number of the signal that all processes stop for now; 0 for none.

    All ask at the same places. What several are told is what they could know
    when they asked before: nobody waits for the others.
    """
    if self._count == 1:
      return self._asked
    highest, self._highest = self._highest, placement.highest(self._asked)
    return int(highest)

  def _listen(self):
    """Ends this process once another one has failed; in a thread."""
    while not self._done.wait(_PAUSE):
      with contextlib.suppress(RuntimeError):  # none has, or the store fails
        why = processes.store().key_value_try_get(_FAILED)
        if not why.startswith(self._here):
          self._leave(why)

  def _fail(self, error):
    """Ends all processes for an error of this one."""
    if isinstance(error, KeyboardInterrupt):
      terminal.interrupt()
    expected = isinstance(error, UserError | OSError)
    if not expected:
      with contextlib.suppress(OSError):
        traceback.print_exception(error)
    cause = error.__cause__ if expected else error
    if cause and not isinstance(cause, OSError):
      # The loss of another process may have caused it: jax, which names that
      # one, then ends this one in the meantime.
      time.sleep(self._lost_seconds + _MORE)
    self._leave(f'{self._here}, step {self.step}: {first_line(error)}')

  def _leave(self, why):
    """Tells the others, then ends this process with a last line."""
    line = self._tell(why)
    if not line.startswith(self._here):
      line += f'; {self._here} ends at step {self.step}'
    processes.leave(f'error: {line}')

  def _tell(self, why):
    """Tells all why they end, and returns what was told first."""
    store = processes.store()
    with contextlib.suppress(RuntimeError):  # another one has told before
      store.key_value_set(_FAILED, why)
    with contextlib.suppress(RuntimeError):  # the store has ended
      why = store.key_value_try_get(_FAILED)
      # It ends with process 0: that waits until all have read why.
      store.wait_at_barrier('txl_jax/leave', int(_LEAVE * 1000))
    return why
