"""Published corpora as TFDS records (array_record), without TensorFlow."""

import contextlib
import io
import json
import os
import pathlib
import posixpath
import sys
import types

import numpy as np
import tensorflow_datasets as tfds

from txl_jax.data.corpora import downloads, finding, local, records
from txl_jax.data.corpora.downloads import ARCHIVES, Archive
from txl_jax.data.data_config import CORPORA, Data
from txl_jax.program import files
from txl_jax.program.errors import UserError, first_line

_SOURCE = 'source.json'  # origin of the records, in their folder


class _Info(tfds.core.DatasetInfo):
  """A DatasetInfo that does not look for the data set in the cloud."""

  def initialize_from_bucket(self):
    """Does nothing: a look-up in the cloud would leave an empty folder."""


class Records(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A corpus: each split in order, as records of up to 1 MiB, uint8 [n]."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'The published splits, in order.'}
  url_infos = {}  # TFDS downloads nothing; `downloads` checks the archive
  texts: local.Splits  # set before records are written

  def _info(self):
    piece = tfds.features.Tensor(shape=(None,), dtype=np.uint8)
    return _Info(
      builder=self,
      description=CORPORA[self.name],
      features=tfds.features.FeaturesDict({'index': np.int64, 'data': piece}),
      disable_shuffling=True,  # keys are integers: records stay in order
    )

  def _split_generators(self, dl_manager):
    return {s: self._generate_examples(x) for s, x in self.texts.items()}

  def _generate_examples(self, text):
    for index, piece in enumerate(text()):
      yield index, {'index': index, 'data': np.frombuffer(piece, np.uint8)}


def read(
  name: str,
  data_dir: str | os.PathLike,
  manual_dir: str | os.PathLike | None = None,
  force: bool = False,
) -> tuple[local.Splits, dict]:
  """Splits of a corpus in ARCHIVES, and the manifest entry for its source.

  Downloads and records are kept in data_dir/tfds. With manual_dir nothing is
  downloaded: that folder holds the archive under its original file name or, for
  wt103, wt2 and ptb, the texts. With force the archive is unpacked again.
  UserError for a wrong checksum or, when read, for damaged records.
  """
  archive: Archive = ARCHIVES[name]
  root = pathlib.Path(data_dir) / 'tfds'
  path = root / name / str(Records.VERSION)  # as in TFDS
  if force or not (path / _SOURCE).exists():
    folder = pathlib.Path(manual_dir or root / 'downloads')
    with files.new_folder(path, replace=True) as made:
      texts, source = _texts(
        name, folder, manual_dir is None, made.parent / 'texts'
      )
      _make_records(name, texts, made.parent).rename(made)
      files.write(made / _SOURCE, json.dumps(source))
  with _readable(path):
    records = builder(name, root)  # a new builder, which finds the records
    source = files.read_json(path / _SOURCE)
  splits = {x: _recorded(path, records, x) for x in archive.members}
  return splits, {'file': archive.file, 'urls': list(archive.urls), **source}


@contextlib.contextmanager
def _readable(path):
  """Turns any error of TFDS for damaged files into a UserError."""
  try:
    yield
  except Exception as e:
    again = f'{path} cannot be read, prepare it again with --force'
    raise UserError(f'{again}: {first_line(e)}') from e


def builder(name: str, data_dir: pathlib.Path) -> Records:
  """The builder of a corpus; TFDS takes its name from the class."""
  builder_class = types.new_class(name, (Records,), {'skip_registration': True})
  return builder_class(data_dir=data_dir)


def _texts(name, folder, download, unpacked):
  """Returns {member: path of its text} and the source's manifest entry."""
  archive = ARCHIVES[name]
  path = folder / archive.file
  members = dict.fromkeys(m for part in archive.members.values() for m in part)
  texts = {member: folder / posixpath.basename(member) for member in members}
  # Texts of whole splits may replace the archive: token counts are checked.
  is_split_each = len(members) == len(archive.members)
  if download:
    try:
      source = downloads.download(name, archive, folder)
    except UserError as e:
      if not archive.dataset:
        raise
      try:
        return _of_hub(archive, unpacked)
      except UserError as other:
        raise UserError(f'{other}; {e}') from e
  elif is_split_each and all(text.is_file() for text in texts.values()):
    return texts, {'texts': {x.name: files.sha256(x) for x in texts.values()}}
  else:
    source = downloads.check(path, archive)
  return downloads.unpack(path, members, unpacked), source


def _of_hub(archive, folder):
  """Like `_texts`, from a data set of lines on the Hub."""
  print(f'downloading {archive.dataset}', file=sys.stderr)
  config = Data('text', path=archive.dataset)
  config, name, chosen = finding.fetch(config)
  texts = {}
  for split, parts in finding.find(config, chosen).splits.items():
    (member,) = archive.members[split]
    texts[member] = folder / member
    texts[member].parent.mkdir(parents=True, exist_ok=True)
    with files.naming(folder), texts[member].open('wb') as f:
      for part in parts.values():
        for line in records.texts(part.path, False, 'text'):
          f.write(line or b' \n')  # the archive's form of a blank line
  return texts, {'dataset': name}


def _make_records(name, texts, folder):
  """Writes the records of a corpus from its texts; returns their path."""
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  archive = ARCHIVES[name]
  records = builder(name, folder)
  start = 0
  records.texts = {}
  for split, members in archive.members.items():
    parts = [local.Part.whole(texts[m]) for m in members]
    stop = start + archive.cuts.get(split, sum(part.size for part in parts))
    records.texts[split] = local.between(parts, start, stop)
    start = stop if archive.cuts else 0
  try:
    # TFDS prints to standard output.
    with contextlib.redirect_stdout(io.StringIO()), files.naming(folder):
      records.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        file_format='array_record',
      )
  except RuntimeError as e:  # from array_record, for instance on a full disk
    raise UserError(f'{folder}: records cannot be written: {e}') from e
  return pathlib.Path(records.data_path)


def _recorded(path, records, split):
  """The text of a split; UserError, when read, if its records are damaged."""

  def read():
    with _readable(path):
      for record in records.as_data_source(split):
        yield record['data'].tobytes()

  part = local.Part(path, 0, sys.maxsize, sys.maxsize, read)
  return local.Split((part,))
