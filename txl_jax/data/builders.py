"""enwik8 and text8 as TFDS builders: download, check, cut into splits.

Only `txl_jax.prepare` needs this file; training never imports it. Nothing
here needs TensorFlow: the records are array_record files, and the builders
state their URLs, sizes and checksums themselves.

`read` downloads the archive itself and gives it to TFDS as a manual download,
for TFDS knows neither a second URL nor a timeout nor how to continue an
interrupted download. It uses requests, which is among the requirements of
TFDS and honours HTTP_PROXY, HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.units import Size

from txl_jax.errors import UserError

_CHUNK = 1 << 20  # bytes of text per record
_BLOCK = 1 << 16  # bytes of a download that reach the disk at a time
_TIMEOUT = 20  # seconds until a server that does not answer is given up

Splits = dict[str, Callable[[], Iterator[bytes]]]


@dataclasses.dataclass(frozen=True)
class Archive:
  """A zip archive with one text that is cut into splits.

  Attributes:
    urls: where it is found, tried in order.
    size: bytes of the archive.
    sha256: of the archive, in hex.
    member: name of the text within the archive.
    splits: bytes of each split, in the order they have in the text; together
      they are the whole text.
  """

  urls: tuple[str, ...]
  size: int
  sha256: str
  member: str
  splits: Mapping[str, int]

  @property
  def file(self) -> str:
    """File name of the archive."""
    return self.urls[0].rsplit('/', 1)[-1]


_SPLITS = {'train': 90_000_000, 'validation': 5_000_000, 'test': 5_000_000}

ARCHIVES = {
  'enwik8': Archive(
    urls=(
      'http://mattmahoney.net/dc/enwik8.zip',
      'https://data.deepai.org/enwik8.zip',
    ),
    size=36_445_475,
    sha256='547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc',
    member='enwik8',
    splits=_SPLITS,
  ),
  'text8': Archive(
    urls=('http://mattmahoney.net/dc/text8.zip',),
    size=31_344_016,
    sha256='a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232',
    member='text8',
    splits=_SPLITS,
  ),
}


class _ByteText(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """The bytes of one text in order, in records of up to 1 MiB.

  Features of record i of a split: index int64, which is i, and data uint8
  [n], the split's bytes from i MiB on.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': '90M, 5M and 5M bytes of the text, in order.'}

  @property
  def _archive(self) -> Archive:
    return ARCHIVES[self.name]

  @property
  def url_infos(self):
    archive = self._archive
    info = UrlInfo(
      size=Size(archive.size),
      checksum=archive.sha256,
      filename=archive.file,  # what TFDS looks for in manual_dir
    )
    return dict.fromkeys(archive.urls, info)

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      description=self.__doc__,
      features=tfds.features.FeaturesDict(
        {
          'index': np.int64,
          'data': tfds.features.Tensor(shape=(None,), dtype=np.uint8),
        }
      ),
      disable_shuffling=True,  # keys are integers: records stay in order
    )

  def _split_generators(self, dl_manager):
    path = dl_manager.download(self._archive.urls[0])
    generators, start = {}, 0
    for split, size in self._archive.splits.items():
      generators[split] = self._generate_examples(path, start, size)
      start += size
    return generators

  def _generate_examples(self, path, start, size):
    member = self._archive.member
    with zipfile.ZipFile(path) as archive, archive.open(member) as text:
      text.seek(start)
      for index, offset in enumerate(range(0, size, _CHUNK)):
        data = text.read(min(_CHUNK, size - offset))
        yield index, {'index': index, 'data': np.frombuffer(data, np.uint8)}


class Enwik8(_ByteText):
  """The first 100,000,000 bytes of a dump of the English Wikipedia of 2006.

  All bytes are kept, those of the XML mark-up and line ends included.
  """


class Text8(_ByteText):
  """100,000,000 letters a to z and spaces: a cleaned Wikipedia dump of 2006."""


BUILDERS = {'enwik8': Enwik8, 'text8': Text8}


