"""What the processes of a run know of each other while it goes on.

A thread of each process tells the others once a second where it is, its beat,
and reads theirs. From the beats it knows

- that one of them was asked to stop: all agree on a step to stop at,
- that one has failed, or gives no sign any more: it ends its own process, which
  could wait for it for ever, with a last line that names the other one,
- that no step is made any more: process 0 says who is behind.

Time is measured by clocks that nobody sets (time.monotonic).
"""

import contextlib
import dataclasses
import json
import queue
import signal
import socket
import sys
import threading
import time
import traceback

from txl_jax.errors import UserError, first_line
from txl_jax.parallel import processes
from txl_jax.settings import ON_RESUME, key


@dataclasses.dataclass(frozen=True)
class Watching:
  """The section `watch` of a config."""

  lost_seconds: float = key(
    45.0,
    'Seconds without a sign until a process counts as lost and the others '
    'end; a host that is moved or suspended may be away for so long.',
    at_least=5,
    may_change=ON_RESUME,
  )
  stall_seconds: float = key(
    0.0,
    'Seconds without a step, not counting compilation, evaluation and saving, '
    'until a warning says which process and host is behind; 0 is off.',
    at_least=0,
    may_change=ON_RESUME,
  )


_BEAT = 1.0  # seconds
# Seconds without a beat. The runtime aborts, without saying who is lost, after
# half to all of processes._HEARTBEAT.
_LOST = 15.0
# After an error that a lost process would cause: seconds until it is named.
_SUSPECT = 4.0
_LEAVE = 3000  # ms that a failed process waits for the others to read why
_BEATS = 'txl_jax/beats/'
_TICKS = 'txl_jax/ticks/'

# Phases in which a step is expected, and how they are called.
READING, STEPPING = 'reads the batch of step', 'is in step'


class Stopped(Exception):
  """Training was asked to stop and has saved its state, after a step.

  Attributes:
    signal: number of the signal.
  """

  def __init__(self, number, step):
    name = signal.Signals(number).name
    super().__init__(
      f'stopped by {name} at step {step}, which is saved; the same command '
      'continues'
      if step
      else f'stopped by {name} before the first step'
    )
    self.signal = number


