"""Published corpora: URLs, sizes and checksums; downloading and unpacking.

The download manager of TFDS is not used: it tries only one URL, without a
timeout; trusts cached files; downloads files that manual_dir lacks; and skips
verification if only the size or only the sha256 is published. Its extraction
needs TensorFlow and unpacks every member. The library requests handles
HTTP_PROXY, HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import posixpath
import sys
import tarfile
import zipfile
from collections.abc import Collection, Mapping

import requests

import txl_jax
from txl_jax.data.data_config import SIZES, SPLITS
from txl_jax.program import files
from txl_jax.program.errors import UserError

_TIMEOUT = 20  # seconds to wait for a server's response


@dataclasses.dataclass(frozen=True)
class Archive:
  """A zip or tar archive of a corpus; fields are None if not published."""

  urls: tuple[str, ...]  # tried in order
  size: int | None  # in bytes
  sha256: str | None
  members: Mapping[str, tuple[str, ...]]  # files of each split, in order
  # Bytes of each split, if they are cut from one text.
  cuts: Mapping[str, int] = dataclasses.field(default_factory=dict)
  symbols: int | None = None  # vocabulary size
  tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
  md5: str = ''  # if no sha256 is published
  dataset: str = ''  # data set on the Hub with the same lines

  @property
  def file(self) -> str:
    """File name of the archive."""
    return posixpath.basename(self.urls[0])

  @property
  def digest(self) -> tuple[str, str]:
    """The published digest: its algorithm, and its value in hex."""
    return ('sha256', self.sha256) if self.sha256 else ('md5', self.md5)


_MAHONEY = 'http://mattmahoney.net/dc'
_LM1B = '1-billion-word-language-modeling-benchmark-r13output'
_CUTS: dict[str, int] = dict(zip(SPLITS, (90_000_000, 5_000_000, 5_000_000)))
_HELD_OUT = (
  f'{_LM1B}/heldout-monolingual.tokenized.shuffled/'
  'news.en.heldout-00000-of-00050',
)


def _files(pattern: str) -> dict[str, tuple[str, ...]]:
  """One file for each split, with the usual split names."""
  names = zip(SPLITS, ('train', 'valid', 'test'))
  return {split: (pattern.format(name),) for split, name in names}


def _wikitext(name: str, sha256: str, train: int) -> Archive:
  """The Archive of a WikiText corpus, whose size is not published."""
  return Archive(
    urls=(
      f'https://wikitext.smerity.com/{name}-v1.zip',
      # The original URL, offline since 2024.
      f'https://s3.amazonaws.com/research.metamind.io/wikitext/{name}-v1.zip',
    ),
    size=None,
    sha256=sha256,
    members=_files(f'{name}/wiki.{{}}.tokens'),
    tokens={'train': train, 'validation': 217_646, 'test': 245_569},
    dataset=f'hf://datasets/Salesforce/wikitext/{name}-v1',
  )


_ARCHIVES = {
  'enwik8': Archive(
    urls=(f'{_MAHONEY}/enwik8.zip', 'https://data.deepai.org/enwik8.zip'),
    size=36_445_475,
    sha256='547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc',
    members=dict.fromkeys(SPLITS, ('enwik8',)),
    cuts=_CUTS,
  ),
  'text8': Archive(
    urls=(f'{_MAHONEY}/text8.zip',),
    size=31_344_016,
    sha256='a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232',
    members=dict.fromkeys(SPLITS, ('text8',)),
    cuts=_CUTS,
  ),
  'wt103': _wikitext(
    'wikitext-103',
    '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590',
    train=103_227_021,
  ),
  'wt2': _wikitext(
    'wikitext-2',
    '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c',
    train=2_088_628,
  ),
  'ptb': Archive(
    urls=('http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz',),
    size=34_869_662,
    sha256=None,
    members=_files('simple-examples/data/ptb.{}.txt'),
    tokens={'train': 929_589, 'validation': 73_760, 'test': 82_430},
    # From PaddlePaddle, for the same URL.
    md5='30177ea32e27c525793142b6bf2c8e2d',
  ),
  'lm1b': Archive(
    urls=(f'http://www.statmt.org/lm-benchmark/{_LM1B}.tar.gz',),
    size=1_792_209_805,
    sha256='01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e',
    members={
      'train': tuple(
        f'{_LM1B}/training-monolingual.tokenized.shuffled/'
        f'news.en-{shard:05}-of-00100'
        for shard in range(1, 100)
      ),
      # Publications evaluate only on the first shard.
      'validation': _HELD_OUT,
      'test': _HELD_OUT,
    },
  ),
}
ARCHIVES = {
  name: dataclasses.replace(archive, symbols=SIZES[name])
  for name, archive in _ARCHIVES.items()
}


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
