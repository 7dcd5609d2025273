"""Profiling of training: traces, and the host's share of the time."""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

import jax

from txl_jax.parallel import processes
from txl_jax.program import buckets
from txl_jax.program.errors import first_line
from txl_jax.program.settings import ON_RESUME, count
from txl_jax.runs.terminal import Console


@dataclasses.dataclass(frozen=True)
class Profile:
  """The section `profile` of a config: the steps to trace.

  The first steps of a run are slower: start at 10 or so.
  """

  MAY_CHANGE = ON_RESUME

  start: int = count(0, 'First step to trace, counted from 0.')
  stop: int = count(0, 'Step at which tracing stops (exclusive); 0 is off.')

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if 0 < self.stop <= self.start:
      yield 'stop', f'0, or above profile.start, {self.start}'


class Clock:
  """Host time since the last log line, in three parts.

  The host makes a batch and transfers it (data_wait), dispatches a step
  (dispatch), and waits for devices (device_wait).
  """

  def __init__(self):
    """Sets all times to 0; also called as `restart`."""
    self._begin = time.monotonic()
    self._spent = {'data_wait': 0.0, 'dispatch': 0.0, 'device_wait': 0.0}

  restart = __init__

  @contextlib.contextmanager
  def stopped(self) -> Iterator[None]:
    """Excludes the time in this context."""
    begin = time.monotonic()
    yield
    self._begin += time.monotonic() - begin

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    """Adds the time in this context to the part `name`."""
    begin = time.monotonic()
    yield
    self._spent[name] += time.monotonic() - begin

  def read(self) -> tuple[float, dict[str, float]]:
    """Seconds since the last restart, and the share of each part; restarts."""
    begin, spent = self._begin, self._spent
    self.restart()
    seconds = self._begin - begin
    return seconds, {k: round(v / seconds, 5) for k, v in spent.items()}


class Trace:
  """Profiler trace of a range of steps, for TensorBoard and Perfetto.

  Files are in profile/plugins/profile/ of the run's folder: *.xplane.pb for
  TensorBoard (with its profile plugin), *.trace.json.gz for Perfetto. With
  several processes, each writes to its own folder profile/process_0/, ….
  """

  def __init__(self, config: Profile, folder: pathlib.Path, console: Console):
    """Does not start the trace."""
    self._start, self._stop = config.start, config.stop
    self._on = False
    self._console = console
    process = f'process_{processes.index()}' if processes.count() > 1 else ''
    self._folder = self._local = folder / 'profile' / process

  def step(self, step: int) -> jax.profiler.StepTraceAnnotation:
    """Context for step `step`, counted from 0; may start the trace."""
    if not self._on and self._start <= step < self._stop:
      if isinstance(self._folder, buckets.Path):
        self._local = pathlib.Path(tempfile.mkdtemp(prefix='txl_jax-'))
      jax.profiler.start_trace(str(self._local))
      self._on = True
    return jax.profiler.StepTraceAnnotation('train', step_num=step)

  def ends(self, step: int) -> bool:
    """Whether a running trace ends after `step` steps."""
    return self._on and step >= self._stop

  def close(self) -> None:
    """Writes the trace, if one is running; a failure is only a warning."""
    if not self._on:
      return
    self._on = False
    try:
      jax.profiler.stop_trace()
      if isinstance(self._folder, buckets.Path):
        buckets.put(self._local, self._folder)
        shutil.rmtree(self._local)
      self._console.say(f'traced: {self._folder}')
    except (RuntimeError, OSError) as e:
      self._console.say(f'warning: no trace in {self._folder}: {first_line(e)}')
