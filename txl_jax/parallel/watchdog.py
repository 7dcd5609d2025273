"""Stops all processes of a run together, after a signal or an error.

A signal to one process stops all at the same step. An error in one process ends
all, and each prints it as its last line. If a process is killed, or paused for
longer than `watch.lost_seconds`, its heartbeats to jax.distributed stop; jax
then ends the others and names its index.

jax does not notice exceptions: of two processes on CPUs (jax 0.10.2), one still
waited in a collective 45 s after the other had raised. Nor does its
reached_preemption_sync_point handle Ctrl-C, SIGHUP or a single process.
"""

import contextlib
import dataclasses
import signal
import threading
import time
import traceback
from collections.abc import Iterator

from txl_jax.parallel import placement, processes
from txl_jax.program import signals
from txl_jax.program.errors import UserError, first_line
from txl_jax.program.settings import ON_RESUME, key


@dataclasses.dataclass(frozen=True)
class WatchConfig:
  """The section `watch` of a config."""

  MAY_CHANGE = ON_RESUME

  lost_seconds: float = key(
    45.0,
    'Seconds for which a process may be paused, as when its host is migrated. '
    'The others end if it is silent for longer, after twice as long at most.',
    at_least=5,
    at_most=1_000_000,
  )


_PAUSE = 1.0  # seconds between checks for the failure of another process
_MORE = 10.0  # seconds, after twice `lost_seconds`, for jax to end a process
_LEAVE = 5000  # ms for the other processes to read the error of this one
_FAILED = 'txl_jax/failed'  # key in the store: the error that ends all


class Stopped(Exception):
  """Training was asked to stop by `signal` and has saved its state."""

  def __init__(self, number: int, step: int):
    self.signal = number
    when = f'at step {step}, which is saved; the same command continues from it'
    when = when if step else 'before the first step'
    super().__init__(f'stopped by {signal.Signals(number).name} {when}')


class Watch:
  """Context in which all processes end together.

  With several processes, an error that leaves the context ends all of them, and
  the last line on standard error names its cause.
  """

  def __init__(
    self, lost_seconds: float = WatchConfig.lost_seconds, program: bool = True
  ):
    """`lost_seconds` must equal that of `processes.start`.

    With program=False, as in a notebook, only Ctrl-C requests a stop, and a
    second one raises KeyboardInterrupt.
    """
    self._program = program
    self.step = 0  # steps done so far
    self._lost_seconds = lost_seconds
    self._count = processes.count()
    self._here = processes.name()
    self._received = 0  # first signal that this process received, or 0
    self._highest = 0  # maximum over processes at the last `stopping`
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
    """SIGINT, SIGTERM and SIGHUP request a stop; a second Ctrl-C exits at once.

    On exit, raises Stopped for a signal that arrived after the last check.
    Outside the main thread, signals are not handled.
    """
    second = signals.interrupt if self._program else signal.default_int_handler

    def receive(number, _):
      self._received = self._received or number
      if number == signal.SIGINT:
        signal.signal(number, second)

    numbers = [signal.SIGINT]
    if threading.current_thread() is not threading.main_thread():
      numbers = []
    elif self._program:
      numbers.append(signal.SIGTERM)
      if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup does
        numbers.append(signal.SIGHUP)
    before = {n: signal.signal(n, receive) for n in numbers}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
    # All processes know the signals received so far at the second call.
    if number := self.stopping() or self.stopping():
      raise Stopped(number, self.step)

  def stopping(self) -> int:
    """The signal that all processes must act on now; 0 for none.

    All processes call it at the same points. With several, the result is the
    maximum over their signals at the previous call, so none has to wait.
    """
    if self._count == 1:
      return self._received
    highest = self._highest
    self._highest = placement.max_over_processes(self._received)
    return int(highest)

  def _listen(self):
    """Ends this process if another one fails; runs in a thread."""
    while not self._done.wait(_PAUSE):
      with contextlib.suppress(RuntimeError):  # no failure, or no store
        why = processes.store().key_value_try_get(_FAILED)
        if not why.startswith(self._here):
          self._leave(why)

  def _fail(self, error):
    """Ends all processes after an error in this one."""
    if isinstance(error, KeyboardInterrupt):
      signals.interrupt()
    expected = isinstance(error, UserError | OSError)
    if not expected:
      with contextlib.suppress(OSError):
        traceback.print_exception(error)
    cause = error.__cause__ if expected else error
    if cause and not isinstance(cause, OSError):
      # If another process is lost, jax names it and ends this one meanwhile.
      time.sleep(2 * self._lost_seconds + _MORE)
    self._leave(f'{self._here}, step {self.step}: {first_line(error)}')

  def _leave(self, why):
    """Publishes the error, then ends this process with an error line."""
    line = self._publish(why)
    if not line.startswith(self._here):
      line += f'; {self._here} ends at step {self.step}'
    processes.leave(f'error: {line}')

  def _publish(self, why):
    """Publishes an error to all processes; returns the first one published."""
    store = processes.store()
    with contextlib.suppress(RuntimeError):  # another process was first
      store.key_value_set(_FAILED, why)
    with contextlib.suppress(RuntimeError):  # the store has ended
      why = store.key_value_try_get(_FAILED)
      # The store ends with process 0, which therefore waits for the others.
      store.wait_at_barrier('txl_jax/leave', _LEAVE)
    return why
