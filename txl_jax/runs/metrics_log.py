"""The log of a run: metrics.jsonl and TensorBoard events.

Each line of metrics.jsonl is a JSON object with step, split and figures. Except
for timings, the file does not depend on interruptions: each checkpoint contains
a `Mark`, to which a resumed run truncates the file. If the file does not match
the mark, it is renamed with a warning and a new one is started. TensorBoard
events are rebuilt from the file at each start.

Objects in a bucket cannot be appended to, so both are written to a temporary
folder and uploaded before each save, every minute and at the end.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any

from txl_jax.program import buckets, files

NAME, EVENTS = 'metrics.jsonl', 'tensorboard'
_MISSING = 'no TensorBoard events: pip install tensorboardX'
_FLUSH = 10.0  # seconds between flushes of TensorBoard's events
_PUT = 60.0  # seconds between uploads to a bucket
_LARGEST = 1 << 30  # maximum bytes of metrics.jsonl


@dataclasses.dataclass(frozen=True)
class Mark:
  """Size and checksum of the log when a checkpoint was made."""

  lines: int = 0
  size: int = 0  # bytes
  crc32: int = 0

  def after(self, line: bytes) -> 'Mark':
    """The mark of the log with one more line."""
    crc = zlib.crc32(line, self.crc32)
    return Mark(self.lines + 1, self.size + len(line), crc)

  def beginning(self, data: bytes) -> bytes | None:
    """The bytes of `data` up to the mark if they match it; else None."""
    start = data[: self.size]
    same = len(start) == self.size and zlib.crc32(start) == self.crc32
    return start if same else None


class Log:
  """The log of a run in its workdir, open for writing."""

  def __init__(
    self,
    workdir: pathlib.Path,
    mark: Mark,
    tensorboard: bool,
    also: Callable[[dict[str, Any]], None] = lambda record: None,
  ):
    """Opens the log and truncates it to the mark of a checkpoint.

    `also` receives every record, starting with those already in the log. All
    methods but `close` raise UserError if a file cannot be written.
    """
    if tensorboard and not importlib.util.find_spec('tensorboardX'):
      print(_MISSING, file=sys.stderr)
      tensorboard = False
    self._events = None
    self._also = also
    self._errors = functools.partial(files.writing, f'{workdir}: the log')
    self._bucket = workdir if isinstance(workdir, buckets.Path) else None
    self._every = _PUT if self._bucket else _FLUSH
    path, events = workdir / NAME, workdir / EVENTS
    kept = mark.beginning(_contents(path))
    with self._errors():
      if tensorboard:
        events.mkdir(exist_ok=True)
      with files.replacing(path) as f:
        f.write(kept or b'')
        f.flush()
        if kept is None:
          why = 'does not match the checkpoint; starting a new one'
          put_aside(workdir, f'{path} {why}', NAME, EVENTS)
      remove_events(events)
      if self._bucket:
        self._local = tempfile.TemporaryDirectory(prefix='txl_jax-')
        local = pathlib.Path(self._local.name)
        path, events = local / NAME, local / EVENTS
        path.write_bytes(kept or b'')
      if tensorboard:
        events.mkdir(exist_ok=True)
        from tensorboardX import event_file_writer  # an extra

        # Not SummaryWriter: if a full disk kills its thread, training hangs.
        self._events = event_file_writer.EventsWriter(str(events / 'events'))
      self._file = path.open('ab')
      self._mark = Mark() if kept is None else mark
      for line in _lines(kept or b''):
        self._forward(json.loads(line))
      self._flush_events()

  def write(self, record: dict[str, Any]) -> None:
    """Appends a record with step, split and figures; adds the time."""
    record = record | {'time': round(time.time(), 3)}
    line = f'{json.dumps(record)}\n'.encode()
    with self._errors():
      self._file.write(line)
      self._file.flush()
      self._mark = self._mark.after(line)
      self._forward(record)
      # Each flush waits for the disk.
      if time.monotonic() - self._flushed > self._every:
        self._flush_events()

  def _forward(self, record):
    """Passes a written record to `also` and TensorBoard."""
    self._also(record)
    if self._events is None:
      return
    from tensorboardX import summary
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore

    record = dict(record)
    step, split, time_ = map(record.pop, ('step', 'split', 'time'))
    for name, value in record.items():
      if not isinstance(value, str):  # a text
        scalar = summary.scalar(f'{split}/{name}', value)
        event = Event(step=step, wall_time=time_, summary=scalar)
        self._events.write_event(event)

  def _flush_events(self):
    self._flushed = time.monotonic()
    if self._events:
      self._events.flush()
    if self._bucket:
      buckets.put(pathlib.Path(self._local.name), self._bucket)

  def sync(self) -> Mark:
    """Writes all lines to the disk or bucket; returns the log's mark."""
    with self._errors():
      os.fsync(self._file.fileno())
      self._flush_events()
    return self._mark

  def close(self) -> None:
    """Closes the files; ignores errors, which earlier calls have raised."""
    for file in filter(None, (self._file, self._events)):
      with contextlib.suppress(OSError):
        file.close()
    if self._bucket:
      self._events = None
      with contextlib.suppress(OSError):
        self._flush_events()
      self._local.cleanup()


class Silent:
  """A Log that writes nothing, for all processes but one."""

  def write(self, record: dict[str, Any] | None = None) -> Mark:
    """Does nothing, like the other methods."""
    return Mark()

  sync = close = write


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Parses the valid records of a metrics.jsonl; [] if it does not exist."""
  return [r for r in map(_record, _lines(_contents(path))) if r]


def put_aside(workdir: pathlib.Path, why: str, *names: str) -> None:
  """Renames files and folders to unused names, with a warning."""
  existing = [name for name in names if (workdir / name).exists()]
  number = 1
  while any((workdir / f'{x}.kept-{number}').exists() for x in existing):
    number += 1
  kept = [f'{name}.kept-{number}' for name in existing]
  for old, new in zip(existing, kept):
    (workdir / old).rename(workdir / new)
  where = f'; kept as {", ".join(kept)}' if kept else ''
  print(f'warning: {why}{where}', file=sys.stderr)


def remove_events(folder: pathlib.Path) -> None:
  """Removes TensorBoard events, and their folder if nothing else is in it."""
  # On a network file system, a reader may prevent the removal.
  with contextlib.suppress(OSError):
    for path in folder.iterdir():
      if path.match('events.out.tfevents.*'):
        path.unlink()
    folder.rmdir()


def _contents(path):
  return files.read(path, largest=_LARGEST) if path.exists() else b''


def _lines(data: bytes) -> list[bytes]:
  """The complete lines: a killed process may leave a partial last one."""
  return [line + b'\n' for line in data.split(b'\n')[:-1]]


def _record(line: bytes) -> dict[str, Any] | None:
  """Parses a line; None if it is not a record of numbers, or of a text."""
  try:
    record = json.loads(line)
    types = {'split': (str,), 'text': (str,), 'step': (int,)}
    valid = record.keys() >= {'split', 'step', 'time'} and all(
      type(x) in types.get(name, (int, float)) for name, x in record.items()
    )
    return record if valid else None
  except files.ODD:
    return None