class Watch:
  """Beats while this context is open, and signals while `signals` is.

  An error that leaves the context ends the process, if there are others: they
  are told, and standard error ends with the line that names the cause.
  """

  def __init__(self, lost_seconds=45.0, stall_seconds=0.0):
    """Nothing runs yet.

    Args:
      lost_seconds: unused.
      stall_seconds: without a step until it is told who is behind; 0 is never.
    """
    del lost_seconds
    self._stall = stall_seconds
    self._me, self._count = processes.index(), processes.count()
    self._here = processes.name()
    self._step, self._phase = 0, 'starts'
    self._failed, self._done = '', False
    self._asked = 0  # the signal this process has got
    self._stop_at, self._signal, self._tick = None, 0, 0
    self._quiet_since = None  # when the store failed first
    self._lock = threading.Lock()
    self._ending = threading.Lock()
    self._wake = queue.SimpleQueue()  # signal handlers may put into it
    self._thread = threading.Thread(target=self._run, daemon=True)
    # {process: (when its beat changed last, the beat)}
    now = time.monotonic()
    self._seen = {p: (now, {}) for p in range(self._count)}
    self._moved, self._told = (now, ()), False

  def __enter__(self):
    self.at(0, 'starts')
    if self._count > 1 or self._stall:
      self._thread.start()
    return self

  def __exit__(self, kind, error, _):
    if self._count > 1 and error and not isinstance(error, Stopped):
      self._fail(error)
    if self._thread.ident:
      self._done = True
      self._wake.put(None)
      self._thread.join()
    processes.last_words('')

  def at(self, step, phase):
    """Notes where this process is.

    Args:
      step: steps made so far.
      phase: READING, STEPPING, or anything else, during which no step is due.
    """
    if self._count > 1 and (step != self._step or phase == 'starts'):
      processes.last_words(
        f'error: {self._here} went down at step {step}; the lines above say '
        'why; if they do not, process 0 or its host went before'
      )
    self._step, self._phase = step, phase

  # Stopping. A process counts how often it was asked whether to stop, which
  # is at the same places in all of them. When one of them has got a signal,
  # each tells its count and holds the next question until it knows all of
  # them: the highest plus one is where all stop.

  @contextlib.contextmanager
  def signals(self):
    """SIGINT and SIGTERM ask to stop while this context is open.

    A second Ctrl-C interrupts at once, which loses only the steps since the
    last checkpoint.
    """

    def ask(number, frame):
      del frame
      if self._asked and number == signal.SIGINT:
        raise KeyboardInterrupt
      self._asked = number
      self._wake.put(None)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, ask) for n in numbers}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def stopping(self):
    """Number of the signal that all processes stop for now; 0 for none.

    All must ask at the same places of the program.
    """
    if self._count == 1:
      return self._asked
    with self._lock:
      self._tick += 1
      if self._stop_at is None or self._tick < self._stop_at:
        return 0
      return self._signal

  def _agree(self):
    store = processes.store()
    with self._lock:
      # Once told, it holds: another process may have read it already.
      here = f'{self._tick} {self._asked}'
      while True:
        with self._store_may_fail():
          # Who is done asks no more; then there is nothing to agree on.
          done = self._done or any(
            b.get('done') for _, b in self._seen.values()
          )
          store.key_value_set(f'{_TICKS}{self._me}', here, allow_overwrite=True)
          told = store.key_value_dir_get(_TICKS)
          if len(told) == self._count:
            break
          if done:
            return
          self._exchange_beats()  # a process may be lost meanwhile
        time.sleep(_BEAT / 10)
      ticks, numbers = zip(*(map(int, text.split()) for _, text in told))
      self._stop_at, self._signal = max(ticks) + 1, max(numbers)

  # Beats.

  def _run(self):
    while not self._done:
      with contextlib.suppress(queue.Empty):
        self._wake.get(timeout=_BEAT)
      with self._store_may_fail():
        if self._count > 1:
          self._exchange()
      self._check_stall()

  @contextlib.contextmanager
  def _store_may_fail(self):
    """Goes on after a failure, but not for long: process 0 has the store."""
    try:
      yield
      self._quiet_since = None
    except RuntimeError as e:
      self._quiet_since = self._quiet_since or time.monotonic()
      if time.monotonic() - self._quiet_since > _SUSPECT:
        self._leave(f'process 0 does not answer ({first_line(e)})', 1)

  def _send(self):
    beat = {
      'at': time.monotonic(),  # only that it changes matters
      'host': socket.gethostname(),
      'step': self._step,
      'phase': self._phase,
      'asked': self._asked,
      'failed': self._failed,
      'done': self._done,
    }
    store, text = processes.store(), json.dumps(beat)
    store.key_value_set(f'{_BEATS}{self._me}', text, allow_overwrite=True)

  def _exchange(self):
    self._exchange_beats()
    asked = any(beat.get('asked') for _, beat in self._seen.values())
    if asked and self._stop_at is None:
      self._agree()

  def _exchange_beats(self):
    self._send()
    now = time.monotonic()
    for name, text in processes.store().key_value_dir_get(_BEATS):
      p, beat = int(name.rsplit('/', 1)[-1]), json.loads(text)
      if beat != self._seen[p][1]:
        self._seen[p] = now, beat
      if beat['failed'] and p != self._me:
        self._leave(beat['failed'], 1)
    if lost := self._lost(_LOST):
      self._leave(lost, 1)

  def _lost(self, seconds):
    """Says which process gives no sign, or '' if all do."""
    now = time.monotonic()
    for p, (when, beat) in self._seen.items():
      if p != self._me and now - when > seconds and not beat.get('done'):
        step = beat.get('step')
        seen = 'never seen' if step is None else f'last seen at step {step}'
        return f'{self._name(p)} is lost, {seen}'
    return ''

  def _name(self, p):
    host = self._seen[p][1].get('host', 'an unknown host')
    other = f'process {p} of {self._count} on {host}'
    return self._here if p == self._me else other

  # The end.

  def _fail(self, error):
    """Ends the process for an error, once it is known who has caused it."""
    status = 130 if isinstance(error, KeyboardInterrupt) else 1
    expected = isinstance(error, UserError | OSError | KeyboardInterrupt)
    if not expected:
      with contextlib.suppress(OSError):
        traceback.print_exception(error)
    line = first_line(error)
    if isinstance(error, KeyboardInterrupt):
      line = 'interrupted'
    # What follows from the loss of another process is not the cause.
    cause = error.__cause__ if expected else error
    if cause and not isinstance(cause, OSError):
      deadline = time.monotonic() + 2 * _SUSPECT
      lost = ''
      while not lost and time.monotonic() < deadline:
        time.sleep(_BEAT / 4)
        lost = self._lost(_SUSPECT)
      if lost:
        self._leave(lost, status)
    self._leave(f'{self._here}, step {self._step}: {line}', status)

  def _leave(self, line, status):
    """Tells the others, then ends the process; the line is its last."""
    self._ending.acquire()  # of two threads that come here one goes on
    self._failed = line
    # The store ends with process 0: it waits until all have read it.
    with contextlib.suppress(RuntimeError):
      self._send()
      processes.store().wait_at_barrier('txl_jax/leave', _LEAVE)
    if not self._me:
      time.sleep(_BEAT / 2)  # the runtime aborts who is not gone by then
    if not line.startswith(self._here):
      line += f'; {self._here} ends at step {self._step}'
    processes.leave(f'error: {line}', status)

  # Stalls.

  def _check_stall(self):
    if not self._stall:
      return
    now = time.monotonic()
    here = now, {'step': self._step, 'phase': self._phase}
    beats = self._seen | {self._me: here}
    steps = tuple(beat.get('step') for _, beat in beats.values())
    busy = any(
      beat.get('phase') not in (READING, STEPPING) for _, beat in beats.values()
    )
    if busy or steps != self._moved[1]:
      self._moved, self._told = (now, steps), False
    seconds = now - self._moved[0]
    if seconds < self._stall or self._told or self._me:
      return
    self._told = True
    rank = lambda beat: (beat['step'], beat['phase'] != READING)
    behind = min(beats, key=lambda p: rank(beats[p][1]))
    when, beat = beats[behind]
    mute = f', no sign for {now - when:.0f} s' if now - when > _SUSPECT else ''
    print(
      f'warning: no step for {seconds:.0f} s; farthest behind is '
      f'{self._name(behind)}: it {beat["phase"]} {beat["step"] + 1}{mute}',
      file=sys.stderr,
      flush=True,
    )
