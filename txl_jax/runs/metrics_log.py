"""The log of a run: metrics.jsonl and the events of TensorBoard.

metrics.jsonl has one JSON object a line: step, split, and figures. Except for
timings, it is the same whether or not the run was interrupted: a checkpoint
records the `Mark` of the record, to which it is cut back. A record that does
not match its mark is put aside, and a new one begins; this is reported.
TensorBoard's events are rebuilt from it at each start.

Nothing can be appended to an object in a bucket: there both are written among
this machine's temporary files, and uploaded as a whole before each save, every
minute, and at the end.
"""

import contextlib
import dataclasses
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
from txl_jax.program.errors import UserError

NAME, EVENTS = 'metrics.jsonl', 'tensorboard'
_MISSING = "no TensorBoard events: run pip install 'txl_jax[tensorboard]'"
_FLUSH = 10.0  # seconds between two flushes of TensorBoard's events
_PUT = 60.0  # seconds between uploads of the record to a bucket
_LARGEST = 1 << 30  # bytes of a record


@dataclasses.dataclass(frozen=True)
class Mark:
  """The state of a record when a checkpoint was made."""

  lines: int = 0
  size: int = 0  # bytes
  crc32: int = 0

  def after(self, line: bytes) -> 'Mark':
    """The mark of the record with one more line."""
    crc = zlib.crc32(line, self.crc32)
    return Mark(self.lines + 1, self.size + len(line), crc)

  def beginning(self, data: bytes) -> bytes | None:
    """The beginning of data, if it matches the mark; else None."""
    found = data[: self.size]
    same = len(found) == self.size and zlib.crc32(found) == self.crc32
    return found if same else None


class Log:
  """The record of a run in its workdir."""

  def __init__(
    self,
    workdir: pathlib.Path,
    mark: Mark,
    tensorboard: bool,
    also: Callable[[dict[str, Any]], None] = lambda record: None,
  ):
    """Opens the record and cuts it back to the mark of a checkpoint.

    `also` is given every record, starting with those that are kept. UserError,
    as from the other methods: a file cannot be written.
    """
    if tensorboard and not importlib.util.find_spec('tensorboardX'):
      print(_MISSING, file=sys.stderr)
      tensorboard = False
    self._folder, self._events, self._also = workdir, None, also
    self._bucket = workdir if isinstance(workdir, buckets.Path) else None
    self._every = _PUT if self._bucket else _FLUSH
    path, events = workdir / NAME, workdir / EVENTS
    kept = mark.beginning(_contents(path))
    with self._told():
      if tensorboard:
        events.mkdir(exist_ok=True)
      with files.replacing(path) as f:
        f.write(kept or b'')
        f.flush()
        if kept is None:
          why = 'is not as it was when the checkpoint was saved; it begins anew'
          put_aside(workdir, f'{path} {why}', NAME, EVENTS)
      remove_events(events)
      if self._bucket:
        self._beside = tempfile.TemporaryDirectory(prefix='txl_jax-')
        here = pathlib.Path(self._beside.name)
        path, events = here / NAME, here / EVENTS
        path.write_bytes(kept or b'')
      if tensorboard:
        events.mkdir(exist_ok=True)
        from tensorboardX import event_file_writer  # an extra

        # Not SummaryWriter: if a full disk kills its thread, training hangs.
        self._events = event_file_writer.EventsWriter(str(events / 'events'))
      self._file = path.open('ab')
      self._mark = Mark() if kept is None else mark
      for line in _lines(kept or b''):
        self._tell(json.loads(line))
      self._flush_events()

  def write(self, record: dict[str, Any]) -> None:
    """Adds a dict with step, split and figures; stamps it with the time."""
    record = record | {'time': round(time.time(), 3)}
    line = f'{json.dumps(record)}\n'.encode()
    with self._told():
      self._file.write(line)
      self._file.flush()
      self._mark = self._mark.after(line)
      self._tell(record)
      # Each flush waits for the disk.
      if time.monotonic() - self._flushed > self._every:
        self._flush_events()

  def _tell(self, record):
    """Passes on a record that has been written."""
    self._also(record)
    if self._events is None:
      return
    from tensorboardX import summary
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore

    record = dict(record)
    step, split, time_ = map(record.pop, ('step', 'split', 'time'))
    for name, value in record.items():
      if not isinstance(value, str):  # a sample
        made = summary.scalar(f'{split}/{name}', value)
        event = Event(step=step, wall_time=time_, summary=made)
        self._events.write_event(event)

  def _flush_events(self):
    self._flushed = time.monotonic()
    if self._events:
      self._events.flush()
    if self._bucket:
      buckets.put(pathlib.Path(self._beside.name), self._bucket)

  def sync(self) -> Mark:
    """Makes sure that every line is on disk, or in the bucket.

    Returns the mark of the record.
    """
    with self._told():
      os.fsync(self._file.fileno())
      self._flush_events()
    return self._mark

  def close(self) -> None:
    """Closes the files; their errors have been reported before."""
    for file in filter(None, (self._file, self._events)):
      with contextlib.suppress(OSError):
        file.close()
    if self._bucket:
      self._events = None
      with contextlib.suppress(OSError):
        self._flush_events()
      self._beside.cleanup()

  @contextlib.contextmanager
  def _told(self):
    try:
      yield
    except OSError as e:
      why = f'the log cannot be written ({e.strerror})'
      raise UserError(f'{self._folder}: {why}') from e


class Silent:
  """The Log of a process that does not write one."""

  def write(self, record: dict[str, Any] | None = None) -> Mark:
    """Does nothing, like the other methods."""
    return Mark()

  sync = close = write


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The readable records of a metrics.jsonl; [] without the file."""
  return [r for r in map(_record, _lines(_contents(path))) if r]


def put_aside(workdir: pathlib.Path, why: str, *names: str) -> None:
  """Renames files and folders to names that are free, and reports it."""
  there = [name for name in names if (workdir / name).exists()]
  number = 1
  while any((workdir / f'{x}.kept-{number}').exists() for x in there):
    number += 1
  kept = [f'{name}.kept-{number}' for name in there]
  for old, new in zip(there, kept):
    (workdir / old).rename(workdir / new)
  where = f'; kept as {", ".join(kept)}' if kept else ''
  print(f'warning: {why}{where}', file=sys.stderr)


def remove_events(folder: pathlib.Path) -> None:
  """Removes TensorBoard's events, and their folder if nothing else is in it."""
  # On a network file system a reader may prevent their removal.
  with contextlib.suppress(OSError):
    for path in folder.iterdir():
      if path.match('events.out.tfevents.*'):
        path.unlink()
    folder.rmdir()


def _contents(path):
  return files.read(path, largest=_LARGEST) if path.exists() else b''


def _lines(data: bytes) -> list[bytes]:
  """Whole lines: the last may be torn by a kill while it was written."""
  return [line + b'\n' for line in data.split(b'\n')[:-1]]


def _record(line: bytes) -> dict[str, Any] | None:
  """The record in a line; None if there is none."""
  try:
    found = json.loads(line)
    numbers = [x for name, x in found.items() if name != 'split']
    right = all(type(x) in (int, float) for x in numbers)
    right = right and type(found['step']) is int and 'time' in found
    return found if right and isinstance(found['split'], str) else None
  except files.ODD:
    return None
