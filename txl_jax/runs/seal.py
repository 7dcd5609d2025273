"""A seal tells whether a folder is whole.

It is a file, seal.json, with the size and CRC-32 of every other file of the
folder, and the SHA-256 of that list.
"""

import hashlib
import json
import os
import pathlib
import zlib

NAME = 'seal.json'


def write(folder: pathlib.Path) -> None:
  """Seals a folder that is complete."""
  files = sorted(path for path in folder.rglob('*') if path.is_file())
  entries = {f.relative_to(folder).as_posix(): fingerprint(f) for f in files}
  with (folder / NAME).open('w') as f:
    json.dump({'files': entries, 'sha256': _digest(entries)}, f)
    f.flush()
    os.fsync(f.fileno())


def damage(folder: pathlib.Path, item: str = '', read: bool = True) -> str:
  """What is wrong with a sealed folder, in a few words; '' if nothing is.

  With an item, the folder in it of that name alone is looked at. Contents are
  read only if asked for: sizes are always compared.
  """
  try:
    found = json.loads((folder / NAME).read_bytes())
    entries, digest = found['files'], found['sha256']
  except FileNotFoundError:
    return 'it has no seal'
  except (OSError, ValueError, TypeError, KeyError):
    return f'{NAME} cannot be read'
  if digest != _digest(entries):
    return f'{NAME} is damaged'
  for name, expected in entries.items():
    if item and not name.startswith(f'{item}/'):
      continue
    path = folder / name
    try:
      found = fingerprint(path) if read else [path.stat().st_size]
    except OSError as e:
      return f'{name}: {e.strerror}'
    if found != expected[: len(found)]:
      return f'{name} has [bytes, CRC-32] {found}, expected {expected}'
  return ''


def when(folder: pathlib.Path) -> int:
  """When a folder was sealed, in ns; 0 if it was not."""
  path = folder / NAME
  return path.stat().st_mtime_ns if path.is_file() else 0


def _digest(entries):
  body = json.dumps(entries, sort_keys=True)
  return hashlib.sha256(body.encode()).hexdigest()


def fingerprint(path: pathlib.Path) -> list[int]:
  """Size in bytes and CRC-32 of a file."""
  crc = 0
  with path.open('rb') as f:
    while block := f.read(1 << 20):
      crc = zlib.crc32(block, crc)
    return [f.tell(), crc]
