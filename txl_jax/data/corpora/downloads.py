"""Archives of corpora: download, checksums, unpacking.

The download manager of TFDS is not used: it tries only one URL, without a
timeout; trusts cached files; downloads files that manual_dir lacks; and skips
verification if only the size or only the sha256 is published. Its extraction
needs TensorFlow and unpacks every member. The library requests
handles HTTP_PROXY, HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE.
"""

import contextlib
import hashlib
import pathlib
import posixpath
import sys
import tarfile
import zipfile
from collections.abc import Collection

import requests

import txl_jax
from txl_jax.data.corpora.published import Archive
from txl_jax.program import files
from txl_jax.program.errors import UserError

_TIMEOUT = 20  # seconds to wait for a server's response


def check(path: pathlib.Path, archive: Archive) -> dict:
  """Size and sha256 of an archive; UserError if it is missing or different."""
  wanted = f'expected {known(archive)}'
  if not path.is_file():
    urls = ' or '.join(archive.urls)
    raise UserError(f'{path}: no such file; {wanted}, from {urls}')
  kind, digest = archive.digest
  with files.reading(f'{path}'), path.open('rb') as f:
    actual = hashlib.file_digest(f, kind).hexdigest()
  size = path.stat().st_size
  if actual != digest:
    raise UserError(f'{path}: has {size} bytes with {kind} {actual}; {wanted}')
  return {'size': size, 'sha256': files.sha256(path)}


def download(name: str, archive: Archive, folder: pathlib.Path) -> dict:
  """Downloads the archive of a corpus unless the folder has an intact one.

  A UserError lists the error of each URL.
  """
  path, part = folder / archive.file, folder / f'{archive.file}.part'
  folder.mkdir(parents=True, exist_ok=True)
  with contextlib.suppress(UserError):
    return check(path, archive)
  failures = []
  for url in archive.urls:
    try:
      _get(url, part)
      source = check(part, archive)
      part.replace(path)
      return source
    except (requests.RequestException, UserError) as e:
      failures.append(f'{url}: {e}')
    finally:
      part.unlink(missing_ok=True)
  list_flag = ' --vocab_file=FILE' if name == 'lm1b' else ''
  raise UserError(
    f'{name} cannot be downloaded: {"; ".join(failures)}; without a network, '
    f'put {archive.file} ({known(archive)}) into a folder and run '
    f'python -m txl_jax.prepare --dataset={name} --manual_dir=FOLDER{list_flag}'
  )


def unpack(
  path: pathlib.Path, names: Collection[str], folder: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Unpacks members of a checked zip or tar archive; returns their paths."""
  with files.naming(folder):
    if zipfile.is_zipfile(path):
      with zipfile.ZipFile(path) as archive:
        archive.extractall(folder, names)
    else:
      with tarfile.open(path, 'r|gz') as archive:
        wanted = (x for x in archive if posixpath.normpath(x.name) in names)
        archive.extractall(folder, wanted, filter='data')
  return {name: folder / name for name in names}


def known(archive: Archive) -> str:
  """Published size and digest of an archive, as text."""
  size = f'{archive.size} bytes, ' if archive.size else ''
  return f'{size}{" ".join(archive.digest)}'


def _get(url, part):
  """Downloads a file."""
  print(f'downloading {url}', file=sys.stderr)
  headers = {'User-Agent': f'txl_jax/{txl_jax.__version__}'}
  headers['Accept-Encoding'] = 'identity'  # or requests would decompress it
  response = requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT)
  with response:
    response.raise_for_status()
    with files.naming(part), part.open('wb') as f:
      for block in response.iter_content(1 << 16):
        f.write(block)
