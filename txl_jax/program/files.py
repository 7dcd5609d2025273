"""Files that anyone may have written, and files that must be whole.

What is read may be hostile: it is held to a size, and a pipe or device, which
could block or never end, is no file. What is written has its name only when it
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

from txl_jax.program import buckets, terminal
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # bytes of a file that is read into memory

# What data of another form raise where they are used.
ODD = ValueError, TypeError, LookupError, AttributeError, ArithmeticError
ODD = *ODD, RecursionError

AnyPath = str | os.PathLike[str]


def open_regular(path: AnyPath) -> BinaryIO:
  """A file, opened for reading; OSError if it is not there, or none."""
  if isinstance(path, buckets.Path):
    return path.open_read()
  # Without O_NONBLOCK, opening a pipe waits for who writes into it.
  number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  if stat.S_ISREG(os.fstat(number).st_mode):
    return os.fdopen(number, 'rb')
  os.close(number)
  raise _no_file(path)


def _no_file(path):
  kind = 'a folder' if os.path.isdir(path) else 'a pipe or device'
  return OSError(0, f'it is {kind}, no file', str(path))


def read(path: AnyPath, name: str = '', largest: int = _LARGEST) -> bytes:
  """The contents of a file; UserError as from `reading` and `limited`."""
  name = name or f'{path}'
  with reading(name), open_regular(path) as f:
    return limited(f, name, largest)


def mapped(path: AnyPath) -> memoryview:
  """The bytes of a file, mapped into memory; UserError as from `reading`."""
  with reading(f'{path}'), open_regular(path) as f:
    if not os.fstat(f.fileno()).st_size:
      return memoryview(b'')
    return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


def limited(f: BinaryIO, name: str, largest: int) -> bytes:
  """The contents of a stream; UserError if they have more bytes."""
  data = f.read(largest + 1)
  if len(data) > largest:
    raise UserError(f'{name} has more than {largest:,} bytes, which is refused')
  return data


def read_json(path: AnyPath) -> dict[str, Any]:
  """The JSON object in a file; UserError if there is none, or as by `read`."""
  return parse_json(read(path), f'{path}')


def sha256(path: AnyPath) -> str:
  """The SHA-256 of a file, in hex; UserError as from `reading`."""
  with reading(f'{path}'), open_regular(path) as f:
    file: Any = f  # with readinto, which its type does not tell
    return hashlib.file_digest(file, 'sha256').hexdigest()


def parse_json(data: bytes, name: str) -> dict[str, Any]:
  """The JSON object in a text; UserError, which calls it `name`, for others."""
  try:
    found = json.loads(data)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{name} is damaged, it is no JSON: {e}') from e
  if not isinstance(found, dict):
    kind = type(found).__name__
    raise UserError(f'{name} is damaged: it holds a {kind}, no JSON object')
  return found


def write(path: AnyPath, text: str, name: str = '') -> None:
  """Writes a text, whole or not at all; UserError as from `writing`."""
  with writing(name or f'{path}'), replacing(path) as f:
    f.write(text.encode())


@contextlib.contextmanager
def reading(name: str, what: str = 'read') -> Iterator[None]:
  """Raises a UserError that names the file for an OSError of the block."""
  try:
    yield
  except OSError as e:
    raise UserError(f'{name} cannot be {what}: {e.strerror}') from e


writing = functools.partial(reading, what='written')


@contextlib.contextmanager
def naming(path: AnyPath) -> Iterator[None]:
  """Puts a path into an OSError of the block: a failed write tells none."""
  try:
    yield
  except OSError as e:
    if e.errno and e.filename is None:
      e.filename = str(path)
    raise


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
  """A new file that gets its name when it is whole, at the end of the block.

  If the block fails it is removed, and what had the name keeps it. OSError: it
  cannot be written, or the name is not that of a file.
  """
  if isinstance(path, buckets.Path):  # where an object is never half there
    with tempfile.TemporaryFile() as f:
      yield cast(BinaryIO, f)
      path.upload(f)
    return
  path = pathlib.Path(path)
  if path.exists() and not path.is_file():
    raise _no_file(path)
  # A name that nobody has: neither a file nor a link of the user's is opened.
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
    with contextlib.suppress(OSError):  # what is left would fail again
      f.close()
    raise


@contextlib.contextmanager
def new_folder(
  path: pathlib.Path, replace: bool = False
) -> Iterator[pathlib.Path]:
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
