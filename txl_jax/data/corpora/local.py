"""Local files as splits of a corpus; the corpus pystdlib.

A corpus of bytes is exactly the joined text of its files, so bits per byte
are exact. In a corpus of words, the last line of a file gets a newline if it
lacks one, see `writing`. Files are read in chunks, so memory use does not grow
with the corpus.
"""

import bisect
import dataclasses
import hashlib
import itertools
import os
import pathlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txl_jax.data import plain_text
from txl_jax.data.data_config import SPLITS, Data
from txl_jax.program.errors import UserError
from txl_jax.program.files import open_regular, reading

_CHUNK = 1 << 20  # bytes read at a time

# Excluded from pystdlib: tests, packages added by pip or the distribution, and
# files generated when Python is built.
_SKIPPED = re.compile(
  'test|tests|idle_test|lib2to3|__pycache__|(site|dist)-packages|config-.*'
)


@dataclasses.dataclass(frozen=True)
class Part:
  """Bytes of a file from start to stop; calling it yields them in chunks."""

  path: pathlib.Path
  start: int
  stop: int
  size: int  # of the file
  # For a file that is not plain text: yields its text in chunks. Then start,
  # stop and size count bytes of this text.
  read: Callable[[], Iterator[bytes]] | None = None
  lines: bool = False  # whether `plain_text.lines` reads the plain bytes
  by_field: bool = False  # whether the text is in a field of records

  @classmethod
  def whole(
    cls, path: pathlib.Path, read: Callable[[], Iterator[bytes]] | None = None
  ) -> 'Part':
    """The whole file; with `read`, it is read once to get its size."""
    size = sum(map(len, read())) if read else path.stat().st_size
    return cls(path, 0, size, size, read)

  def __call__(self) -> Iterator[bytes]:
    """Yields the bytes in chunks; UserError if the file cannot be read."""
    at = 0 if self.read else self.start  # offset of the next chunk
    for chunk in self.read() if self.read else self._plain():
      if piece := chunk[max(self.start - at, 0) : self.stop - at]:
        yield piece
      at += len(chunk)
      if at >= self.stop:
        return

  def _plain(self):
    """The bytes of a plain file from start on."""
    with reading(f'{self.path}'), open_regular(self.path) as f:
      f.seek(self.start)
      chunks = iter(lambda: f.read(_CHUNK), b'')
      name = f'{self.path}'
      yield from plain_text.lines(chunks, name) if self.lines else chunks


@dataclasses.dataclass(frozen=True)
class Split:
  """Parts of files; calling it yields their concatenated bytes."""

  parts: tuple[Part, ...]

  def __call__(self) -> Iterator[bytes]:
    """Yields the bytes in chunks; UserError as in `Part.__call__`."""
    return itertools.chain.from_iterable(part() for part in self.parts)


Splits = dict[str, Split]


def read_pystdlib(root: str | os.PathLike) -> tuple[Splits, dict]:
  """The splits of the Python sources of a standard library; the manifest entry.

  The split of a file depends on the first 8 bytes of the sha256 of its relative
  posix path, as a big-endian number modulo 100: below 90 train, below 95
  validation, else test. So a file has the same split in all Python versions.
  Within a split, files are ordered by these hashes: streams that start at
  different positions then read different kinds of files, whereas ordering by
  path would group, for example, all character tables. The manifest entry
  includes the Python version. UserError if a file cannot be read.
  """
  root = pathlib.Path(root)
  files, _ = list_files(root)
  files = {name: x for name, x in files.items() if _is_library_source(name)}
  digests = {hashlib.sha256(name.encode()).digest(): name for name in files}
  parts = {split: [] for split in SPLITS}
  for digest in sorted(digests):
    number = int.from_bytes(digest[:8], 'big') % 100
    split = SPLITS[(number >= 90) + (number >= 95)]
    parts[split].append(files[digests[digest]])
  splits = {split: Split(tuple(part)) for split, part in parts.items()}
  return splits, source(root, files) | {'python': platform.python_version()}


def _is_library_source(path: str) -> bool:
  """Whether a relative path is a Python source that belongs to pystdlib."""
  *folders, name = path.split('/')
  is_source = name.endswith('.py') and not name.startswith('_sysconfigdata')
  return is_source and not any(map(_SKIPPED.fullmatch, folders))


