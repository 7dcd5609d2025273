"""The folder of a run's checkpoints: atomic saving, damage, deletion of steps.

A step is written as <step>.new and renamed to <step> once it is sealed. Before
deletion it is renamed to <step>.old, so <step> is never incomplete. A seal is a
file seal.json with the name of the folder, the size and CRC-32 of every other
file in it, and the SHA-256 of these entries.

In a bucket nothing can be renamed: the objects of <step>.new are copied, the
seal last, and a deletion removes the seal first. A folder without a seal is
therefore not a step but the remains of a save or deletion.
"""

import contextlib
import errno
import hashlib
import json
import pathlib
import re
import shutil
import zlib
from typing import Any

from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError

SEAL = 'seal.json'
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
    return (path / SEAL if self.in_bucket else path).exists()

  def is_intact(self, step: int) -> bool:
    """Whether a step has all files of its seal, with their sizes."""
    return not damage(self.path(step), read=False)

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
      remove(self.path(step, '.old'))  # a removal may have failed before
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
      if not damage(path, name=name):
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


def seal(folder: pathlib.Path, name: str) -> None:
  """Writes the seal of a complete folder; `name` is its final name."""
  paths = sorted(path for path in folder.rglob('*') if path.is_file())
  entries = {p.relative_to(folder).as_posix(): fingerprint(p) for p in paths}
  sealed = {'name': name, 'files': entries}
  files.write(folder / SEAL, json.dumps(sealed | {'sha256': _digest(sealed)}))


def damage(
  folder: pathlib.Path, item: str = '', read: bool = True, name: str = ''
) -> str:
  """Describes what is wrong with a sealed folder; '' if it is intact.

  With an item, only this subfolder is checked. Sizes are always compared,
  contents only if `read`. `name` is the sealed name, by default the folder's.
  """
  path = folder / SEAL
  if not path.exists():
    return 'it has no seal'
  try:
    sealed = files.read_json(path)
    digest = sealed.pop('sha256')
    entries = sealed['files']
    if digest != _digest(sealed):
      return f'{SEAL} is damaged'
    if (found := sealed['name']) != (name or folder.name):
      return f'it is a copy of {found}'
    # In a bucket, the listing includes all sizes.
    listing = (folder / item).rglob('*')
    paths = {x.relative_to(folder).as_posix(): x for x in listing}
    for part, (size, crc) in entries.items():
      wanted = not item or part.startswith(f'{item}/')
      path = paths.get(part, folder / part)
      if wanted and (why := _difference(path, size, crc, read)):
        return f'{part}{why}'
  except (UserError, *files.ODD) as e:
    if isinstance(e.__cause__, OSError) and _out_of_reach(folder, e.__cause__):
      raise
    return f'{SEAL} cannot be read'
  return ''


def _out_of_reach(path, error):
  """Whether the bucket, rather than a file in it, is the cause of an error."""
  return isinstance(path, buckets.Path) and error.errno != errno.ENOENT


def _difference(path, size, crc, read):
  """How a file differs from its entry in the seal; '' if it does not."""
  try:
    actual = path.stat().st_size
    if actual != size:
      return f' has {actual} bytes, expected {size}'
    if read and fingerprint(path)[1] != crc:
      return f' does not match the CRC-32 {crc}'
  except OSError as e:
    if _out_of_reach(path, e):
      raise
    return f': {e.strerror}'
  return ''


def digest(folder: pathlib.Path) -> str:
  """The SHA-256 in the seal of a folder; '' if there is no seal."""
  path = folder / SEAL
  sha256 = files.read_json(path).get('sha256') if path.exists() else ''
  return sha256 if isinstance(sha256, str) else ''


def _digest(sealed):
  return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def fingerprint(path: pathlib.Path) -> list[int]:
  """Size in bytes and CRC-32 of a file."""
  crc = 0
  with files.open_regular(path) as f:
    while block := f.read(1 << 20):
      crc = zlib.crc32(block, crc)
    return [f.tell(), crc]
