"""Temporary folders, whose contents get their name when they are whole."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from txl_jax.program import terminal


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A new folder next to a path, on the same disk; removed at the end.

  It is named after the path, with the ending .tmp-*. Neither the path nor the
  folder it is in need exist. That of a process that is killed remains.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  made = tempfile.TemporaryDirectory(
    prefix=f'{path.name}.tmp-', dir=path.parent, ignore_cleanup_errors=True
  )
  with terminal.before_end(terminal.unwind), made as folder:
    yield pathlib.Path(folder)


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
