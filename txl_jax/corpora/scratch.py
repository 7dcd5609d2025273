"""Temporary folders that killed processes do not leave behind for good."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

from txl_jax import terminal

_LOCK = 'lock'  # in each folder, held as long as its process lives


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A new folder next to a path, on the same disk; removed at the end.

  It is named after the path, with the ending .tmp-*, and contains only a lock.
  Folders of killed processes, whose locks are free, are removed. Neither the
  path nor the folder it is in need exist.
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
  """As `move`; a folder that has the name already is moved to `temporary`."""
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
  """The open lock of a new folder; None if another process thinks it dead."""
  path = folder / _LOCK
  with contextlib.suppress(FileNotFoundError):
    lock = path.open('w')
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      held = path.exists()
    except BlockingIOError:
      held = False
    except OSError:
      held = True  # a file system without locks: nobody thinks this dead
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
  """Removes a folder, its lock last, so that others can finish the removal."""
  for path in folder.iterdir():
    if path.name != _LOCK:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  shutil.rmtree(folder)
