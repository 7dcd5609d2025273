"""Reads untrusted files, and writes files atomically.

A file to read may be hostile: its size is limited, and a pipe or device, which
could block or never end, is refused. A written file gets its name only when it
is complete.
"""

import contextlib
import errno
import functools
import hashlib
import json
import mmap
import os
import pathlib
import stat
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from txl_jax.program import buckets, signals
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # maximum bytes of a file that is read into memory

# Exceptions raised by code that parses malformed data.
ODD = ValueError, TypeError, LookupError, AttributeError, ArithmeticError
ODD = *ODD, RecursionError

AnyPath = str | os.PathLike[str]


def open_regular(path: AnyPath) -> BinaryIO:
  """Opens a file for reading; OSError unless it is a regular file."""
  if isinstance(path, buckets.Path):
    return path.open_read()
  # Without O_NONBLOCK, opening a pipe waits for its writer.
  number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(number).st_mode):
    return os.fdopen(number, 'rb')
  os.close(number)
  raise _no_file(path)


def _no_file(path: AnyPath) -> OSError:
  kind = 'a folder' if os.path.isdir(path) else 'a pipe or device'
  return OSError(0, f'it is {kind}, not a file', str(path))


def read(path: AnyPath, name: str = '', largest: int = _LARGEST) -> bytes:
  """The contents of a file. UserError: see `reading` and `limited`."""
  name = name or f'{path}'
  with reading(name), open_regular(path) as f:
    return limited(f, name, largest)


def mapped(path: AnyPath) -> memoryview:
  """The bytes of a file, mapped into memory; UserError: see `reading`."""
  with reading(f'{path}'), open_regular(path) as f:
    if not os.fstat(f.fileno()).st_size:
      return memoryview(b'')
    return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


def limited(f: BinaryIO, name: str, largest: int) -> bytes:
  """The contents of a stream; UserError if it has more than `largest` bytes."""
  data = f.read(largest + 1)
  if len(data) > largest:
    raise UserError(f'{name} is larger than the limit of {largest:,} bytes')
  return data


def read_json(path: AnyPath, largest: int = _LARGEST) -> dict[str, Any]:
  """The JSON object in a file. UserError: see `read`, `parse_json`."""
  return parse_json(read(path, largest=largest), f'{path}')


def sha256(path: AnyPath) -> str:
  """The SHA-256 of a file, in hex; UserError: see `reading`."""
  with reading(f'{path}'), open_regular(path) as f:
    file: Any = f  # BinaryIO does not declare readinto
    return hashlib.file_digest(file, 'sha256').hexdigest()


def parse_json(data: bytes, name: str) -> dict[str, Any]:
  """Parses a JSON object; UserError, with `name`, for any other text."""
  try:
    value = json.loads(data)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{name} is not valid JSON: {e}') from e
  if not isinstance(value, dict):
    kind = type(value).__name__
    raise UserError(f'{name} holds a {kind}, not a JSON object')
  return value


def write(path: AnyPath, text: str, name: str = '') -> None:
  """Writes a text, whole or not at all; UserError: see `writing`."""
  with writing(name or f'{path}'), replacing(path) as f:
    f.write(text.encode())


@contextlib.contextmanager
def reading(name: str, verb: str = 'read') -> Iterator[None]:
  """Turns an OSError of the block into a UserError that names the file."""
  try:
    yield
  except OSError as e:
    raise UserError(f'{name} cannot be {verb}: {e.strerror}') from e


writing = functools.partial(reading, verb='written')


@contextlib.contextmanager
def naming(path: AnyPath) -> Iterator[None]:
  """Adds the path to an OSError of the block: a failed write lacks it."""
  try:
    yield
  except OSError as e:
    if e.errno and e.filename is None:
      e.filename = str(path)
    raise


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
  """Opens a new file that replaces `path` at the end of the block.

  If the block fails, the new file is removed and the old one stays. OSError: it
  cannot be written, or `path` is a folder, pipe or device.
  """
  if isinstance(path, buckets.Path):  # an upload is atomic
    with tempfile.TemporaryFile() as f:
      yield cast(BinaryIO, f)
      path.upload(f)
    return
  path = pathlib.Path(path)
  if path.exists() and not path.is_file():
    raise _no_file(path)
  # An unused name, so that no file or link of the user is opened.
  temporary = path.with_name(f'{path.name}.{uuid.uuid4().hex[:12]}.tmp')
  f = temporary.open('xb')
  try:
    yield f
    f.flush()
    os.fsync(f.fileno())
    f.close()
    temporary.replace(path)
  except BaseException:
    with contextlib.suppress(OSError):
      temporary.unlink()
    with contextlib.suppress(OSError):  # flushing may fail again
      f.close()
    raise


@contextlib.contextmanager
def new_folder(
  path: pathlib.Path, replace: bool = False
) -> Iterator[pathlib.Path]:
  """Makes a new folder that is renamed to `path` at the end of the block.

  Until then it is in PATH.tmp-* on the same disk; a killed process leaves that
  behind. If the block fails, an old folder stays. FileExistsError: the path
  exists, unless `replace`.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = tempfile.TemporaryDirectory(
    prefix=f'{path.name}.tmp-', dir=path.parent, ignore_cleanup_errors=True
  )
  with signals.unwinding(), temporary as folder:
    new, old = pathlib.Path(folder, 'new'), pathlib.Path(folder, 'replaced')
    new.mkdir()
    yield new
    if replace and os.path.lexists(path):
      path.rename(old)
    try:
      new.rename(path)
    except OSError as e:
      if os.path.lexists(path):
        name = os.strerror(errno.EEXIST)
        raise FileExistsError(errno.EEXIST, name, str(path)) from e
      if old.exists():
        old.rename(path)
      raise
