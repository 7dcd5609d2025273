"""Temporary folders that no killed process leaves for good."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

from txl_jax import terminal

_LOCK = 'lock'  # in each of them, held as long as its process lives


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A new folder beside a path, on the same disk; it is removed at the end.

  It is named for the path, with an ending .tmp-*, and has nothing in it but a
  lock. Those of killed processes, whose locks are free, are removed. The path
  need not be there, nor the folder it is in.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  for old in path.parent.glob('*.tmp-????????'):
    _remove_if_dead(old)
  folder, lock = None, None
  try:
    with terminal.before_end(terminal.unwind):
      while lock is None:
        folder = path.with_name(f'{path.name}.tmp-{uuid.uuid4().hex[:8]}')
        folder.mkdir()
        lock = _hold(folder)
      assert folder is not None
      yield folder
  finally:
    with lock or contextlib.nullcontext(), contextlib.suppress(OSError):
      if folder is not None:
        _remove(folder)


def move(made: pathlib.Path, path: pathlib.Path) -> bool:
  """Gives a folder its name; False if another process was first."""
  try:
    made.rename(path)
  except OSError:
    if not os.path.lexists(path):
      raise
    return False
  return True


def replace(
  made: pathlib.Path, path: pathlib.Path, temporary: pathlib.Path
) -> None:
  """As `move`, of a name that another may have, which goes to `temporary`."""
  old = temporary / 'replaced'
  with contextlib.suppress(FileNotFoundError):
    path.rename(old)
  try:
    move(made, path)
  except BaseException:
    if old.exists() and not path.exists():
      old.rename(path)
    raise


def _hold(folder):
  """The open lock of a new folder; None if another takes it for a dead one."""
  path = folder / _LOCK
  with contextlib.suppress(FileNotFoundError):
    lock = path.open('w')
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      held = path.exists()
    except BlockingIOError:
      held = False
    except OSError:
      held = True  # a file system without locks: none takes this for dead
    if held:
      return lock
    lock.close()
  return None


def _remove_if_dead(folder):
  """Removes a folder whose lock is free, or one that is empty."""
  with contextlib.suppress(OSError):
    try:
      lock = (folder / _LOCK).open('r+')
    except FileNotFoundError:
      folder.rmdir()
      return
    with lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      _remove(folder)


def _remove(folder):
  """Removes a folder; its lock last, by which another can end the work."""
  for path in folder.iterdir():
    if path.name != _LOCK:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  shutil.rmtree(folder)
