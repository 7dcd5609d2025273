"""What the processes of a run know of each other while it goes on.

A signal at one stops all at the same step. All end when one fails, or gives no
sign any more, and the last line of each names that one. Process 0 reports who
is behind when no step is made. A pause that is over is told as well.

For this each process writes its beat, where it is, once a second. Process 0
reads them all, the others that of process 0, which sums them up: 2 P messages a
second for P processes. Time is that of clocks that nobody sets, and does not
count while this process is paused.

The signal goes through the devices: reached_preemption_sync_point of jax knows
no Ctrl-C, and while it waits lets no thread of Python name a lost process.
"""

import contextlib
import dataclasses
import json
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from txl_jax import terminal
from txl_jax.errors import UserError, first_line
from txl_jax.parallel import placement, processes
from txl_jax.settings import ON_RESUME, count, key


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
  stall_seconds: float = count(
    0.0,
    'Seconds without a step, not counting compilation, evaluation and saving, '
    'until a warning names the process and host that is behind; 0 is off.',
  )


_BEAT = 1.0  # seconds
_LEAVE = 5.0  # seconds that a failed process waits for the others to read why
_INTERRUPTED = ': interrupted'  # why all leave at Ctrl-C
_BEATS, _MAIN_BEAT = 'txl_jax/beats/', 'txl_jax/main_beat'

# Phases in which a step is expected, and how they are called.
READING, STEPPING = 'reads the batch of step', 'is in step'


def _now():
  """Seconds of a clock that nobody sets, and that counts in a pause."""
  clock = getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)
  return time.clock_gettime(clock)


def _say(text):
  print(text, file=sys.stderr, flush=True)


class Stopped(Exception):
  """Training was asked to stop by `signal` and has saved its state."""

  def __init__(self, number: int, step: int):
    self.signal = number
    when = f'at step {step}, which is saved; the same command continues'
    when = when if step else 'before the first step'
    super().__init__(f'stopped by {signal.Signals(number).name} {when}')


