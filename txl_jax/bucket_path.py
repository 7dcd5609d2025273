"""A name in a bucket of Google Cloud Storage, as a path.

A bucket has objects, no folders: a folder is there while an object has a name
that begins with its own and '/'. An object appears whole or not at all, and
what was written is seen by all at once; but nothing can be appended to it, and
of several objects none are written together. So a folder that must be whole has
one, of MARKS, that is written last and deleted first.

What fails is an OSError with its path.
"""

import concurrent.futures
import contextlib
import errno
import fnmatch
import functools
import http.client
import importlib
import io
import os
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txl_jax.errors import first_line

SCHEME = 'gs://'
MARKS = 'seal.json', 'manifest.json'
_BUFFER = 1 << 24  # bytes that are read at once
_AT_ONCE = 8  # objects that are copied or deleted
_NUMBERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


def _google(module: str) -> Any:
  """A module of the client, which is not always installed."""
  return importlib.import_module(f'google.{module}')


@functools.cache
def _bucket(name):
  return _google('cloud.storage').Client().bucket(name)


@functools.cache
def _retry():
  """Tries again for two minutes where a bucket cannot answer."""
  return _google('cloud.storage.retry').DEFAULT_RETRY


@contextlib.contextmanager
def told(path: Any) -> Iterator[None]:
  """Makes what the client of the bucket raises an OSError."""
  try:
    yield
  except Exception as e:
    if isinstance(e, OSError) and e.filename is not None:
      raise  # it has a path
    why, number = first_line(e)[:200], errno.EIO
    code = getattr(e, 'code', None)
    if code in http.client.responses:  # of google.api_core.exceptions
      why = f'the bucket answers {code:d} {http.client.responses[code]}'
      number = _NUMBERS.get(code, number)
    raise OSError(number, why, f'{path}') from e


