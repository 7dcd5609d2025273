"""Runs and data in a bucket of Google Cloud Storage: gs://BUCKET/NAME.

A bucket has objects, no folders: a folder is there while an object has a name
that begins with its own and '/'. An object appears whole or not at all, and
what was written is seen by all at once; but nothing can be appended to it, and
of several objects none are written together. So a folder that must be whole has
one, of MARKS, that is written last and deleted first.

Orbax reaches the bucket by etils.epath and gcsfs, and TensorStore by itself.
`Path` is not an epath.Path, with which (etils 1.15, gcsfs 2026.10) `is_dir` was
False while the bucket was out of reach, so that a run would begin anew, a block
that failed left half an object, reading mixed an object with the one that
replaced it, `rename` had no order, and no write was conditional on a
generation, as that of a lock must be.

All this needs the extra `gcs`, of which nothing is imported for a local path.
What fails is an OSError with its path.
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

from txl_jax.program.errors import UserError, first_line

SCHEME = 'gs://'
MARKS = 'seal.json', 'manifest.json'
_AT_ONCE = 8  # objects that are copied or deleted
_NUMBERS = {
  401: errno.EACCES,
  403: errno.EACCES,
  404: errno.ENOENT,
  412: errno.EEXIST,
}


@functools.cache
def _bucket(name):
  return importlib.import_module('google.cloud.storage').Client().bucket(name)


@functools.cache
def _retry():
  """Tries again for two minutes where a bucket cannot answer."""
  return importlib.import_module('google.cloud.storage.retry').DEFAULT_RETRY


@contextlib.contextmanager
def _translating_errors(path):
  """Raises an OSError for what the client of the bucket raises."""
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


class Path(pathlib.PurePosixPath):
  """A name in a bucket, with the methods of pathlib.Path that runs use."""

  _blob: Any = None  # which a list had

  def __str__(self) -> str:
    return re.sub('^gs:/', SCHEME, super().__str__())

  def absolute(self) -> 'Path':
    """Itself."""
    return self

  resolve = absolute

  def _object(self):
    return _bucket(self.parts[1]).blob('/'.join(self.parts[2:]))

  def _found(self):
    """The object with its size and generation; FileNotFoundError without."""
    with _translating_errors(self):
      blob = self._object()
      if blob := self._blob or blob.bucket.get_blob(blob.name):
        return blob
      raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

  def _list(self, **how):
    prefix = ''.join(f'{part}/' for part in self.parts[2:])
    return _bucket(self.parts[1]).list_blobs(prefix=prefix, **how)

  def _below(self, **how):
    with _translating_errors(self):
      found = self._list(**how)
      blobs = {x.name: x for x in found if not x.name.endswith('/')}
    for name in *blobs, *sorted(found.prefixes):
      path = Path(SCHEME, self.parts[1], name)
      path._blob = blobs.get(name)
      yield path

  def is_file(self) -> bool:
    """Whether there is such an object."""
    with contextlib.suppress(FileNotFoundError):
      return bool(self._found())
    return False

  def is_dir(self) -> bool:
    """Whether there are objects below."""
    with _translating_errors(self):
      return not self._blob and any(True for _ in self._list(max_results=1))

  def exists(self) -> bool:
    """Whether it is either."""
    return self.is_file() or self.is_dir()

  def stat(self) -> Any:
    """Its size, and as its time the generation: another for each content."""
    size, generation = (blob := self._found()).size, blob.generation
    return types.SimpleNamespace(st_size=size, st_mtime_ns=generation)

  def iterdir(self) -> Iterator['Path']:
    """What is in the folder."""
    return self._below(delimiter='/')

  def rglob(self, pattern: str) -> Iterator['Path']:
    """All objects in the folder and below, no folders."""
    assert pattern == '*'
    return self._below()

  def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
    """Does nothing, as `rmdir`: a bucket has no folders."""

  rmdir = mkdir

  def open_read(self) -> BinaryIO:
    """The object as it is now, in a temporary file that is opened."""
    with contextlib.ExitStack() as stack:
      file: Any = stack.enter_context(tempfile.TemporaryFile())
      with _translating_errors(self):
        self._found().download_to_file(file)
      file.seek(0)
      stack.pop_all()  # who reads it closes it
      return file

  def upload(self, file: Any, generation: int | None = None) -> int:
    """Writes an open local file from its beginning; the new generation.

    FileExistsError if the object is not of the generation that is given, 0 for
    none; also if it is this file, as a write whose answer was lost is repeated.
    """
    size = file.seek(0, os.SEEK_END)  # without it, two calls for a small file
    how = dict(rewind=True, size=size, retry=_retry())
    with _translating_errors(self):
      blob = self._object()
      blob.upload_from_file(file, if_generation_match=generation, **how)
      return int(blob.generation)

  def unlink(
    self, missing_ok: bool = False, generation: int | None = None
  ) -> None:
    """Deletes the object, which must be of a generation if one is given."""
    how = dict(if_generation_match=generation, retry=_retry())
    allowed = (FileNotFoundError,) if missing_ok else ()
    with contextlib.suppress(*allowed), _translating_errors(self):
      self._object().delete(**how)

  def _objects(self):
    return [self] if self.is_file() else [*self.rglob('*')]

  def rmtree(self) -> None:
    """Deletes an object, or all below, what marks it as whole first."""
    unlink = functools.partial(Path.unlink, missing_ok=True)
    _each(unlink, self._objects(), marks_last=False)

  def rename(self, new: Any) -> None:
    """Copies an object, or all below, and then deletes it.

    What marks a folder as whole is copied last. The copying is the bucket's.
    """

    def copy(path):
      target, token = new / path.relative_to(self), ''
      with _translating_errors(target):
        made, blob = target._object(), path._found()
        while token is not None:  # it may take several calls
          token, *_ = made.rewrite(blob, token=token or None, retry=_retry())

    _each(copy, self._objects())
    self.rmtree()


def _each(function, paths, marks_last=True):
  """Calls a function with all paths, several at once; MARKS last, or first."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    for marks in not marks_last, marks_last:
      some = [path for path in paths if (path.name in MARKS) == marks]
      list(pool.map(function, some))  # raises what one does