class Watch:
  """Beats while this context is open; the seconds are those of `Watching`.

  An error that leaves the context ends the process, if there are others: they
  are told, and standard error ends with the line that names the cause.
  """

  def __init__(self, lost_seconds: float = 45.0, stall_seconds: float = 0.0):
    self._limit, self._stall = lost_seconds, stall_seconds
    # Enough after an error that the loss of a process would cause.
    self._suspect = max(lost_seconds / 10, 3 * _BEAT)
    self._me, self._count = processes.index(), processes.count()
    self._here = processes.name()
    self._step, self._phase = 0, 'starts'
    self._failed, self._done = '', False
    self._asked = 0  # the signal this process has got
    self._highest = 0  # signal of all, when `stopping` was called last
    self._ending, self._wake = threading.Lock(), threading.Event()
    self._beating = threading.Thread(target=self._beat, daemon=True)
    self._judging = threading.Thread(target=self._judge, daemon=True)
    self._stack = contextlib.ExitStack()
    self._awake, self._looked = 0.0, _now()  # seconds
    self._paused = 0.0, 0.0  # seconds of the last pause, and when it ended
    heard = [0] if self._me else range(self._count)
    name = f'process {{}} of {self._count} on an unknown host'.format
    # {process: (when its beat changed last, the beat)}
    self._seen = {p: (0.0, self._state(name(p))) for p in heard}
    self._moved = 0.0, ()  # when steps were made last, and how many by each

  def __enter__(self) -> 'Watch':
    if self._count > 1:
      self._stack.enter_context(processes.on_abort(self._aborted))
      self._stack.enter_context(terminal.before_end(self._interrupted))
    if self._count > 1 or self._stall:
      self._beating.start()
      self._judging.start()
    return self

  def __exit__(self, kind, error, _):
    if self._count > 1 and error and not isinstance(error, Stopped):
      self._fail(error)
    self._done = True
    self._wake.set()
    if self._judging.ident:
      self._judging.join()
    self._stack.close()

  def at(self, step: int, phase: str) -> None:
    """Notes the steps made; in phases but READING and STEPPING none is due."""
    self._step, self._phase = step, phase

  @contextlib.contextmanager
  def signals(self) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask to stop; a second Ctrl-C ends at once.

    Stopped at the end, where one came too late for the last step.
    """

    def ask(number, _):
      self._asked = self._asked or number
      if number == signal.SIGINT:
        signal.signal(number, terminal.interrupt)

    numbers = [signal.SIGINT, signal.SIGTERM]
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
      raise Stopped(number, self._step)

  def stopping(self) -> int:
    """Number of the signal that all processes stop for now; 0 for none.

    All ask at the same places. What several are told is what they could know
    when they asked before: nobody waits for the others.
    """
    if self._count == 1:
      return self._asked
    highest, self._highest = self._highest, placement.highest(self._asked)
    return int(highest)

  # Beats, in a thread that hangs while process 0, which has the store, does.

  def _beat(self):
    while True:
      # What happens during the exchange is told in the next one.
      done, failed = self._done, self._failed
      with contextlib.suppress(RuntimeError):  # the store fails
        self._exchange()
        if failed:
          # The store ends with process 0: it waits until all have read why.
          processes.store().wait_at_barrier('txl_jax/leave', int(_LEAVE * 1000))
        if done or failed:
          return
      self._wake.wait(_BEAT)
      self._wake.clear()

  def _state(self, name) -> dict[str, Any]:
    """A beat; of the time in it only that it changes matters."""
    state = dict(at=time.monotonic(), name=name, lost='', failed=self._failed)
    return state | dict(step=self._step, phase=self._phase, done=self._done)

  def _exchange(self):
    beat = self._state(self._here)
    if self._me:
      self._write(f'{_BEATS}{self._me}', beat)
      self._hear(0, processes.store().key_value_try_get(_MAIN_BEAT))
      return
    self._seen[0] = self._awake, beat
    if self._count > 1:
      for name, text in processes.store().key_value_dir_get(_BEATS):
        self._hear(int(name.removeprefix(_BEATS)), text)
      lost = self._lost(self._suspect)
      self._write(_MAIN_BEAT, beat | dict(failed=self._failed, lost=lost))

  def _write(self, name, beat):
    text = json.dumps(beat)
    processes.store().key_value_set(name, text, allow_overwrite=True)

  def _hear(self, p, text):
    beat, (when, last) = json.loads(text), self._seen[p]
    if beat != last:
      self._seen[p] = self._awake, beat
      mute = self._awake - when
      # One is enough to tell it, and not one that was paused itself.
      told = self._me < 2 and self._awake > self._paused[1] + self._suspect
      # What was never heard is not back.
      if mute > self._suspect and told and last['name'] == beat['name']:
        _say(f'{beat["name"]} gave no sign for {mute:.0f} s and is back')
    if beat['failed'] and not self._failed:
      self._failed = beat['failed']
      self._wake.set()

  # Who is lost or behind, in a thread that never waits for the store.

  def _judge(self):
    while self._beating.is_alive() or self._failed:
      self._beating.join(_BEAT)
      self._look()
      # After a pause up to the limit a beat is written, read, and counted here.
      if line := self._failed or self._lost(self._limit + 3 * _BEAT):
        self._leave(line)
      if self._stall and not self._me:
        self._check_stall()

  def _look(self):
    """Counts the time, but for pauses of this process."""
    now = _now()
    gone, self._looked = now - self._looked, now
    self._awake += min(gone, 2 * _BEAT)
    if gone > self._suspect:
      self._paused = gone, self._awake

  def _slept(self):
    """Says that this process was paused beyond the limit, or ''.

    The others count it as lost then, but not if all were paused.
    """
    seconds, woke = self._paused
    # A first beat may have been under way when its sender ended.
    alive = woke + self._suspect
    others = [seen for p, seen in self._seen.items() if p != self._me]
    if seconds < self._limit or all(when > alive for when, _ in others):
      return ''
    paused = f'{self._here}, step {self._step}: it was paused for {seconds:.0f}'
    return f'{paused} s, and the others have ended since'

  def _lost(self, seconds):
    """Says which process gives no sign, or '' if all do."""
    for when, beat in self._seen.values():
      if self._awake - when > seconds and not beat['done']:
        if slept := self._slept():
          return slept
        return f'{beat["name"]} is lost, last seen at step {beat["step"]}'
    return ''

  def _check_stall(self):
    beats = list(self._seen.values())
    steps = tuple(beat['step'] for _, beat in beats)
    busy = any(beat['phase'] not in (READING, STEPPING) for _, beat in beats)
    if busy or steps != self._moved[1]:
      self._moved = self._awake, steps
    seconds = self._awake - self._moved[0]
    if seconds < self._stall:
      return
    self._moved = math.inf, steps  # once is enough
    when, beat = min(
      beats, key=lambda seen: (seen[1]['step'], seen[1]['phase'] != READING)
    )
    mute = self._awake - when
    silent = f', no sign for {mute:.0f} s' if mute > self._suspect else ''
    who = f'{beat["name"]}: it {beat["phase"]} {beat["step"] + 1}{silent}'
    _say(f'warning: no step for {seconds:.0f} s; farthest behind is {who}')

  def _interrupted(self):
    """Tells the others of Ctrl-C, before it ends this process."""
    if self._ending.acquire(blocking=False):
      self._tell(f'{self._here}, step {self._step}{_INTERRUPTED}')

  def _fail(self, error):
    """Ends the process for an error, once it is known who has caused it."""
    if isinstance(error, KeyboardInterrupt):
      terminal.interrupt()
    expected = isinstance(error, UserError | OSError)
    self._look()
    if not expected and not self._slept():
      with contextlib.suppress(OSError):
        traceback.print_exception(error)
    cause = error.__cause__ if expected else error
    own = not cause or isinstance(cause, OSError)
    # What follows from the loss of another process is not the cause.
    lost = '' if own else self._culprit()
    line = lost or f'{self._here}, step {self._step}: {first_line(error)}'
    self._leave(line)

  def _aborted(self):
    """Ends the process in place of the runtime, which leaves a stack trace."""
    line = f'{self._here}, step {self._step}: the lines above say what failed'
    self._leave(self._culprit() or line)

  def _culprit(self):
    """Says which process is lost, or '' if none is in some seconds."""
    lost, deadline = '', time.monotonic() + 2 * self._suspect + _BEAT
    while not lost and time.monotonic() < deadline:
      time.sleep(_BEAT / 4)
      # Process 0 says who of the others is.
      lost = self._lost(self._suspect) or self._seen[0][1]['lost']
    return lost

  def _leave(self, line):
    """Tells the others, then ends the process; the line is its last."""
    self._ending.acquire()  # of the threads that come here one goes on
    self._tell(line)
    if not line.startswith(self._here):
      line += f'; {self._here} ends at step {self._step}'
    processes.leave(f'error: {line}', 130 if _INTERRUPTED in line else 1)

  def _tell(self, line):
    """Lets the others know why this process ends."""
    self._failed = line
    self._wake.set()
    self._beating.join(_LEAVE)
