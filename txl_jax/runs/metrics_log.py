"""What a run writes about itself: metrics.jsonl, TensorBoard, the console.

metrics.jsonl has one JSON object a line: step, split, and figures. It is the
record of the run: but for what measures time, it is the same whether the run
was interrupted or not. TensorBoard's events are made from it again at each
start, so they are cut back with it.
"""

import contextlib
import json
import os
import pathlib
import shutil
import time
from typing import Any

from tensorboardX import event_file_writer, summary
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore

from txl_jax.errors import UserError

_FLUSH = 10.0  # seconds between two flushes of TensorBoard's events


class Log:
  """The record of a run in its workdir."""

  def __init__(
    self, workdir: pathlib.Path, step: int, evaluated: int, tensorboard: bool
  ):
    """Opens the record and cuts it back to a checkpoint.

    Lines of training after `step` are dropped, and those of other splits after
    `evaluated`, the last step whose evaluation the checkpoint knows. UserError,
    as from the other methods: a file cannot be written.
    """
    self._folder, last = workdir, {'train': step}
    records = read(workdir / 'metrics.jsonl')
    kept = [r for r in records if r['step'] <= last.get(r['split'], evaluated)]
    with self._told():
      self._open(kept, tensorboard)

  def _open(self, kept, tensorboard):
    workdir, path = self._folder, self._folder / 'metrics.jsonl'
    temporary = path.with_name('metrics.jsonl.tmp')
    with temporary.open('w') as f:
      f.writelines(map(_line, kept))
      f.flush()
      os.fsync(f.fileno())
    temporary.replace(path)
    self._file = path.open('a')
    events = workdir / 'tensorboard'
    shutil.rmtree(events, ignore_errors=True)
    self._events = None
    if tensorboard:
      # On a network file system a reader may keep the old one from going.
      events.mkdir(exist_ok=True)
      # Not SummaryWriter: when its thread dies of a full disk, training hangs.
      self._events = event_file_writer.EventsWriter(str(events / 'events'))
    for record in kept:
      self._write_events(record)
    self._flush_events()

  def write(self, record: dict[str, Any]) -> None:
    """Adds a dict with step, split and figures; stamps it with the time."""
    record = record | {'time': round(time.time(), 3)}
    with self._told():
      self._file.write(_line(record))
      self._file.flush()
      self._write_events(record)
      # Each flush waits for the disk.
      if time.monotonic() - self._flushed > _FLUSH:
        self._flush_events()

  def _write_events(self, record):
    if self._events is None:
      return
    record = dict(record)
    step, split, time_ = map(record.pop, ('step', 'split', 'time'))
    for name, value in record.items():
      scalar = summary.scalar(f'{split}/{name}', value)
      event = Event(step=step, wall_time=time_, summary=scalar)
      self._events.write_event(event)

  def _flush_events(self):
    self._flushed = time.monotonic()
    if self._events:
      self._events.flush()

  def sync(self) -> None:
    """Makes sure that every line is on the disk."""
    with self._told():
      os.fsync(self._file.fileno())
      self._flush_events()

  def close(self) -> None:
    """Closes the files; what they have failed with was told before."""
    with contextlib.suppress(OSError):
      self._file.close()
    if self._events:
      with contextlib.suppress(OSError):
        self._events.close()

  @contextlib.contextmanager
  def _told(self):
    try:
      yield
    except OSError as e:
      raise UserError(
        f'{self._folder}: the log cannot be written ({e.strerror})'
      ) from e


class Silent:
  """The Log of a process that writes none."""

  def write(self, record: dict[str, Any] | None = None) -> None:
    """Does nothing, as all of it."""

  sync = close = write


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The records of a metrics.jsonl, [] if there is none.

  A last line that was torn by a crash is left out.
  """
  if not path.exists():
    return []
  records = []
  for line in path.read_text(errors='replace').splitlines(keepends=True):
    try:
      record = json.loads(line)
      whole = {'step', 'split', 'time'} <= record.keys()
    except (ValueError, AttributeError):
      whole = False
    if not whole or not line.endswith('\n'):
      break
    records.append(record)
  return records


def _line(record):
  return json.dumps(record) + '\n'
