"""Profiling of training: traces, host times, model FLOPs utilisation (MFU)."""

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


# Peak dense FLOPs per second of one JAX device, by device_kind: (bfloat16,
# float32). None: the device has no units for that dtype. For float32, the peak
# at XLA's default precision: bfloat16 passes on TPUs, TF32 on NVIDIA GPUs from
# Ampere on.
# TPU: 'peak compute per chip' of cloud.google.com/tpu/docs/v2 to v6e; a chip
# of v2 or v3 has two cores, each a JAX device. NVIDIA: the data sheet of each
# card, halved where it quotes figures with sparsity.
_PEAKS = {
  'TPU v2': (45e12 / 2, 45e12 / 2),
  'TPU v3': (123e12 / 2, 123e12 / 2),
  'TPU v4': (275e12, 275e12),
  **dict.fromkeys(('TPU v5 lite', 'TPU v5e'), (197e12, 197e12)),
  **dict.fromkeys(('TPU v5', 'TPU v5p'), (459e12, 459e12)),
  **dict.fromkeys(('TPU v6 lite', 'TPU v6e'), (918e12, 918e12)),
  'Tesla V100-SXM2-16GB': (None, 15.7e12),
  'Tesla V100-SXM2-32GB': (None, 15.7e12),
  'Tesla T4': (None, 8.1e12),
  'NVIDIA A100-SXM4-40GB': (312e12, 156e12),
  'NVIDIA A100-SXM4-80GB': (312e12, 156e12),
  'NVIDIA A100-PCIE-40GB': (312e12, 156e12),
  'NVIDIA A100 80GB PCIe': (312e12, 156e12),
  'NVIDIA A10': (125e12, 62.5e12),
  'NVIDIA A40': (149.7e12, 74.8e12),
  'NVIDIA L4': (242e12 / 2, 120e12 / 2),
  'NVIDIA L40S': (362e12, 183e12),
  'NVIDIA H100 80GB HBM3': (1979e12 / 2, 989e12 / 2),
  'NVIDIA H100 PCIe': (1513e12 / 2, 756e12 / 2),
  'NVIDIA H200': (1979e12 / 2, 989e12 / 2),
  'NVIDIA B200': (4500e12 / 2, 2200e12 / 2),
}


def peak(dtype: str, kind: str = '', count: int = 0) -> float | None:
  """Peak FLOPs per second of `count` devices; None if unknown.

  `kind` is a device_kind; by default all devices of the run are counted.
  """
  kind = kind or jax.devices()[0].device_kind
  each = _PEAKS.get(kind, (None, None))[('bfloat16', 'float32').index(dtype)]
  return each and each * (count or jax.device_count())


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
