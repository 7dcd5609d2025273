"""The lock of a run in a bucket, where a process that dies leaves it behind.

It is an object with the name of its holder, which rewrites it every few
seconds. A process that finds it, and sees it unchanged for LEASE seconds, takes
it. Every write is conditional on the object being the one that was seen, so if
two take it one fails; clocks are never compared. A holder that was paused, and
whose lock was taken, ends when it notices, and `confirm` is called before a
checkpoint is sealed.
"""

import contextlib
import io
import json
import os
import pathlib
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from txl_jax.parallel import processes
from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError

LEASE = 60.0  # seconds
_held: dict[str, 'Lease'] = {}  # by folder


class Lease:
  """A lock that this process holds or is about to hold."""

  def __init__(self, path: buckets.Path):
    """Prepares the lock without taking it."""
    self._path, self._generation = path, 0
    self._lock, self._end = threading.Lock(), threading.Event()
    self._holder = {
      'pid': os.getpid(),
      'host': socket.gethostname(),
      'token': uuid.uuid4().hex,
    }

  def _write(self, generation: int) -> bool:
    """Overwrites the lock of a generation, 0 for none; False if it has changed.

    OSError: the bucket refuses it, or cannot be reached.
    """
    data = io.BytesIO(json.dumps(self._holder).encode())
    try:
      self._generation = self._path.upload(data, generation)
    except FileExistsError:
      found, holder = self._read()
      # It may be ours all the same, see there.
      if holder.get('token') != self._holder['token']:
        return False
      self._generation = found
    return True

  def _read(self) -> tuple[int, dict[str, Any]]:
    """The generation of the lock, 0 for none, and its holder."""
    try:
      generation = self._path.stat().st_mtime_ns
      return generation, files.read_json(self._path)
    except FileNotFoundError:
      return 0, {}
    except UserError:  # deleted in the meantime, or not the lock of a run
      return (generation if self._path.exists() else 0), {}

  def take(self) -> None:
    """Takes the lock; UserError if another run holds it."""
    seen, due = 0, 0.0
    while not self._write(seen if time.monotonic() >= due else 0):
      found, holder = self._read()
      who = f'process {holder.get("pid")} on {holder.get("host")}'
      if seen and found not in (0, seen):
        folder = f'{self._path.parent} is in use by {who}'
        raise UserError(f'--workdir={folder}; wait until it ends')
      if found and not seen:
        due = time.monotonic() + LEASE
        for_ = f'waiting up to {LEASE:.0f} s for a sign of life'
        print(f'{self._path} is held by {who}: {for_}', file=sys.stderr)
      seen = found
      if time.monotonic() < due:
        time.sleep(min(2.0, LEASE / 10))

  def keep(self) -> None:
    """Rewrites the lock repeatedly until `release`; see `confirm`."""
    while not self._end.wait(LEASE / 5):
      with contextlib.suppress(OSError):  # it will be tried again
        self.confirm()

  def confirm(self) -> None:
    """Writes the lock; ends the program if it was taken from this process."""
    with self._lock:
      if not self._end.is_set() and not self._write(self._generation):
        # At once: cleaning up might remove what the other run writes.
        processes.leave(
          f'error: {self._path} was taken by another run, while this one was '
          'paused or the bucket out of reach; stop that one first'
        )

  def release(self) -> None:
    """Deletes the lock."""
    with self._lock, contextlib.suppress(OSError):
      self._end.set()
      self._path.unlink(generation=self._generation)


@contextlib.contextmanager
def held(path: buckets.Path) -> Iterator[None]:
  """Holds a lock in a bucket; UserError if taken, or if the bucket refuses."""
  lease = Lease(path)
  try:
    lease.take()
  except OSError as e:
    why = f'cannot be written: {e.strerror}'
    raise UserError(f'--workdir={path.parent} {why}') from e
  threading.Thread(target=lease.keep, daemon=True).start()
  _held[str(path.parent)] = lease
  try:
    yield
  finally:
    del _held[str(path.parent)]
    lease.release()


def confirm(folder: pathlib.Path) -> None:
  """Ends the program if the lock of a folder was held here and has been taken.

  OSError: the bucket cannot be reached.
  """
  if lease := _held.get(f'{folder}'):
    lease.confirm()