def place(text: Any, name: str = '') -> pathlib.Path:
  """The path of a text, local or in a bucket; UserError, which names a key."""
  if isinstance(text, Path):
    return cast(pathlib.Path, text)  # as far as it is used
  if '://' not in f'{text}':
    return pathlib.Path(text)
  called = f'{name}{"=" if name else ""}{text}'
  if not re.fullmatch(r'gs://([^/]+)(/.*)?', text):
    raise UserError(f'{called}; allowed: a folder, or {SCHEME}BUCKET/NAME')
  _prepare_packages(called)
  return cast(pathlib.Path, Path(text))


def _prepare_packages(called):
  if not importlib.util.find_spec('gcsfs'):  # which needs Google's own
    how = "run: pip install 'txl_jax[gcs]'"
    raise UserError(f'{called} needs gcsfs; {how}')
  from fsspec.config import conf

  os.environ.setdefault('EPATH_USE_TF', 'no')  # else it imports TensorFlow
  # It would keep lists of what is there, and not see what others have written.
  conf.setdefault('gcs', {})['use_listings_cache'] = False


def absolute(path: str) -> str:
  """A path as it is called in every working directory."""
  if '://' in path:
    return f'{Path(path)}' if path.startswith(SCHEME) else path
  return os.path.abspath(path)


def fetch(folder: Path, into: pathlib.Path) -> None:
  """Copies all below a folder into a local one."""

  def copy(path):
    target = into / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _translating_errors(path):
      path._found().download_to_filename(str(target))

  _each(copy, [*folder.rglob('*')])


def put(folder: pathlib.Path, into: Path) -> None:
  """Copies all below a local folder, what marks it as whole last."""

  def copy(path):
    with path.open('rb') as f:
      (into / path.relative_to(folder)).upload(f)

  _each(copy, [path for path in folder.rglob('*') if path.is_file()])