class Path:
  """A name in a bucket, as a path."""

  def __init__(self, text: str, blob: Any = None):
    """Of gs://BUCKET/NAME; the blob is that which a list had."""
    bucket, _, name = text.removeprefix(SCHEME).partition('/')
    parts = [part for part in name.split('/') if part]
    self._bucket_name, self.key, self._blob = bucket, '/'.join(parts), blob

  def __str__(self) -> str:
    return f'{SCHEME}{self._bucket_name}/{self.key}'.rstrip('/')

  __fspath__ = __str__

  def __repr__(self) -> str:
    return f'Path({str(self)!r})'

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Path) and str(self) == str(other)

  def __lt__(self, other: 'Path') -> bool:
    return str(self) < str(other)

  def __hash__(self) -> int:
    return hash(str(self))

  def __truediv__(self, name: Any) -> 'Path':
    return Path(f'{self}/{name}')

  @property
  def name(self) -> str:
    """The last part."""
    return self.key.rpartition('/')[2]

  @property
  def suffix(self) -> str:
    """The end of the name, from its last dot on."""
    return pathlib.PurePosixPath(self.name).suffix

  @property
  def parent(self) -> 'Path':
    """The folder that it is in."""
    return Path(f'{SCHEME}{self._bucket_name}/{self.key.rpartition("/")[0]}')

  def with_name(self, name: str) -> 'Path':
    """Another name in the same folder."""
    return self.parent / name

  def with_suffix(self, suffix: str) -> 'Path':
    """The name with another end."""
    return self.with_name(self.name.removesuffix(self.suffix) + suffix)

  def relative_to(self, folder: 'Path') -> pathlib.PurePosixPath:
    """The path from a folder on."""
    return pathlib.PurePosixPath(self.key).relative_to(folder.key)

  def absolute(self) -> 'Path':
    """Itself."""
    return self

  resolve = absolute

  def _object(self) -> Any:
    return _bucket(self._bucket_name).blob(self.key)

  def _found(self) -> Any:
    """The object with its size, as the bucket says; None without."""
    with told(self):
      return self._blob or _bucket(self._bucket_name).get_blob(self.key)

  def _below(self, **how: Any) -> Any:
    prefix = f'{self.key}/' if self.key else ''
    return _bucket(self._bucket_name).list_blobs(prefix=prefix, **how)

  def is_file(self) -> bool:
    """Whether there is such an object."""
    return self._found() is not None

  def is_dir(self) -> bool:
    """Whether there are objects below."""
    if self._blob:
      return False
    with told(self):
      return any(True for _ in self._below(max_results=1))

  def exists(self) -> bool:
    """Whether it is either."""
    return self.is_file() or self.is_dir()

  def stat(self) -> Any:
    """Its size, and as its time the generation: another for each content."""
    blob = self._found()
    if blob is None:
      raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
    of = dict(st_size=blob.size, st_mtime_ns=blob.generation)
    return types.SimpleNamespace(**of)

  lstat = stat

  def iterdir(self) -> Iterator['Path']:
    """What is in the folder."""
    with told(self):
      found = self._below(delimiter='/')
      blobs = [blob for blob in found if not blob.name.endswith('/')]
      below = sorted(found.prefixes)
    root = f'{SCHEME}{self._bucket_name}'
    yield from (Path(f'{root}/{blob.name}', blob) for blob in blobs)
    yield from (Path(f'{root}/{name}') for name in below)

  def glob(self, pattern: str) -> Iterator['Path']:
    """What is in the folder and has such a name."""
    return (x for x in self.iterdir() if fnmatch.fnmatchcase(x.name, pattern))

  def rglob(self, pattern: str) -> Iterator['Path']:
    """All objects in the folder and below, no folders."""
    assert pattern == '*'
    with told(self):
      blobs = [x for x in self._below() if not x.name.endswith('/')]
    root = f'{SCHEME}{self._bucket_name}'
    yield from (Path(f'{root}/{blob.name}', blob) for blob in blobs)

  def open_read(self) -> io.BufferedReader:
    """The object as it is now, opened for reading."""
    blob = self._found()
    if blob is None:
      raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
    return io.BufferedReader(_Reader(self, blob), _BUFFER)

  def upload(self, file: Any) -> None:
    """Writes a local file, open for reading, from its beginning."""
    size = file.seek(0, os.SEEK_END)  # without it, two calls for a small file
    with told(self):
      how = dict(rewind=True, size=size, retry=_retry())
      self._object().upload_from_file(file, **how)

  def write_over(self, generation: int, data: bytes) -> int:
    """Writes an object if it is that of a generation; 0 is none.

    Its new generation, or 0 if it was another. An answer that was lost makes
    it another one, too, though it is written.
    """
    exceptions = _google('api_core.exceptions')
    with told(self):
      blob = self._object()
      try:
        how = dict(if_generation_match=generation, retry=_retry())
        blob.upload_from_string(data, **how)
      except exceptions.PreconditionFailed:
        return 0
      return int(blob.generation)

  def delete(self, generation: int) -> None:
    """Deletes an object if it is that of a generation."""
    with told(self):
      self._object().delete(if_generation_match=generation)

  def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
    """Does nothing, as `rmdir`: a bucket has no folders."""

  def rmdir(self) -> None:
    """Does nothing."""

  def unlink(self, missing_ok: bool = False) -> None:
    """Deletes the object."""
    exceptions = _google('api_core.exceptions')
    with told(self):
      try:
        self._object().delete(retry=_retry())
      except exceptions.NotFound:
        if not missing_ok:
          raise

  def rmtree(self) -> None:
    """Deletes all below, what marks it as whole first."""
    found = sorted(self.rglob('*'), key=lambda x: x.name not in MARKS)
    marks = [x for x in found if x.name in MARKS]
    for mark in marks:
      mark.unlink(missing_ok=True)
    each(lambda x: x.unlink(missing_ok=True), found[len(marks) :])

  def rename(self, new: Any) -> None:
    """Copies an object, or all below, and then deletes it.

    What marks a folder as whole is copied last. The copying is the bucket's.
    """
    if (blob := self._found()) is not None:
      _copy(blob, new)
      self.unlink(missing_ok=True)
      return
    found = [*self.rglob('*')]
    for last in False, True:
      some = [x for x in found if (x.name in MARKS) == last]
      each(lambda x: _copy(x._blob, new / x.relative_to(self)), some)
    self.rmtree()


def _copy(blob, new):
  """Copies an object within Cloud Storage, which may take several calls."""
  with told(new):
    made, token = new._object(), ''
    while token is not None:
      token, *_ = made.rewrite(blob, token=token or None, retry=_retry())


def each(function: Callable[[Path], Any], paths: Iterable[Path]) -> None:
  """Calls a function with every path, several at once; raises what one does."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    for _ in pool.map(function, paths):
      pass


class _Reader(io.RawIOBase):
  """The bytes of an object, asked for as they are read.

  OSError if another is written under its name meanwhile.
  """

  def __init__(self, path, blob):
    self._path, self._from, self._at = path, blob, 0

  def readable(self):
    return True

  def tell(self):
    return self._at

  def readinto(self, buffer: Any) -> int:
    n = min(len(buffer), self._from.size - self._at)
    if n <= 0:
      return 0
    with told(self._path):
      part = dict(start=self._at, end=self._at + n - 1)
      part['if_generation_match'] = self._from.generation
      data = self._from.download_as_bytes(**part)
      if len(data) != n:
        raise ValueError(f'{n} bytes were asked for, {len(data)} came')
    buffer[:n] = data
    self._at += n
    return n
