"""Archives of corpora: downloaded, checked, unpacked.

The download manager of TFDS tries only one URL, without a timeout, and restarts
a broken download from the beginning. It trusts the files it has kept, downloads
what manual_dir lacks, and does not check an archive if only its size or only
its sha256 is published. Its extraction needs TensorFlow and takes every member.
The library requests handles HTTP_PROXY, HTTPS_PROXY, NO_PROXY and
REQUESTS_CA_BUNDLE.
"""

import contextlib
import hashlib
import pathlib
import posixpath
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Collection

import requests

from txl_jax.data.corpora.published import Archive
from txl_jax.program import files
from txl_jax.program.errors import UserError

_TIMEOUT = 20  # seconds to wait for a server that does not answer


def check(path: pathlib.Path, archive: Archive) -> dict:
  """Size and sha256; UserError if it is missing or not the archive."""
  wanted = f'expected {known(archive)}'
  if not path.is_file():
    what = 'it is no file' if path.exists() else 'no such file'
    texts = ''.join(
      f'; or {", ".join(names.values())}' for names in archive.extracted()
    )
    urls = ' or '.join(archive.urls)
    raise UserError(f'{path}: {what}; {wanted}, from {urls}{texts}')
  source = {'size': path.stat().st_size, 'sha256': files.sha256(path)}
  kind, digest = archive.digest
  if kind == 'sha256':
    found = source['sha256']
  else:
    with path.open('rb') as f:
      found = hashlib.file_digest(f, kind).hexdigest()
  if found != digest:
    size = source['size']
    raise UserError(f'{path}: has {size} bytes with {kind} {found}; {wanted}')
  return source


def download(name: str, archive: Archive, folder: pathlib.Path) -> dict:
  """Puts the archive of a corpus into a folder unless a good one is there.

  Each URL gets two attempts; each continues where the last one broke off, as
  all serve the same bytes. A UserError tells what went wrong with each.
  """
  path, part = folder / archive.file, folder / f'{archive.file}.part'
  folder.mkdir(parents=True, exist_ok=True)
  with contextlib.suppress(UserError):
    return check(path, archive)
  failures = {}
  for url in 2 * archive.urls:
    try:
      _get(url, part, archive.size)
      found = check(part, archive)
      part.replace(path)
      return found
    except requests.RequestException as e:
      failures[url] = f'{url}: {e}'
    except UserError as e:
      failures[url] = f'{url} gave {e}'
      part.unlink()
  more = ' --vocab_file=FILE' if name == 'lm1b' else ''
  raise UserError(
    f'{name} cannot be downloaded: {"; ".join(failures.values())}; without a '
    f'network, put {archive.file} ({known(archive)}) into a folder and '
    f'run python -m txl_jax.prepare --dataset={name} --manual_dir=FOLDER{more}'
  )


def unpack(
  path: pathlib.Path, names: Collection[str], folder: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Members of a zip or tar archive that was checked, as files."""
  found = {}
  for name, member in _members(path, names):
    found[name] = folder / str(len(found))
    with files.naming(found[name]), found[name].open('wb') as f:
      shutil.copyfileobj(member, f, 1 << 20)
  return found


def _members(path, names):
  """(name, stream) of each member of an archive with one of the names."""
  if zipfile.is_zipfile(path):
    with zipfile.ZipFile(path) as archive:
      for name in names:
        with archive.open(name) as member:
          yield name, member
    return
  with tarfile.open(path, 'r|gz') as archive:
    for member in archive:
      name = posixpath.normpath(member.name)
      if name in names and (stream := archive.extractfile(member)):
        yield name, stream


def known(archive: Archive) -> str:
  """What is published about an archive, in words."""
  size = f'{archive.size} bytes, ' if archive.size else ''
  return f'{size}{" ".join(archive.digest)}'


def _get(url, part, size):
  """Downloads the rest of a file of which `part` holds the beginning."""
  start = part.stat().st_size if part.exists() else 0
  if size is not None and start >= size:
    return
  length = f', {size} bytes' if size else ''
  print(f'downloading {url}{length}', file=sys.stderr)
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = f'bytes={start}-'
  response = requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT)
  with response:
    if start and response.status_code == 416:
      return  # nothing is left
    response.raise_for_status()
    rest = response.status_code == requests.codes.partial_content
    with files.naming(part), part.open('ab' if rest else 'wb') as f:
      for block in response.iter_content(1 << 16):
        f.write(block)
