"""Corpora made from files of this machine: pystdlib and text.

A corpus of bytes is the plain concatenation of the bytes of its files, so that
bits per byte are honest. A corpus of words is read file by file, see `Split`.
Files are read in pieces: memory does not grow with the corpus.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import platform
import re
from collections.abc import Iterable, Iterator

from txl_jax.data.options import SPLITS
from txl_jax.errors import UserError
from txl_jax.files import open_regular

_CHUNK = 1 << 20  # bytes read at a time
_WINDOW = 4096  # bytes within which a cut looks for the start of a line
_SPACE = re.compile(rb'[ \t\n\r\v\f]')  # none is part of a UTF-8 character

# Of the standard library: tests, what pip or the distribution adds, and what
# is made when Python is built.
_SKIPPED = re.compile(
  'test|tests|idle_test|lib2to3|__pycache__|(site|dist)-packages|config-.*'
)


@dataclasses.dataclass(frozen=True)
class Part:
  """Bytes of a file, from start to stop; called, it gives them in chunks."""

  path: pathlib.Path
  start: int
  stop: int
  size: int  # of the file

  @classmethod
  def whole(cls, path: pathlib.Path) -> 'Part':
    """All of a file."""
    size = path.stat().st_size
    return cls(path, 0, size, size)

  @property
  def begins(self) -> bool:
    """Whether the file begins here."""
    return self.start == 0

  @property
  def ends(self) -> bool:
    """Whether the file ends here; else the text goes on in the next split."""
    return self.stop == self.size

  def first_line(self) -> int:
    """Number, in the file, of the line that the part begins with."""
    if self.begins:
      return 1
    before = Part(self.path, 0, self.start, self.size)
    return 1 + sum(chunk.count(b'\n') for chunk in before())

  def __call__(self) -> Iterator[bytes]:
    """The bytes; UserError if the file is shorter by now or cannot be read."""
    at = self.start
    try:
      with open_regular(self.path) as f:
        f.seek(at)
        while at < self.stop:
          chunk = f.read(min(_CHUNK, self.stop - at))
          if not chunk:
            raise UserError(f'{self.path} became shorter while it was read')
          at += len(chunk)
          yield chunk
    except OSError as e:
      raise UserError(f'{self.path} cannot be read: {e.strerror}') from e


@dataclasses.dataclass(frozen=True)
class Split:
  """Parts of files; called, it gives their bytes, end to end."""

  parts: tuple[Part, ...]

  def __call__(self) -> Iterator[bytes]:
    """The bytes in chunks; UserError as in `Part.__call__`."""
    return itertools.chain.from_iterable(part() for part in self.parts)


Splits = dict[str, Split]


def read_pystdlib(root: str | os.PathLike) -> tuple[Splits, dict]:
  """The Python sources of a standard library, split by file.

  A file goes by the first 8 bytes of the sha256 of its relative posix path,
  taken as a big-endian number modulo 100: below 90 train, below 95 validation,
  else test. So files keep their split from one Python version to the next.
  Within a split they are in the order of these hashes: streams that start at
  different places then differ in what they read, where the order of the paths
  would keep, say, all character tables together. The source has the Python
  version besides; a UserError is as by `read_text`.
  """
  root = pathlib.Path(root)
  files = _list(root, _is_library_source)
  digests = {hashlib.sha256(name.encode()).digest(): name for name in files}
  parts = {split: [] for split in SPLITS}
  for digest in sorted(digests):
    number = int.from_bytes(digest[:8], 'big') % 100
    split = SPLITS[(number >= 90) + (number >= 95)]
    parts[split].append(files[digests[digest]])
  for split, part in parts.items():
    if not any(file.size for file in part):
      raise UserError(f'{root}: no Python source for the split {split}')
  splits = {split: Split(tuple(part)) for split, part in parts.items()}
  return splits, _source(root, files) | {'python': platform.python_version()}


def read_text(
  path: str | os.PathLike, words: bool = False
) -> tuple[Splits, dict]:
  """A file, or all files below a folder, cut at 90 and 95 percent.

  The files of a folder are concatenated in the order of their relative posix
  paths; hidden files and folders and links to folders are skipped. Each cut
  is moved from its offset to the first start of a line at or after it, or, if
  there is none within 4096 bytes, to the first byte there that continues no
  UTF-8 character. A text of words is cut after white space instead, however
  far that is, and the end of a file is also that of a line. A UserError tells
  of a path that cannot be read or gives no three splits. The source has path,
  number of files, bytes, and a sha256 over relative paths, sizes and contents.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    found = _list(path, lambda relative: True)
  elif path.is_file():
    found = {path.name: Part.whole(path)}
  else:
    what = 'is a pipe or device' if path.exists() else 'does not exist'
    raise UserError(f'data.path: {path} {what}; allowed: a file or folder')
  files = list(found.values())
  total = sum(file.size for file in files)
  if not total:
    raise UserError(f'data.path: {path} holds no text, its files have 0 bytes')
  cuts = [0, *(_cut(files, total * p // 100, words) for p in (90, 95)), total]
  parts = list(itertools.pairwise(cuts))
  if any(start >= stop for start, stop in parts):
    raise UserError(
      f'data.path: {path} has {total} bytes, too few lines to cut it into '
      'train, validation and test'
    )
  splits = zip(SPLITS, (between(files, *part) for part in parts))
  return dict(splits), _source(path, found)


def _is_library_source(relative):
  """Whether a path is a Python source that pystdlib does not skip."""
  *folders, name = relative.parts
  is_source = name.endswith('.py') and not name.startswith('_sysconfigdata')
  return is_source and not any(map(_SKIPPED.fullmatch, folders))


def _list(root, wanted) -> dict[str, Part]:
  """Files below root that are not hidden, by relative posix paths, sorted."""

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
        found[relative.as_posix()] = Part.whole(path)
  return dict(sorted(found.items()))


def between(files: Iterable[Part], start: int, stop: int) -> Split:
  """Bytes start to stop of the concatenated files, as far as they go."""
  parts, offset = [], 0  # of the file's first byte
  for file in files:
    at, end = max(start - offset, 0), min(stop - offset, file.size)
    if at < end:
      parts.append(dataclasses.replace(file, start=at, stop=end))
    offset += file.size
  return Split(tuple(parts))


def _cut(files: list[Part], offset: int, words: bool) -> int:
  """Where the cut wanted at an offset is made, see `read_text`."""
  ends = list(itertools.accumulate(file.size for file in files))
  total = ends[-1]
  # A cut of words goes no further than the end of the file.
  end = next(n for n in ends if n >= offset) if words else total
  start, stop = max(offset - 1, 0), min(offset + _WINDOW, end)
  window = b''.join(between(files, start, stop)())
  if line := window.find(b'\n') + 1:
    return start + line
  if not words:
    while offset < stop and window[offset - start] & 0xC0 == 0x80:
      offset += 1
    return offset
  if end <= offset + _WINDOW and end < total:
    return end
  for chunk in between(files, start, end)():
    if space := _SPACE.search(chunk):
      return start + space.end()
    start += len(chunk)
  return end


def _source(path: pathlib.Path, files: dict[str, Part]) -> dict:
  """What the manifest says about files, by their relative paths."""
  digest = hashlib.sha256()
  for name, file in files.items():
    digest.update(f'{name}\0{file.size}\0'.encode('utf-8', 'surrogateescape'))
    for chunk in file():
      digest.update(chunk)
  return {
    'path': str(path),
    'files': len(files),
    'bytes': sum(file.size for file in files.values()),
    'sha256': digest.hexdigest(),
  }
