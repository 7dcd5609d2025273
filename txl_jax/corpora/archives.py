"""Archives of corpora: downloaded, checked, unpacked.

Downloads use requests, which is among the requirements of TFDS and honours
HTTP_PROXY, HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE.
"""

import dataclasses
import hashlib
import pathlib
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Mapping

import requests

from txl_jax.errors import UserError

_BLOCK = 1 << 16  # bytes of a download that reach the disk at a time
_TIMEOUT = 20  # seconds until a server that does not answer is given up
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError)


@dataclasses.dataclass(frozen=True)
class Archive:
  """A file to download.

  Attributes:
    urls: where it is found, tried in order.
    size: its bytes, None where nobody documents them.
    sha256: in hex, None where nobody documents it.
    symbols: of the vocabulary that its text gives, None where none is known.
    tokens: of splits, as far as they are documented.
  """

  urls: tuple[str, ...]
  size: int | None
  sha256: str | None
  symbols: int | None = dataclasses.field(default=None, kw_only=True)
  tokens: Mapping[str, int] = dataclasses.field(
    default_factory=dict, kw_only=True
  )

  @property
  def file(self) -> str:
    """File name of the archive."""
    return self.urls[0].rsplit('/', 1)[-1]

  def known(self, between: str) -> str:
    """What is known about it, in words."""
    size = f'{self.size} bytes' if self.size else ''
    sha256 = f'sha256 {self.sha256}' if self.sha256 else ''
    if size and sha256:
      return f'{size}{between}{sha256}'
    return f'{size or sha256}; no {"size" if sha256 else "sha256"} is published'


def check(path: pathlib.Path, archive: Archive) -> dict:
  """Size and sha256 of an archive.

  Raises:
    UserError: it is not there, or not the expected one.
  """
  expected = f'expected {archive.known(" with ")}'
  if not path.is_file():
    raise UserError(
      f'{path}: no such file; {expected}, from {" or ".join(archive.urls)}'
    )
  size = path.stat().st_size
  with path.open('rb') as f:
    digest = hashlib.file_digest(f, 'sha256').hexdigest()
  if digest != (archive.sha256 or digest) or size != (archive.size or size):
    raise UserError(
      f'{path}: has {size} bytes with sha256 {digest}; {expected}'
    )
  return {'size': size, 'sha256': digest}


def check_text(path: pathlib.Path, md5: str, name: str) -> None:
  """Raises a UserError, which calls it `name`, unless a text has that md5."""
  with path.open('rb') as f:
    digest = hashlib.file_digest(f, 'md5').hexdigest()
  if digest != md5:
    raise UserError(
      f'{name}: has {path.stat().st_size} bytes with md5 {digest}; expected '
      f'md5 {md5}'
    )


def download(name: str, archive: Archive, folder: pathlib.Path) -> None:
  """Puts the archive of a corpus into a folder unless a good one is there.

  Each URL gets two attempts; each attempt continues where the last one broke
  off, for every URL has the same bytes.

  Raises:
    UserError: no URL gave the expected archive.
  """
  path = folder / archive.file
  part = folder / (archive.file + '.part')
  folder.mkdir(parents=True, exist_ok=True)
  if path.exists():
    try:
      check(path, archive)
      return
    except UserError:
      path.unlink()
  failures = {}
  for url in 2 * archive.urls:
    try:
      start = part.stat().st_size if part.exists() else 0
      if archive.size is None or start < archive.size:
        size = f', {archive.size} bytes' if archive.size else ''
        print(f'downloading {url}{size}', file=sys.stderr)
        _get(url, part, start)
      check(part, archive)
      part.replace(path)
      return
    except requests.RequestException as e:
      failures[url] = f'{url}: {e}'
    except UserError as e:
      failures[url] = f'{url} gave {e}'
      part.unlink()
  more = ' --vocab_file=FILE' if name == 'lm1b' else ''
  raise UserError(
    f'{name} cannot be downloaded: {"; ".join(failures.values())}; without a '
    f'network, put {archive.file} ({archive.known(", ")}) into a folder and '
    f'run python -m txl_jax.prepare --dataset={name} --manual_dir=FOLDER{more}'
  )


def _get(url: str, part: pathlib.Path, start: int) -> None:
  """Downloads the rest of a file of which `part` holds the beginning."""
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = f'bytes={start}-'
  with requests.get(
    url, headers=headers, stream=True, timeout=_TIMEOUT
  ) as response:
    if start and response.status_code == 416:
      return  # there is no rest
    response.raise_for_status()
    rest = response.status_code == requests.codes.partial_content
    with part.open('ab' if rest else 'wb') as f:
      for block in response.iter_content(_BLOCK):
        f.write(block)


def unpack(
  path: pathlib.Path, names: Collection[str], folder: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Takes some files out of a zip or tar archive.

  Args:
    path: of the archive.
    names: of its members.
    folder: where they go, one beside the other.

  Returns:
    For each name the path of the file.

  Raises:
    UserError: the archive is damaged or has no such member.
  """
  found = {}
  try:
    if zipfile.is_zipfile(path):
      with zipfile.ZipFile(path) as archive:
        for name in set(names) & set(archive.namelist()):
          with archive.open(name) as member:
            found[name] = _copy(member, folder, len(found))
    else:
      with tarfile.open(path, 'r|*') as archive:
        for member in archive:
          name = member.name.removeprefix('./')
          stream = archive.extractfile(member) if name in names else None
          if stream is not None:
            found[name] = _copy(stream, folder, len(found))
  except _DAMAGED as e:
    if isinstance(e, OSError) and e.errno:
      raise  # it is not the archive, as where the disk is full
    raise UserError(f'{path} cannot be unpacked: {e}') from e
  missing = sorted(set(names) - found.keys())
  if missing:
    raise UserError(f'{path} has no member {missing[0]}')
  return found


def _copy(stream, folder, number):
  path = folder / str(number)
  with path.open('wb') as f:
    shutil.copyfileobj(stream, f, 1 << 20)
  return path
