"""The folder of a run's checkpoints: what counts as a step there.

A step is written as <step>.new and gets its name once it is sealed. To be
deleted it is first renamed, so that half of it never exists under its name.

In a bucket nothing can be renamed: the objects of <step>.new are copied, the
seal last, and the seal is deleted first. So what has no seal is not a step
there, but the remains of a save or a deletion.
"""

import contextlib
import pathlib
import re
import shutil
from typing import Any

from txl_jax.program import buckets
from txl_jax.program.errors import UserError
from txl_jax.runs import seal

_UNFINISHED = re.compile(r'\d+\.(new|old|(new\.)?orbax-checkpoint-tmp.*)')
_STEP = re.compile(r'0|[1-9]\d*')


class Steps:
  """The steps in a folder, which need not exist."""

  def __init__(self, folder: str | pathlib.Path):
    """Takes a folder, or one in a bucket."""
    self.folder = buckets.place(folder).absolute()
    self.in_bucket = isinstance(self.folder, buckets.Path)

  def path(self, step: int, suffix: str = '') -> Any:
    """Where a step is."""
    return self.folder / f'{step}{suffix}'

  def steps(self) -> list[int]:
    """All steps, newest first, whole or not; UserError if not a folder."""
    if not self.folder.is_dir():
      if self.folder.exists():
        raise UserError(f'{self.folder} is no folder; move it away')
      return []
    names = (p.name for p in self.folder.iterdir() if p.is_dir())
    numbers = (int(n) for n in names if _STEP.fullmatch(n))
    return sorted(filter(self.is_there, numbers), reverse=True)

  def is_there(self, step: int) -> bool:
    """Whether there is such a step, whole or not."""
    path = self.path(step)
    return (path / seal.NAME if self.in_bucket else path).exists()

  def place(self, step: int) -> None:
    """Gives the sealed <step>.new the name of the step."""
    if self.is_there(step):
      self._retire(step)
    self._name(self.path(step, '.new'), step)

  def _name(self, path, step):
    final = self.path(step)
    if self.in_bucket:
      final.rmtree()  # the remains of a deletion
    path.rename(final)

  def _retire(self, step):
    if self.in_bucket:
      self.path(step).rmtree()
    else:
      self.path(step).rename(self.path(step, '.old'))

  def delete(self, *steps: int) -> None:
    """Deletes steps, and what `place` put aside."""
    for step in steps:
      self._retire(step)
    for path in self._unfinished():
      if path.suffix == '.old':
        remove(path)

  def recover(self) -> None:
    """Finishes or removes what an interrupted save left; for process 0."""
    for path in self._unfinished():
      name = path.with_suffix('').name
      if not _STEP.fullmatch(name) or self.is_there(int(name)):
        continue
      if not seal.damage(path, name=name):
        self._name(path, int(name))
    for path in self._unfinished():
      remove(path)

  def _unfinished(self):
    """What saving a step has made along the way, whole or not."""
    found = [*self.folder.iterdir()] if self.folder.is_dir() else []
    return [path for path in found if self._is_unfinished(path.name)]

  def _is_unfinished(self, name):
    if self.in_bucket and _STEP.fullmatch(name):
      return not self.is_there(int(name))
    return bool(_UNFINISHED.fullmatch(name))


def remove(path: pathlib.Path) -> None:
  """Removes a folder, file or link as far as possible."""
  if isinstance(path, buckets.Path):
    with contextlib.suppress(OSError):
      path.rmtree()
  elif path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    with contextlib.suppress(OSError):
      path.unlink()
