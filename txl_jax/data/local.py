"""Corpora made from files of this machine: pystdlib and text.

A corpus is the plain concatenation of the bytes of its files; nothing is put
between two files and nothing is changed, so that bits per byte are honest.
Files are read in pieces: memory does not grow with the corpus.
"""

import functools
import hashlib
import os
import pathlib
import platform
from collections.abc import Callable, Iterable, Iterator

from txl_jax.errors import UserError

_CHUNK = 1 << 20  # bytes read at a time
_WINDOW = 4096  # bytes within which a cut looks for the start of a line

# Of the standard library: tests, what pip or the distribution adds, and what
# is made when Python is built.
_SKIPPED_DIRS = frozenset(
  {
    'test',
    'tests',
    'idle_test',
    'site-packages',
    'dist-packages',
    'lib2to3',
    '__pycache__',
  }
)

File = tuple[pathlib.Path, int]  # a file and its size in bytes
Splits = dict[str, Callable[[], Iterator[bytes]]]


def read_pystdlib(root: str | os.PathLike) -> tuple[Splits, dict]:
  """The Python sources of a standard library, split by file.

  A file goes by the first 8 bytes of the sha256 of its relative posix path,
  taken as a big-endian number modulo 100: below 90 train, below 95
  validation, else test. So files keep their split from one Python version to
  the next. Within a split they are in the order of these hashes: streams
  that start at different places of it then differ in what they read, where
  the order of the paths would keep, say, all character tables together.

  Args:
    root: the library's folder, `sysconfig.get_path('stdlib')`.

  Returns:
    See `read_text`; the source has the Python version besides.

  Raises:
    UserError: a file cannot be read, or a split has no bytes.
  """
  root = pathlib.Path(root)
  relative = lambda file: file[0].relative_to(root).as_posix()
  files = _list(root, _is_library_source)
  parts = {'train': [], 'validation': [], 'test': []}
  for file in sorted(files, key=lambda file: _digest(relative(file))):
    parts[split_of(relative(file))].append(file)
  splits = {}
  for split, part in parts.items():
    size = sum(n for _, n in part)
    if not size:
      raise UserError(f'{root}: no Python source for the split {split}')
    splits[split] = functools.partial(_read, part, 0, size)
  source = _source(root, root, files) | {'python': platform.python_version()}
  return splits, source


def split_of(relative_path: str) -> str:
  """The split of a file of pystdlib, see `read_pystdlib`."""
  number = int.from_bytes(_digest(relative_path)[:8], 'big') % 100
  return 'train' if number < 90 else 'validation' if number < 95 else 'test'


def _digest(relative_path):
  return hashlib.sha256(relative_path.encode()).digest()


def read_text(path: str | os.PathLike) -> tuple[Splits, dict]:
  """A file, or all files below a folder, cut at 90 and 95 percent.

  The files of a folder are concatenated in the order of their relative posix
  paths; hidden files and folders and links to folders are skipped. Each cut
  is moved from its offset to the first start of a line at or after it, or, if
  there is none within 4096 bytes, to the first byte there that continues no
  UTF-8 character.

  Args:
    path: a file or folder.

  Returns:
    For each split, in order, a function that gives the split's bytes in
    chunks; and what is known about the source: path, number of files, bytes,
    and the sha256 over the files' relative paths, sizes and contents.

  Raises:
    UserError: the path does not exist, cannot be read, has no bytes or too
      few for three splits.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    root, files = path, _list(path, lambda relative: True)
  elif path.is_file():
    root, files = path.parent, [(path, path.stat().st_size)]
  else:
    raise UserError(f'data.path: {path} does not exist')
  total = sum(n for _, n in files)
  if not total:
    raise UserError(f'data.path: {path} holds no text, its files have 0 bytes')
  first, second = (_cut(files, total * p // 100, total) for p in (90, 95))
  if not 0 < first < second < total:
    raise UserError(
      f'data.path: {path} has {total} bytes, too few lines to cut it into '
      'train, validation and test'
    )
  splits = {
    'train': functools.partial(_read, files, 0, first),
    'validation': functools.partial(_read, files, first, second),
    'test': functools.partial(_read, files, second, total),
  }
  return splits, _source(path, root, files)


def _is_library_source(relative: pathlib.PurePath) -> bool:
  """Whether a path is a Python source that pystdlib does not skip."""
  return (
    relative.suffix == '.py'
    and not relative.name.startswith('_sysconfigdata')
    and not any(
      d in _SKIPPED_DIRS or d.startswith('config-') for d in relative.parts[:-1]
    )
  )


def _list(
  root: pathlib.Path, wanted: Callable[[pathlib.PurePath], bool]
) -> list[File]:
  """The wanted files below root, neither hidden nor in a hidden folder."""

  def fail(error):
    raise UserError(f'{error.filename} cannot be read: {error.strerror}')

  found = {}
  for folder, subfolders, names in os.walk(root, onerror=fail):
    subfolders[:] = [d for d in subfolders if not d.startswith('.')]
    for name in names:
      path = pathlib.Path(folder, name)
      relative = path.relative_to(root)
      # is_file leaves out sockets, pipes and links that lead nowhere.
      if not name.startswith('.') and wanted(relative) and path.is_file():
        found[relative.as_posix()] = path, path.stat().st_size
  return [found[relative] for relative in sorted(found)]


def _read(files: Iterable[File], start: int, stop: int) -> Iterator[bytes]:
  """Bytes start to stop of the concatenated files, in chunks.

  Raises:
    UserError: a file cannot be read or is shorter than its size in `files`.
  """
  offset = 0  # of the file's first byte
  for path, size in files:
    at, end = max(start - offset, 0), min(stop - offset, size)
    offset += size
    if at >= end:
      continue
    try:
      with path.open('rb') as f:
        f.seek(at)
        while at < end:
          chunk = f.read(min(_CHUNK, end - at))
          if not chunk:
            raise UserError(f'{path} became shorter while it was read')
          at += len(chunk)
          yield chunk
    except OSError as e:
      raise UserError(f'{path} cannot be read: {e.strerror}') from e


def _cut(files: list[File], offset: int, total: int) -> int:
  """Where the cut wanted at an offset is made, see `read_text`."""
  start = max(offset - 1, 0)
  stop = min(offset + _WINDOW, total)
  window = b''.join(_read(files, start, stop))
  newline = window.find(b'\n')
  if newline >= 0:
    return start + newline + 1
  while offset < stop and window[offset - start] & 0xC0 == 0x80:
    offset += 1
  return offset


def _source(path: pathlib.Path, root: pathlib.Path, files: list[File]) -> dict:
  """What the manifest tells about the files below root."""
  digest = hashlib.sha256()
  for file, size in files:
    name = file.relative_to(root).as_posix()
    digest.update(f'{name}\0{size}\0'.encode('utf-8', 'surrogateescape'))
    for chunk in _read([(file, size)], 0, size):
      digest.update(chunk)
  return {
    'path': str(path),
    'files': len(files),
    'bytes': sum(n for _, n in files),
    'sha256': digest.hexdigest(),
  }
