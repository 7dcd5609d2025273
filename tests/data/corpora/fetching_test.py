"""Corpora in a bucket: prepared once, fetched by every machine."""

import io

import pytest

from tests import programs
from txl_jax.data.corpora import fetching as copies
from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import Data
from txl_jax.program import files
from txl_jax.program.errors import UserError


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Makes this another machine, of that name."""

  def become(name):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / name))

  become('one')
  return become


@pytest.fixture
def asked(in_bucket, tmp_path):
  text = programs.write_corpus(tmp_path)
  return Data(corpus='text', path=str(text), dir=str(in_bucket))


def names(folder):
  return sorted(x.relative_to(folder).as_posix() for x in folder.rglob('*'))


def test_every_machine_has_the_same(in_bucket, asked, machine, capsys):
  first = preparation.prepare(asked)
  assert first.folder.is_relative_to(copies.cache(in_bucket))
  assert names(in_bucket / first.folder.name) == names(first.folder)
  assert 'preparing' in capsys.readouterr().err
  machine('two')
  second = preparation.prepare(asked)
  assert second.folder != first.folder
  assert second.digest == first.digest
  assert 'fetching' in capsys.readouterr().err
  preparation.prepare(asked)
  assert not capsys.readouterr().err


def test_what_has_another_manifest_is_fetched(in_bucket, tmp_path, capsys):
  ours = tmp_path / 'it/manifest.json'
  ours.parent.mkdir()
  (in_bucket / ours.name).upload(io.BytesIO(b'5'))
  said = f'fetching {in_bucket} into {ours.parent}\n'
  for text, expected in (b'4', said), (b'6', said), (b'5', ''):
    ours.write_bytes(text)
    copies.fetch(in_bucket, ours.parent)
    assert (ours.read_bytes(), capsys.readouterr().err) == (b'5', expected)


def test_it_is_put_there_once_or_by_force(in_bucket, tmp_path):
  for text, force, expected in (
    (b'4', False, b'4'), (b'5', False, b'4'), (b'6', True, b'6')
  ):  # fmt: skip
    (tmp_path / 'manifest.json').write_bytes(text)
    copies.put(tmp_path, in_bucket, force)
    assert files.read(in_bucket / 'manifest.json') == expected


def test_what_is_damaged_here_is_told(asked, machine):
  path = preparation.prepare(asked).folder / 'train.bin'
  path.write_bytes(b'')
  with pytest.raises(UserError, match=r'train\.bin .* --force'):
    preparation.prepare(asked)


def test_what_was_not_put_there_whole(in_bucket, asked, machine):
  """The manifest comes last: it is put there again."""
  folder = preparation.prepare(asked).folder
  there = in_bucket / folder.name
  (there / 'manifest.json').unlink()
  (there / 'train.bin').unlink()
  assert not copies.is_there(there)
  preparation.prepare(asked)
  assert copies.is_there(there)
  assert names(there) == names(folder)


def test_one_that_is_to_be_downloaded(in_bucket, machine):
  config = Data('enwik8', newline='drop', dir=str(in_bucket))
  with pytest.raises(UserError, match=f'--data_dir={in_bucket}'):
    preparation.locate_or_prepare(config)


def test_a_bucket_that_refuses(bucket, asked, machine):
  bucket.closed = True
  with pytest.raises(OSError, match='403 Forbidden'):
    preparation.prepare(asked)
