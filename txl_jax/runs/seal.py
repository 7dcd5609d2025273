"""Seals: checksums that detect missing or damaged files in a folder.

A seal is a file seal.json with the name of the folder, the size and CRC-32 of
every other file in it, and the SHA-256 of these entries.
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
  """Writes the seal of a complete folder; `name` is its final name."""
  paths = sorted(path for path in folder.rglob('*') if path.is_file())
  entries = {p.relative_to(folder).as_posix(): fingerprint(p) for p in paths}
  sealed = {'name': name, 'files': entries}
  files.write(folder / NAME, json.dumps(sealed | {'sha256': _digest(sealed)}))


def damage(
  folder: pathlib.Path, item: str = '', read: bool = True, name: str = ''
) -> str:
  """Describes what is wrong with a sealed folder; '' if it is intact.

  With an item, only this subfolder is checked. Sizes are always compared,
  contents only if `read`. `name` is the sealed name, by default the folder's.
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
    return f'{NAME} cannot be read'
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
  path = folder / NAME
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
