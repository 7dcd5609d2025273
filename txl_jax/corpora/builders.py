"""Corpora as TFDS builders: download, check, cut into splits.

Only `txl_jax.prepare` needs this file; training never imports it. Nothing
here needs TensorFlow: the records are array_record files, and
`published` states URLs, sizes and checksums.

`read` downloads the archive itself and gives it to TFDS as a manual download,
for TFDS knows neither a second URL nor a timeout nor how to continue an
interrupted download.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.units import Size

from txl_jax.corpora import archives, scratch
from txl_jax.corpora.published import ARCHIVES, Archive, WordArchive
from txl_jax.errors import UserError

_CHUNK = 1 << 20  # bytes of text per record
_SOURCE = 'source.json'  # beside the records of words: what they came from

Splits = dict[str, Callable[[], Iterator[bytes]]]


class _Text(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A text in order, in records of up to 1 MiB.

  Features of record i of a split: index int64, which is i, and data uint8
  [n], the split's bytes from i MiB on.
  """

  VERSION = tfds.core.Version('1.0.0')

  @property
  def url_infos(self) -> dict[str, UrlInfo]:
    return {}

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


class _ByteText(_Text, skip_registration=True):
  """The bytes of one text, which is cut into splits."""

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


class _WordText(_Text, skip_registration=True):
  """The files of each split, one after the other.

  Attributes:
    files: for each split their paths; to be set before it is prepared.
  """

  RELEASE_NOTES = {'1.0.0': 'The published splits, in order.'}
  files: Mapping[str, list[pathlib.Path]]

  def _split_generators(self, dl_manager):
    del dl_manager  # `read` has checked and unpacked the archive
    return {
      split: self._generate_examples(paths)
      for split, paths in self.files.items()
    }

  def _generate_examples(self, paths):
    index = 0
    for path in paths:
      with path.open('rb') as text:
        while data := text.read(_CHUNK):
          yield index, {'index': index, 'data': np.frombuffer(data, np.uint8)}
          index += 1


class Enwik8(_ByteText):
  """The first 100,000,000 bytes of a dump of the English Wikipedia of 2006.

  All bytes are kept, those of the XML mark-up and line ends included.
  """


class Text8(_ByteText):
  """100,000,000 letters a to z and spaces: a cleaned Wikipedia dump of 2006."""


class Wt103(_WordText):
  """WikiText-103: good articles of Wikipedia (Merity et al. 2016)."""


class Wt2(_WordText):
  """WikiText-2: 720 of the articles, with a smaller vocabulary."""


class Ptb(_WordText):
  """Penn Treebank as Mikolov prepared it: 10,000 words, lower-cased."""


class Lm1b(_WordText):
  """One Billion Word: sentences of news, shuffled (Chelba et al. 2013).

  Validation and test are both the held-out shard 0, as in publications.
  """


