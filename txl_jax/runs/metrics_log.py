"""What a run writes about itself: metrics.jsonl, TensorBoard, the console.

metrics.jsonl has one JSON object a line: step, split, and figures. But for what
measures time, it is the same whether the run was interrupted or not.
TensorBoard's events are made from it again at each start, cut back as it is.
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
    self._folder, self._events = workdir, None
    path, events = workdir / 'metrics.jsonl', workdir / 'tensorboard'
    records, last = read(path), {'train': step}
    kept = [r for r in records if r['step'] <= last.get(r['split'], evaluated)]
    with self._told():
      temporary = path.with_name('metrics.jsonl.tmp')
      with temporary.open('w') as f:
        f.writelines(json.dumps(record) + '\n' for record in kept)
        f.flush()
        os.fsync(f.fileno())
      temporary.replace(path)
      self._file = path.open('a')
      shutil.rmtree(events, ignore_errors=True)
      if tensorboard:
        # On a network file system a reader may keep the old one from going.
        events.mkdir(exist_ok=True)
        # Not SummaryWriter: if its thread dies of a full disk, training hangs.
        self._events = event_file_writer.EventsWriter(str(events / 'events'))
      for record in kept:
        self._write_events(record)
      self._flush_events()

  def write(self, record: dict[str, Any]) -> None:
    """Adds a dict with step, split and figures; stamps it with the time."""
    record = record | {'time': round(time.time(), 3)}
    with self._told():
      self._file.write(json.dumps(record) + '\n')
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
    for file in filter(None, (self._file, self._events)):
      with contextlib.suppress(OSError):
        file.close()

  @contextlib.contextmanager
  def _told(self):
    try:
      yield
    except OSError as e:
      why = f'the log cannot be written ({e.strerror})'
      raise UserError(f'{self._folder}: {why}') from e


class Silent:
  """The Log of a process that writes none."""

  def write(self, record: dict[str, Any] | None = None) -> None:
    """Does nothing, as all of it."""

  sync = close = write


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The records of a metrics.jsonl, without a last line that a crash has torn.

  [] if there is no such file.
  """
  records = []
  with contextlib.suppress(FileNotFoundError, ValueError, AttributeError):
    for line in path.read_text(errors='replace').splitlines(keepends=True):
      record = json.loads(line)
      whole = {'step', 'split', 'time'} <= record.keys()
      if not whole or not line.endswith('\n'):
        break
      records.append(record)
  return records
