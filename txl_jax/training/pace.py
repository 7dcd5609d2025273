"""How long the rest of a run will take."""

import collections
import contextlib
import time
from collections.abc import Iterator

_WINDOW = 512  # calls of the devices over which the rate is taken


class Pace:
  """The rate of recent steps, and the time spent between them.

  The first call of the devices, which compiles, does not count.
  """

  def __init__(self, steps: int, eval_every: int):
    """For a run of so many steps, with evaluations between them."""
    self._steps, self._every = steps, eval_every
    self.restart()
    self._an_evaluation = 0.0  # seconds of the latest one

  def restart(self) -> None:
    """Forgets the steps so far; the next call compiles."""
    self._marks = collections.deque(maxlen=_WINDOW)
    self._calls, self._apart, self._step = 0, 0.0, 0

  def made(self, step: int) -> None:
    """Notes that a call has ended, with `step` steps made in all."""
    self._calls, self._step = self._calls + 1, step
    if self._calls > 1:
      self._marks.append((time.monotonic() - self._apart, step))

  @contextlib.contextmanager
  def apart(self) -> Iterator[None]:
    """Excludes the time spent in this context."""
    begin = time.monotonic()
    yield
    self._apart += time.monotonic() - begin

  def evaluated(self, seconds: float) -> None:
    """Notes how long an evaluation took."""
    self._an_evaluation = seconds

  def left(self) -> float | None:
    """Seconds to the last step, evaluations included; None if not yet known."""
    if len(self._marks) < 2:
      return None
    (begin, first), (end, last) = self._marks[0], self._marks[-1]
    each, done = (end - begin) / (last - first), self._step
    more = -(-self._steps // self._every) - done // self._every
    return (self._steps - done) * each + max(more, 0) * self._an_evaluation
