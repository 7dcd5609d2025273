"""Folders that get their name when they are whole."""

import contextlib
import errno
import os
import pathlib
import tempfile
from collections.abc import Iterator

from txl_jax.program import terminal


@contextlib.contextmanager
def whole(path: pathlib.Path, replace: bool = False) -> Iterator[pathlib.Path]:
  """A new folder that is renamed to a path at the end of the block.

  Until then it is in one beside the path, on the same disk, with the ending
  .tmp-*; that of a process that is killed remains. If the block fails, what had
  the name keeps it. FileExistsError: another folder has it, unless that is to
  be replaced.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = tempfile.TemporaryDirectory(
    prefix=f'{path.name}.tmp-', dir=path.parent, ignore_cleanup_errors=True
  )
  with terminal.unwinding(), temporary as folder:
    made, old = pathlib.Path(folder, 'made'), pathlib.Path(folder, 'replaced')
    made.mkdir()
    yield made
    if replace and os.path.lexists(path):
      path.rename(old)
    try:
      made.rename(path)
    except OSError as e:
      if os.path.lexists(path):
        name = os.strerror(errno.EEXIST)
        raise FileExistsError(errno.EEXIST, name, str(path)) from e
      if old.exists():
        old.rename(path)
      raise