def list_files(
  root: pathlib.Path, follow: Callable[[str], Any] = lambda name: False
) -> tuple[dict[str, Part], list[str]]:
  """Files below root, sorted by relative posix path; and paths left out.

  Hidden files and folders, special files, and links to folders are left out;
  but links whose name satisfies `follow` are followed, except below another
  link. Each Part is the plain bytes of a file.
  """

  def fail(error):
    raise UserError(f'{error.filename} cannot be read: {error.strerror}')

  files = {}
  left_out = []
  linked = set()
  for folder, inside, names in os.walk(root, onerror=fail, followlinks=True):
    parent = pathlib.Path(folder)
    for name in [*inside, *names]:
      path = parent / name
      link = path.is_symlink()
      followed = not link or (linked.isdisjoint(path.parents) and follow(name))
      # is_file is False for sockets, pipes and broken links.
      kept = followed if name in inside else path.is_file()
      relative = path.relative_to(root).as_posix()
      if name.startswith('.') or not kept:
        left_out.append(relative)
        inside[:] = [x for x in inside if x != name]
      elif name not in inside:
        files[relative] = Part.whole(path)
      elif link:
        linked.add(path)
  return dict(sorted(files.items())), sorted(left_out)


def between(files: Iterable[Part], start: int, stop: int) -> Split:
  """Bytes start to stop of the concatenated files."""
  parts, offset = [], 0  # offset of the file's first byte
  for file in files:
    at = max(start - offset, 0)
    end = min(stop - offset, file.size)
    if at < end:
      parts.append(dataclasses.replace(file, start=at, stop=end))
    offset += file.size
  return Split(tuple(parts))


def source(path: pathlib.Path, files: dict[str, Part]) -> dict:
  """The manifest entry for files, given by relative path."""
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


def text(path: pathlib.Path) -> Part:
  """A text file; UserError if it is not text, see `plain_text`."""
  with reading(f'{path}'), open_regular(path) as f:
    is_plain = not plain_text.mark(f, f'{path}')
  whole = Part.whole(path, None if is_plain else lambda: plain(path))
  return dataclasses.replace(whole, lines=is_plain)


def plain(path: pathlib.Path) -> Iterator[bytes]:
  """The text of a file in chunks, decompressed and decoded."""
  with reading(f'{path}'), open_regular(path) as f:
    yield from plain_text.chunks(f, f'{path}')


def documents(config: Data, path: pathlib.Path) -> Iterator[bytes]:
  """Yields the documents within a text file, without newlines around them."""
  parts = between_separators(plain(path), config.separator.encode() or b'\n')
  texts = (x.strip(b'\r\n') for x in parts)
  if config.documents == 'blank':
    groups = itertools.groupby(texts, lambda line: bool(line.strip()))
    texts = (b'\n'.join(lines) for filled, lines in groups if filled)
  yield from (x for x in texts if x.strip())


def between_separators(
  chunks: Iterable[bytes], separator: bytes
) -> Iterator[bytes]:
  """Yields the parts of a text before, between and after the separators."""
  rest, seen = bytearray(), 0  # no separator begins before `seen`
  for chunk in chunks:
    rest += chunk
    while (end := rest.find(separator, seen)) >= 0:
      yield bytes(rest[:end])
      del rest[: end + len(separator)]
      seen = 0
    seen = max(len(rest) - len(separator) + 1, 0)
  yield bytes(rest)


def each_document(config: Data, split: Split) -> Iterator[Iterator[bytes]]:
  """Yields the non-empty documents (files or records) of a split, in chunks."""
  for part in split.parts:
    if config.of_texts:
      # A chunk is a document, see `records.texts` and `documents`.
      yield from (iter([document]) for document in part() if document)
    elif part.size:
      yield part()


def document_ends(
  config: Data, parts: list[Part], wanted: list[int]
) -> list[int]:
  """Offsets, at ends of documents, at which the joined files are cut.

  Each is the first document end at or after the wanted offset, or the nearest
  that leaves every part a document; with too few, some parts are empty.
  """
  if config.of_texts:
    sizes = [len(x) for part in parts for x in part() if x]
  else:
    sizes = [part.size for part in parts if part.size]
  ends = [0, *itertools.accumulate(sizes)]
  last = 0
  cuts = []
  for i, offset in enumerate(wanted):
    latest = max(len(sizes) - len(wanted) + i, 0)
    last = min(max(bisect.bisect_left(ends, offset), last + 1), latest)
    cuts.append(ends[last])
  return cuts
