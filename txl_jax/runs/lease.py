"""The lock of a run in a bucket, where a killed process cannot release it.

The lock is an object that names its holder, who rewrites it every few seconds.
Another process takes it over if it does not change for LEASE seconds. Each
write is conditional on the generation seen before, so if two processes take the
lock, one fails; clocks are never compared. A holder that was paused and has
lost the lock exits when it notices, at the latest in `confirm`, which is called
before a checkpoint is sealed.
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
  """A lock that this process holds or is about to take."""

  def __init__(self, path: buckets.Path):
    """Does not take the lock yet."""
    self._path = path
    self._generation = 0
    self._lock = threading.Lock()
    self._end = threading.Event()
    self._holder = {
      'pid': os.getpid(),
      'host': socket.gethostname(),
      'token': uuid.uuid4().hex,
    }

  def _write(self, generation: int) -> bool:
    """Writes the lock if its generation (0 for none) is still the given one.

    Returns False if not. OSError if the bucket refuses or does not answer.
    """
    data = io.BytesIO(json.dumps(self._holder).encode())
    try:
      self._generation = self._path.upload(data, generation)
    except FileExistsError:
      current, holder = self._read()
      # A retried upload may fail although the first attempt succeeded.
      if holder.get('token') != self._holder['token']:
        return False
      self._generation = current
    return True

  def _read(self) -> tuple[int, dict[str, Any]]:
    """Returns the generation of the lock, 0 for none, and its holder."""
    try:
      generation = self._path.stat().st_mtime_ns
      return generation, files.read_json(self._path)
    except FileNotFoundError:
      return 0, {}
    except UserError:  # deleted meanwhile, or not the lock of a run
      return (generation if self._path.exists() else 0), {}

  def take(self) -> None:
    """Takes the lock; UserError if another run holds it."""
    seen = due = 0
    while not self._write(seen if time.monotonic() >= due else 0):
      current, holder = self._read()
      who = f'process {holder.get("pid")} on {holder.get("host")}'
      if seen and current not in (0, seen):
        folder = f'{self._path.parent} is in use by {who}'
        raise UserError(f'--workdir={folder}; wait until it ends')
      if current and not seen:
        due = time.monotonic() + LEASE
        wait = f'waiting up to {LEASE:.0f} s to see whether it is alive'
        print(f'{self._path} is held by {who}: {wait}', file=sys.stderr)
      seen = current
      if time.monotonic() < due:
        time.sleep(min(2.0, LEASE / 10))

  def keep(self) -> None:
    """Renews the lock at intervals until `release`; see `confirm`."""
    while not self._end.wait(LEASE / 5):
      with contextlib.suppress(OSError):  # tried again next time
        self.confirm()

  def confirm(self) -> None:
    """Renews the lock; exits the program if another process has taken it."""
    with self._lock:
      if not self._end.is_set() and not self._write(self._generation):
        # Without cleanup, which might remove files of the other run.
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
  """Holds a lock in a bucket; UserError if that is not possible."""
  lease = Lease(path)
  with files.writing(f'--workdir={path.parent}'):
    lease.take()
  threading.Thread(target=lease.keep, daemon=True).start()
  _held[str(path.parent)] = lease
  try:
    yield
  finally:
    del _held[str(path.parent)]
    lease.release()


def confirm(folder: pathlib.Path) -> None:
  """Exits the program if this process has lost the lock of a folder.

  OSError if the bucket cannot be reached.
  """
  if lease := _held.get(f'{folder}'):
    lease.confirm()
