"""Runs and data in a bucket of Google Cloud Storage: gs://BUCKET/NAME.

A bucket has objects but no folders: a folder exists while the name of an object
begins with the folder's name and '/'. Writing an object is atomic, and readers
see it at once, but objects cannot be appended to, and several cannot be written
together. So a folder that must be complete has a mark, an object with a name in
MARKS, which is written last and deleted first.

Orbax accesses the bucket with etils.epath and gcsfs, and TensorStore directly.
`Path` is not an epath.Path because of its behaviour in etils 1.15 with gcsfs
2026.10: `is_dir` was False while the bucket was out of reach, so that a run
would start anew; a block that failed left a partial object; a read mixed the
contents of an object and of its replacement; `rename` had no order; and a write
could not require a generation, as a lock must.

Buckets need the extra `gcs`, which is not imported for a local path. Errors are
OSErrors with the path.
"""

import concurrent.futures
import contextlib
import errno
import functools
import http.client
import importlib.util
import os
import pathlib
import re
import tempfile
import types
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from txl_jax.program.errors import UserError, reason, refuse

SCHEME = 'gs://'
MARKS = 'seal.json', 'manifest.json'
_THREADS = 8  # for copying or deleting objects
_ERRNO = {
  401: errno.EACCES,
  403: errno.EACCES,
  404: errno.ENOENT,
  412: errno.EEXIST,
}


@functools.cache
def _bucket(name: str) -> Any:
  return importlib.import_module('google.cloud.storage').Client().bucket(name)


@functools.cache
def _retry() -> Any:
  """A policy that retries for two minutes if the bucket does not answer."""
  return importlib.import_module('google.cloud.storage.retry').DEFAULT_RETRY


@contextlib.contextmanager
def _translating_errors(path: Any) -> Iterator[None]:
  """Turns errors of the client library into OSErrors with the path."""
  try:
    yield
  except Exception as e:
    if isinstance(e, OSError) and e.filename is not None:
      raise  # it already has a path
    why = reason(e)
    number = errno.EIO
    code = getattr(e, 'code', None)
    if code in http.client.responses:  # from google.api_core.exceptions
      why = f'the bucket answers {code:d} {http.client.responses[code]}'
      number = _ERRNO.get(code, number)
    raise OSError(number, why, f'{path}') from e


class Path(pathlib.PurePosixPath):
  """A name in a bucket, with the methods of pathlib.Path that we use."""

  _blob: Any = None  # known from a listing

  def __str__(self) -> str:
    return re.sub('^gs:/', SCHEME, super().__str__())

  def absolute(self) -> 'Path':
    """Itself."""
    return self

  resolve = absolute

  def _object(self) -> Any:
    """The object of this name, which need not exist."""
    return _bucket(self.parts[1]).blob('/'.join(self.parts[2:]))

  def _get(self) -> Any:
    """The object with its size and generation; FileNotFoundError."""
    with _translating_errors(self):
      blob = self._object()
      if blob := self._blob or blob.bucket.get_blob(blob.name):
        return blob
      raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

  def _list(self, **options: Any) -> Any:
    """Lists the objects below; options of `Bucket.list_blobs`."""
    prefix = ''.join(f'{part}/' for part in self.parts[2:])
    return _bucket(self.parts[1]).list_blobs(prefix=prefix, **options)

  def _below(self, **options: Any) -> Iterator['Path']:
    """The objects below; with a `delimiter`, also the folders."""
    with _translating_errors(self):
      listing = self._list(**options)
      blobs = {x.name: x for x in listing if not x.name.endswith('/')}
    for name in *blobs, *sorted(listing.prefixes):
      path = Path(SCHEME, self.parts[1], name)
      path._blob = blobs.get(name)
      yield path

  def is_file(self) -> bool:
    """Whether the object exists."""
    with contextlib.suppress(FileNotFoundError):
      return bool(self._get())
    return False

  def is_dir(self) -> bool:
    """Whether an object exists below."""
    with _translating_errors(self):
      return not self._blob and any(True for _ in self._list(max_results=1))

  def exists(self) -> bool:
    """Whether it is an object or a folder."""
    return self.is_file() or self.is_dir()

  def stat(self) -> Any:
    """The size; st_mtime_ns is the generation, which every write changes."""
    blob = self._get()
    return types.SimpleNamespace(st_size=blob.size, st_mtime_ns=blob.generation)

  def iterdir(self) -> Iterator['Path']:
    """The objects and folders in the folder."""
    return self._below(delimiter='/')

  def rglob(self, pattern: str) -> Iterator['Path']:
    """All objects in the folder and its subfolders."""
    assert pattern == '*'
    return self._below()

  def mkdir(self, **_: bool) -> None:
    """Does nothing, like `rmdir`: a bucket has no folders."""

  rmdir = mkdir

  def open_read(self) -> BinaryIO:
    """Opens a copy of the object, a temporary file."""
    with contextlib.ExitStack() as stack:
      file = stack.enter_context(tempfile.TemporaryFile())
      with _translating_errors(self):
        self._get().download_to_file(file)
      file.seek(0)
      stack.pop_all()  # the caller closes it
      return file

  def upload(self, file: Any, generation: int | None = None) -> int:
    """Uploads an open local file whole; returns the new generation.

    FileExistsError if the object does not have `generation`, 0 for a new one.
    Even then the file may have been uploaded: if the reply is lost, a retry
    finds the new generation.
    """
    size = file.seek(0, os.SEEK_END)  # saves a request for a small file
    with _translating_errors(self):
      blob = self._object()
      blob.upload_from_file(
        file,
        rewind=True,
        size=size,
        if_generation_match=generation,
        retry=_retry(),
      )
      return int(blob.generation)

  def unlink(
    self, missing_ok: bool = False, generation: int | None = None
  ) -> None:
    """Deletes the object, which must have the generation if one is given."""
    ignored = (FileNotFoundError,) if missing_ok else ()
    with contextlib.suppress(*ignored), _translating_errors(self):
      self._object().delete(if_generation_match=generation, retry=_retry())

  def _objects(self) -> list['Path']:
    return [self] if self.is_file() else [*self.rglob('*')]

  def rmtree(self) -> None:
    """Deletes an object, or all objects below, the mark of a folder first."""
    unlink = functools.partial(Path.unlink, missing_ok=True)
    _each(unlink, self._objects(), marks_last=False)

  def rename(self, new: Any) -> None:
    """Copies an object, or all objects below, in the bucket; deletes the old.

    The mark of a folder is copied last.
    """

    def copy(path: Path) -> None:
      target = new / path.relative_to(self)
      token = ''
      with _translating_errors(target):
        copied = target._object()
        blob = path._get()
        while token is not None:  # a large object needs several requests
          token, *_ = copied.rewrite(blob, token=token or None, retry=_retry())

    _each(copy, self._objects())
    self.rmtree()


