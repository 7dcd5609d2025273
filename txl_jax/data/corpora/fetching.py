"""Prepared corpora in a bucket, and their local copies.

Training memory-maps its files, so a corpus in a bucket is copied first. The
manifest is uploaded last: a corpus without manifest is incomplete.
"""

import dataclasses
import os
import pathlib
import sys

from txl_jax.data.data_config import Data
from txl_jax.program import buckets, files

_MANIFEST = 'manifest.json'


def split_remote(config: Data) -> tuple[buckets.Path | None, Data]:
  """Returns the remote data.dir or None, and the section with a local one."""
  remote = root(config)
  if not isinstance(remote, buckets.Path):
    return None, config
  return remote, dataclasses.replace(config, dir=str(cache(remote)))


def root(config: Data) -> pathlib.Path:
  """The folder of all corpora, local or in a bucket."""
  return buckets.place(config.folder, 'data.dir')


def cache(there: buckets.Path) -> pathlib.Path:
  """The local copy of a folder in a bucket."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  name = str(there).removeprefix(buckets.SCHEME)
  return pathlib.Path(home) / 'txl_jax/buckets' / name


def is_there(folder: pathlib.Path | buckets.Path) -> bool:
  """Whether a folder, local or in a bucket, has a complete corpus."""
  return (folder / _MANIFEST).exists()


def fetch(there: buckets.Path, folder: pathlib.Path) -> None:
  """Copies a corpus from a bucket, unless the local copy is up to date."""
  ours = folder / _MANIFEST
  if not is_there(there):
    return
  if ours.exists() and files.read(ours) == files.read(there / _MANIFEST):
    return
  print(f'fetching {there} into {folder}', file=sys.stderr)
  with files.new_folder(folder, replace=True) as made:
    buckets.fetch(there, made)


def put(folder: pathlib.Path, there: buckets.Path, force: bool) -> None:
  """Copies a corpus into a bucket if it is missing there, or if forced."""
  if force or not is_there(there):
    # Without a manifest, an interrupted upload counts as incomplete.
    (there / _MANIFEST).unlink(missing_ok=True)
    buckets.put(folder, there)