BUILDERS = {
  'enwik8': Enwik8,
  'text8': Text8,
  'wt103': Wt103,
  'wt2': Wt2,
  'ptb': Ptb,
  'lm1b': Lm1b,
}


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
    manual_dir: folder that holds the archive under its own file name, or the
      texts of ptb; nothing is downloaded then.
    force: unpack the archive again although its records are there.

  Returns:
    For each split, in order, a function that gives the split's bytes in
    chunks; and what is known about the source: the archive's file name and
    urls; and its size and sha256, or, where the texts of ptb were taken from
    manual_dir, `texts`: the sha256 of each.

  Raises:
    UserError: the archive cannot be had or is not the expected one; when a
      chunk is read: the records are damaged.
  """
  archive = ARCHIVES[name]
  root = pathlib.Path(data_dir) / 'tfds'
  folder = (
    root / 'downloads' if manual_dir is None else pathlib.Path(manual_dir)
  )
  if isinstance(archive, WordArchive):
    source = _prepare_words(name, archive, root, folder, manual_dir, force)
    sizes = dict.fromkeys(archive.members)
  else:
    source = _prepare_bytes(name, archive, root, folder, manual_dir, force)
    sizes = archive.splits
  builder = BUILDERS[name](data_dir=root)
  splits: Splits = {
    split: functools.partial(_records, builder, split, size)
    for split, size in sizes.items()
  }
  return splits, {'file': archive.file, 'urls': list(archive.urls), **source}


def _prepare_bytes(name, archive, root, folder, manual_dir, force):
  """Makes the records of a byte text unless they are there; its source."""
  if force or not BUILDERS[name](data_dir=root).data_path.exists():
    if manual_dir is None:
      archives.download(name, archive, folder)
    else:
      archives.check(folder / archive.file, archive)
    with scratch.beside(root / name) as temporary:
      builder = BUILDERS[name](data_dir=temporary)
      _make_records(builder, root, folder)
  return {'size': archive.size, 'sha256': archive.sha256}


def _prepare_words(name, archive, root, folder, manual_dir, force):
  """Makes the records of words unless they are there; their source."""
  known = _remembered(BUILDERS[name](data_dir=root).data_path / _SOURCE)
  if known and not force:
    return known
  texts = {f: folder / f for f in archive.md5}
  plain = bool(texts) and all(text.is_file() for text in texts.values())
  if manual_dir is None:
    archives.download(name, archive, folder)
  source = {}
  if manual_dir is None or not plain:
    source = archives.check(folder / archive.file, archive)
  with scratch.beside(root / name) as temporary:
    members = {m for part in archive.members.values() for m in part}
    if source:
      path = folder / archive.file
      try:
        files = archives.unpack(path, members, temporary)
        _check_texts(archive, files, {m: f'{path}: {m}' for m in members})
      except UserError as e:
        if manual_dir is not None or archive.sha256 is not None:
          raise
        path.unlink()  # only now it turns out to be another one
        raise UserError(f'{e}; it was removed, to be downloaded again') from e
    else:
      files = {m: texts[_file(m)] for m in members}
      _check_texts(archive, files, {m: f'{t}' for m, t in files.items()})
      source = {'texts': {f: _sha256(text) for f, text in texts.items()}}
    builder = BUILDERS[name](data_dir=temporary)
    builder.files = {
      split: [files[m] for m in part] for split, part in archive.members.items()
    }
    _make_records(builder, root, folder, source)
  return source


def _file(member):
  """Name of a member of an archive without its folders."""
  return member.rsplit('/', 1)[-1]


def _check_texts(archive, files, names):
  """Raises a UserError unless files, by their members, have their md5."""
  for member, text in files.items():
    if md5 := archive.md5.get(_file(member)):
      archives.check_text(text, md5, names[member])


def _remembered(path):
  """What a file tells of a source; None if it is not there, or damaged."""
  try:
    return json.loads(path.read_bytes())
  except (FileNotFoundError, ValueError):
    return None


def _sha256(path):
  with path.open('rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()


def _make_records(builder, root, folder, source=None):
  """Makes records and moves them to their place; all of them or none.

  Args:
    builder: has a folder of its own.
    root: where the records of all corpora are.
    folder: holds the archive.
    source: what to tell of it beside the records.
  """
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  with contextlib.redirect_stdout(io.StringIO()):  # it tells of the folder
    builder.download_and_prepare(
      download_dir=root / 'downloads',
      download_config=tfds.download.DownloadConfig(
        manual_dir=folder, try_download_gcs=False
      ),
      file_format='array_record',
    )
  made = pathlib.Path(builder.data_path)
  if source is not None:
    (made / _SOURCE).write_text(json.dumps(source))
  path = pathlib.Path(type(builder)(data_dir=root).data_path)
  path.parent.mkdir(parents=True, exist_ok=True)
  scratch.replace(made, path, made.parent)


def _records(builder, split, size):
  """The bytes of a split that TFDS has prepared, in chunks.

  Args:
    builder: a builder.
    split: its split.
    size: bytes there are to be, None where that is not known.
  """
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
  if size is not None and found != size:
    raise UserError(
      f'{builder.data_dir}: split {split} has {found} bytes, not {size}; '
      f'{advice}'
    )
