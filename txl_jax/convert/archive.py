"""The uncompressed members of a zip archive, as views of it.

zipfile copies what it reads, and keeps an object for every entry of whatever
directory it is given. This reads only the form that torch.save writes: nothing
compressed or encrypted, every name once.
"""

import struct
import zlib
from typing import NamedTuple

_END, _END64, _LOCATOR = b'PK\x05\x06', b'PK\x06\x06', b'PK\x06\x07'
_ENTRY, _LOCAL = b'PK\x01\x02', b'PK\x03\x04'
_MOST = 100_000  # members
_FULL = 0xFFFFFFFF  # the number is among the extra fields


class Member(NamedTuple):
  """Where the bytes of a member are, and their checksum."""

  start: int
  size: int
  crc: int


def members(data: memoryview) -> dict[str, Member]:
  """{name: member} of an archive; ValueError or struct.error if invalid."""
  count, start, size = _directory(data)
  if count > _MOST:
    raise ValueError(f'it has {count:,} members; allowed: {_MOST:,}')
  if start + size > len(data):
    raise ValueError('its directory is not whole')
  found, at = {}, start
  for _ in range(count):
    name, member, at = _entry(data, at)
    if name in found:
      raise ValueError(f'it has {name!r:.80} twice')
    if name.startswith('/') or '..' in name.replace('\\', '/').split('/'):
      raise ValueError(f'{name!r:.80} leads out of it')
    found[name] = member
  if at != start + size:
    raise ValueError('its directory has another length than it says')
  return found


def contents(data: memoryview, member: Member) -> memoryview:
  """The bytes of a member; ValueError if they differ from those written."""
  found = data[member.start : member.start + member.size]
  # torch writes 0 if it was asked not to compute checksums.
  if member.crc and zlib.crc32(found) != member.crc:
    raise ValueError('a checksum is wrong')
  return found


def _directory(data):
  """Number of entries, and where the directory starts; its size."""
  last = bytes(data[-(22 + 0xFFFF) :])
  place = last.rfind(_END)
  if place < 0:
    raise ValueError('it has no directory at its end')
  place += len(data) - len(last)
  count, size, start = struct.unpack_from('<HII', data, place + 10)
  if place >= 20 and bytes(data[place - 20 : place - 16]) == _LOCATOR:
    (place,) = struct.unpack_from('<Q', data, place - 12)
    if bytes(data[place : place + 4]) != _END64:
      raise ValueError('its directory cannot be found')
    count, size, start = struct.unpack_from('<QQQ', data, place + 32)
  return count, start, size


def _entry(data, at):
  """Name and member of an entry of the directory, and where the next one is."""
  if bytes(data[at : at + 4]) != _ENTRY:
    raise ValueError('its directory is damaged')
  flags, method = struct.unpack_from('<HH', data, at + 8)
  crc, packed, size, *lengths = struct.unpack_from('<IIIHHH', data, at + 16)
  (local,) = struct.unpack_from('<I', data, at + 42)
  n, extra, comment = lengths
  raw = bytes(data[at + 46 : at + 46 + n])
  name = raw.decode('utf-8', 'backslashreplace')
  if flags & 1 or method or packed != size:
    raise ValueError(f'{name!r:.80} is compressed or encrypted')
  size, local = _large(data[at + 46 + n :][:extra], size, packed, local)
  if bytes(data[local : local + 4]) != _LOCAL:
    raise ValueError(f'{name!r:.80} is not where the directory says')
  here, more = struct.unpack_from('<HH', data, local + 26)
  start = local + 30 + here + more
  if bytes(data[local + 30 : local + 30 + here]) != raw:
    raise ValueError(f'{name!r:.80} has another name in the directory')
  if start + size > len(data):
    raise ValueError(f'{name!r:.80} is not whole')
  return name, Member(start, size, crc), at + 46 + n + extra + comment


def _large(extra, size, packed, local):
  """Size and place, from the extra fields if they do not fit in 32 bits."""
  while len(extra) >= 4:
    kind, length = struct.unpack_from('<HH', extra)
    if kind == 1:
      numbers = list(struct.unpack_from(f'<{length // 8}Q', extra, 4))
      if size == _FULL:
        size = numbers.pop(0)
      if packed == _FULL and numbers.pop(0) != size:
        raise ValueError('a member is compressed')
      if local == _FULL:
        local = numbers.pop(0)
      break
    extra = extra[4 + length :]
  return size, local