def _each(function, paths, marks_last=True):
  """Calls a function with each path, in threads; MARKS are last, or first."""
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    for marks in not marks_last, marks_last:
      some = [path for path in paths if (path.name in MARKS) == marks]
      list(pool.map(function, some))  # raises its errors


def path_text(path: Any, name: str, allowed: str = '') -> str:
  """A path as text, with ~ expanded; a UserError names the argument."""
  text = os.fspath(path) if isinstance(path, os.PathLike) else path
  if not isinstance(text, str) or '\0' in text:
    refuse(name, path, allowed or 'a str or pathlib.Path without NUL')
  return os.path.expanduser(text)


def place(text: Any, name: str = '') -> pathlib.Path:
  """Parses a path, local or gs://…; a UserError names the key `name`."""
  if isinstance(text, Path):
    return cast(pathlib.Path, text)  # it has the methods that we use
  if '://' not in f'{text}':
    return pathlib.Path(text)
  setting = f'{name}{"=" if name else ""}{text}'
  if not re.fullmatch(r'gs://([^/]+)(/.*)?', text):
    raise UserError(f'{setting}; allowed: a folder, or {SCHEME}BUCKET/NAME')
  _prepare_packages(setting)
  return cast(pathlib.Path, Path(text))


def _prepare_packages(setting: str) -> None:
  if not importlib.util.find_spec('gcsfs'):  # it requires Google's packages
    raise UserError(f"{setting} needs gcsfs; run: pip install 'txl_jax[gcs]'")
  from fsspec.config import conf

  os.environ.setdefault('EPATH_USE_TF', 'no')  # or epath imports TensorFlow
  # A cache of listings would hide objects that other processes write.
  conf.setdefault('gcs', {})['use_listings_cache'] = False


def absolute(path: str) -> str:
  """A path that is valid in every working directory."""
  if '://' in path:
    return f'{Path(path)}' if path.startswith(SCHEME) else path
  return os.path.abspath(path)


def fetch(folder: Path, into: pathlib.Path) -> None:
  """Copies all objects below a folder into a local folder."""

  def copy(path: Path) -> None:
    target = into / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _translating_errors(path):
      path._get().download_to_filename(str(target))

  _each(copy, [*folder.rglob('*')])


def put(folder: pathlib.Path, into: Path) -> None:
  """Copies all files below a local folder, the mark of the folder last."""

  def copy(path: pathlib.Path) -> None:
    with path.open('rb') as f:
      (into / path.relative_to(folder)).upload(f)

  _each(copy, [path for path in folder.rglob('*') if path.is_file()])
