"""A seal shows whether a folder is whole.

It is a file, seal.json, with the name of the folder, the size and CRC-32 of
every other file in it, and the SHA-256 of all this.
"""

import errno
import hashlib
import json
import pathlib
import zlib

from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError

NAME = 'seal.json'


def write(folder: pathlib.Path, name: str) -> None:
  """Seals a complete folder that is, or will be, called `name`."""
  paths = sorted(path for path in folder.rglob('*') if path.is_file())
  entries = {p.relative_to(folder).as_posix(): fingerprint(p) for p in paths}
  sealed = {'name': name, 'files': entries}
  files.write(folder / NAME, json.dumps(sealed | {'sha256': _digest(sealed)}))


def damage(
  folder: pathlib.Path, item: str = '', read: bool = True, name: str = ''
) -> str:
  """What is wrong with a sealed folder, in a few words; '' if nothing is.

  With an item, only the folder of that name in it is checked. Sizes are always
  compared, contents with `read`. The folder was sealed as `name`, or its own.
  """
  path = folder / NAME
  if not path.exists():
    return 'it has no seal'
  try:
    sealed = files.read_json(path)
    digest, entries = sealed.pop('sha256'), sealed['files']
    if digest != _digest(sealed):
      return f'{NAME} is damaged'
    if (found := sealed['name']) != (name or folder.name):
      return f'it is a copy of {found}'
    # In a bucket the listing includes the sizes of all files.
    below = (folder / item).rglob('*')
    there = {x.relative_to(folder).as_posix(): x for x in below}
    for part, (size, crc) in entries.items():
      wanted = not item or part.startswith(f'{item}/')
      path = there.get(part, folder / part)
      if wanted and (why := _difference(path, size, crc, read)):
        return f'{part}{why}'
  except (UserError, *files.ODD) as e:
    if isinstance(e.__cause__, OSError) and _out_of_reach(folder, e.__cause__):
      raise
    return f'{NAME} cannot be read'
  return ''


def _out_of_reach(path, error):
  """Whether an error says nothing about a file: a bucket does not answer."""
  return isinstance(path, buckets.Path) and error.errno != errno.ENOENT


def _difference(path, size, crc, read):
  """How a file differs from what was sealed; '' if it does not."""
  try:
    found = path.stat().st_size
    if found != size:
      return f' has {found} bytes, expected {size}'
    if read and fingerprint(path)[1] != crc:
      return f' has not the CRC-32 {crc}'
  except OSError as e:
    if _out_of_reach(path, e):
      raise
    return f': {e.strerror}'
  return ''


def digest(folder: pathlib.Path) -> str:
  """The SHA-256 in the seal of a folder; '' if it has none."""
  path = folder / NAME
  found = files.read_json(path).get('sha256') if path.exists() else ''
  return found if isinstance(found, str) else ''


def _digest(sealed):
  return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def fingerprint(path: pathlib.Path) -> list[int]:
  """Size in bytes and CRC-32 of a file."""
  crc = 0
  with files.open_regular(path) as f:
    while block := f.read(1 << 20):
      crc = zlib.crc32(block, crc)
    return [f.tell(), crc]
