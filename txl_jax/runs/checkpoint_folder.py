"""The folder of a run's checkpoints: atomic saving and deletion of steps.

A step is written as <step>.new and renamed to <step> once it is sealed. Before
deletion it is renamed to <step>.old, so <step> is never incomplete.

In a bucket nothing can be renamed: the objects of <step>.new are copied, the
seal last, and a deletion removes the seal first. A folder without a seal is
therefore not a step but the remains of a save or deletion.
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
  """The steps in a folder, which need not exist yet."""

  def __init__(self, folder: str | pathlib.Path):
    """The folder may be in a bucket."""
    self.folder = buckets.place(folder).absolute()
    self.in_bucket = isinstance(self.folder, buckets.Path)

  def path(self, step: int, suffix: str = '') -> Any:
    """The path of a step's folder."""
    return self.folder / f'{step}{suffix}'

  def steps(self) -> list[int]:
    """All steps, even damaged, newest first; UserError if not a folder."""
    if not self.folder.is_dir():
      if self.folder.exists():
        raise UserError(f'{self.folder} is not a folder; move it away')
      return []
    names = (p.name for p in self.folder.iterdir() if p.is_dir())
    numbers = (int(n) for n in names if _STEP.fullmatch(n))
    return sorted(filter(self.is_there, numbers), reverse=True)

  def is_there(self, step: int) -> bool:
    """Whether a step exists, possibly damaged."""
    path = self.path(step)
    return (path / seal.NAME if self.in_bucket else path).exists()

  def commit(self, step: int) -> None:
    """Renames the sealed <step>.new to <step>."""
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
    """Deletes steps, and the old versions of steps that `commit` replaced."""
    for step in steps:
      self._retire(step)
    for path in self._unfinished():
      if path.suffix == '.old':
        remove(path)

  def recover(self) -> None:
    """Completes or removes interrupted saves; for process 0."""
    for path in self._unfinished():
      name = path.with_suffix('').name
      if not _STEP.fullmatch(name) or self.is_there(int(name)):
        continue
      if not seal.damage(path, name=name):
        self._name(path, int(name))
    for path in self._unfinished():
      remove(path)

  def _unfinished(self):
    """Paths of unfinished saves and deletions."""
    paths = [*self.folder.iterdir()] if self.folder.is_dir() else []
    return [path for path in paths if self._is_unfinished(path.name)]

  def _is_unfinished(self, name):
    if self.in_bucket and _STEP.fullmatch(name):
      return not self.is_there(int(name))
    return bool(_UNFINISHED.fullmatch(name))


def remove(path: pathlib.Path) -> None:
  """Removes a folder, file or link as far as possible."""
  with contextlib.suppress(OSError):
    if isinstance(path, buckets.Path):
      path.rmtree()
    elif path.is_dir() and not path.is_symlink():
      shutil.rmtree(path, ignore_errors=True)
    else:
      path.unlink()
