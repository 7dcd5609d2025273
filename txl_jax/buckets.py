"""Runs and data in a bucket of Google Cloud Storage: gs://BUCKET/NAME.

`Path` has the methods of pathlib.Path that runs use; orbax reaches the bucket
by etils and gcsfs, and TensorStore by itself. All need the extra `gcs`, of
which nothing is imported for a local path.
"""

import importlib.util
import os
import pathlib
import re
from typing import Any, cast

from txl_jax.bucket_path import MARKS, SCHEME, Path, each, told
from txl_jax.errors import UserError

__all__ = ['SCHEME', 'Path', 'absolute', 'fetch', 'place', 'put']


_BUCKET = r'[a-z0-9][-_.a-z0-9]+[a-z0-9]'
_NAMES = (
  '3 to 63 characters (222 with dots), of a-z, 0-9, -, _ and ., of which the '
  'first and last are letters or digits'
)


def place(text: Any, name: str = '') -> pathlib.Path:
  """The path of a text, be it local or in a bucket.

  UserError, which calls it `name`: it is of another kind, or no name of a
  bucket, or a package is missing.
  """
  if isinstance(text, Path):
    return cast(pathlib.Path, text)  # as far as it is used
  if '://' not in f'{text}':
    return pathlib.Path(text)
  called = f'{name}{"=" if name else ""}{text}'
  if not (parts := re.fullmatch(r'gs://([^/]+)(/.*)?', text)):
    raise UserError(f'{called}; allowed: a folder, or {SCHEME}BUCKET/NAME')
  bucket = parts[1]
  longest = 222 if '.' in bucket else 63
  if not re.fullmatch(_BUCKET, bucket) or len(bucket) > longest:
    raise UserError(f'{called}: the bucket is {bucket!r}; allowed: {_NAMES}')
  _prepare_packages(called)
  return cast(pathlib.Path, Path(text))


def absolute(path: str) -> str:
  """A path as it is called in every working directory."""
  return f'{Path(path)}' if path.startswith(SCHEME) else os.path.abspath(path)


def _prepare_packages(called):
  """Sets up what etils and orbax use; UserError if it is not installed."""
  for package in 'gcsfs', 'google.cloud.storage':
    try:
      found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # a package that it is in
      found = None
    if found is None:
      missing = package.replace('.', '-')
      allowed = "pip install 'txl_jax[gcs]', or a folder"
      raise UserError(f'{called} needs {missing}; allowed: {allowed}')
  from fsspec.config import conf

  # It would keep lists of what is there, and not see what others have written.
  conf.setdefault('gcs', {})['use_listings_cache'] = False


def fetch(folder: Path, into: pathlib.Path) -> None:
  """Copies all below a folder into a local one that is there."""

  def copy(path):
    target = into / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with told(path):
      path._blob.download_to_filename(str(target))

  each(copy, [*folder.rglob('*')])


def put(folder: pathlib.Path, into: Path) -> None:
  """Copies all below a local folder, what marks it as whole last."""
  found = sorted(path for path in folder.rglob('*') if path.is_file())
  for last in False, True:
    for path in found:
      if (path.name in MARKS) == last:
        with path.open('rb') as f:
          (into / path.relative_to(folder).as_posix()).upload(f)