def read(
  name: str,
  data_dir: str | os.PathLike,
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
) -> tuple[Splits, dict]:
  """The splits of a corpus, which is downloaded unless it is there already.

  Args:
    name: a key of BUILDERS.
    data_dir: downloads and records are kept in its folder tfds.
    manual_dir: folder that holds the archive under its own file name; nothing
      is downloaded then.
    force: unpack the archive again although its records are there.

  Returns:
    For each split, in order, a function that gives the split's bytes in
    chunks; and what is known about the source: the archive's file name, urls,
    size and sha256.

  Raises:
    UserError: the archive cannot be had or is not the expected one; when a
      chunk is read: the records are damaged.
  """
  archive = ARCHIVES[name]
  root = pathlib.Path(data_dir) / 'tfds'
  builder = BUILDERS[name](data_dir=root)
  if force or not builder.data_path.exists():
    if manual_dir is None:
      folder = root / 'downloads'
      _download(name, archive, folder)
    else:
      folder = pathlib.Path(manual_dir)
      _check(folder / archive.file, archive)
    # TFDS cannot replace records of this format: it is to find none.
    shutil.rmtree(builder.data_path, ignore_errors=True)
    builder = BUILDERS[name](data_dir=root)
    if not sys.stderr.isatty():
      tfds.disable_progress_bar()
    builder.download_and_prepare(
      download_dir=root / 'downloads',
      download_config=tfds.download.DownloadConfig(
        manual_dir=folder, try_download_gcs=False
      ),
      file_format='array_record',
    )
  source = {
    'file': archive.file,
    'urls': list(archive.urls),
    'size': archive.size,
    'sha256': archive.sha256,
  }
  splits: Splits = {
    split: functools.partial(_records, builder, split, size)
    for split, size in archive.splits.items()
  }
  return splits, source


def _records(builder, split, size):
  """The bytes of a split that TFDS has prepared, in chunks."""
  advice = 'prepare it again with --force'
  found = 0
  try:
    for record in builder.as_data_source(split):
      found += record['data'].size
      yield record['data'].tobytes()
  except (OSError, RuntimeError, ValueError) as e:
    raise UserError(
      f'{builder.data_dir}: split {split} cannot be read, {advice}: {e}'
    ) from e
  if found != size:
    raise UserError(
      f'{builder.data_dir}: split {split} has {found} bytes, not {size}; '
      f'{advice}'
    )


def _check(path: pathlib.Path, archive: Archive) -> None:
  """Raises a UserError unless the file is the expected archive."""
  expected = f'expected {archive.size} bytes with sha256 {archive.sha256}'
  if not path.is_file():
    raise UserError(
      f'{path}: no such file; {expected}, from {" or ".join(archive.urls)}'
    )
  with path.open('rb') as f:
    digest = hashlib.file_digest(f, 'sha256').hexdigest()
  if digest != archive.sha256:
    raise UserError(
      f'{path}: has {path.stat().st_size} bytes with sha256 {digest}; '
      f'{expected}'
    )


def _download(name: str, archive: Archive, folder: pathlib.Path) -> None:
  """Puts the archive into the folder unless a good one is there.

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
      _check(path, archive)
      return
    except UserError:
      path.unlink()
  failures = {}
  for url in 2 * archive.urls:
    try:
      if not part.exists() or part.stat().st_size < archive.size:
        print(f'downloading {url}, {archive.size} bytes', file=sys.stderr)
        _get(url, part)
      _check(part, archive)
      part.replace(path)
      return
    except requests.RequestException as e:
      failures[url] = f'{url}: {e}'
    except UserError as e:
      failures[url] = f'{url} gave {e}'
      part.unlink()
  raise UserError(
    f'{name} cannot be downloaded: {"; ".join(failures.values())}; without a '
    f'network, put {archive.file} ({archive.size} bytes, sha256 '
    f'{archive.sha256}) into a folder and run python -m txl_jax.prepare '
    f'--dataset={name} --manual_dir=FOLDER'
  )


def _get(url: str, part: pathlib.Path) -> None:
  """Downloads the rest of a file of which `part` holds the beginning."""
  start = part.stat().st_size if part.exists() else 0
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = f'bytes={start}-'
  with requests.get(
    url, headers=headers, stream=True, timeout=_TIMEOUT
  ) as response:
    response.raise_for_status()
    rest = response.status_code == requests.codes.partial_content
    with part.open('ab' if rest else 'wb') as f:
      for block in response.iter_content(_BLOCK):
        f.write(block)
