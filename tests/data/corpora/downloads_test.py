"""What builders_test.py leaves open: unknown facts, and unpacking."""

import hashlib
import io
import tarfile
import zipfile
from unittest import mock

import pytest
import requests

from tests import programs
from tests.refusing import refused
from txl_jax.data.corpora import downloads
from txl_jax.data.corpora.downloads import Archive

FILES = {'folder/a.txt': b'first\n' * 99, 'folder/b.txt': b'second', 'c': b''}


def write_zip(path):
  with zipfile.ZipFile(path, 'w') as archive:
    for name, data in FILES.items():
      archive.writestr(name, data)


def write_tar(path):
  with tarfile.open(path, 'w:gz') as archive:
    for name, data in FILES.items():
      info = tarfile.TarInfo(f'./{name}')
      info.size = len(data)
      archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize('name', ['enwik8', 'lm1b', 'wt103'])
def test_what_to_do_without_a_network(tmp_path, monkeypatch, name):
  get = mock.Mock(side_effect=requests.ConnectionError('no route'))
  monkeypatch.setattr(downloads.requests, 'get', get)
  known = Archive(('http://x/a', 'http://y/b'), 3, None, {}, md5='0')
  listed = ' --vocab_file=FILE' if name == 'lm1b' else ''
  assert refused(downloads.download, name, known, tmp_path / 'x/y') == (
    f'{name} cannot be downloaded: http://x/a: no route; http://y/b: no route; '
    'without a network, put a (3 bytes, md5 0) into a folder and run '
    f'python -m txl_jax.prepare --dataset={name} --manual_dir=FOLDER{listed}'
  )
  # Large files are never in memory whole.
  assert [call.kwargs['stream'] for call in get.mock_calls] == [True, True]


WRITE = pytest.mark.parametrize('write', [write_zip, write_tar])


@WRITE
def test_unpack_takes_the_members(write, tmp_path):
  write(tmp_path / 'archive')
  folder = tmp_path / 'out'
  folder.mkdir()
  names = ['folder/b.txt', 'folder/a.txt']
  found = downloads.unpack(tmp_path / 'archive', names, folder)
  assert [*found] == names
  assert all(path.read_bytes() == FILES[n] for n, path in found.items())
  assert len(list(folder.rglob('*.txt'))) == 2


def test_an_archive_whose_md5_alone_is_published(tmp_path):
  path = tmp_path / 'a.tgz'
  path.write_bytes(b'abc')
  url, right = ('http://corpus.invalid/a.tgz',), hashlib.md5(b'abc').hexdigest()
  known = Archive(url, 3, None, {}, md5=right)
  assert downloads.check(path, known)['size'] == 3
  path.write_bytes(b'abd')
  found = hashlib.md5(b'abd').hexdigest()
  said = refused(downloads.check, path, known)
  assert f'md5 {found}; expected 3 bytes, md5 {right}' in said
  path.unlink()
  programs.make_pipe(path)
  said = refused(downloads.check, path, known)
  assert 'no such file; expected 3 bytes, md5' in said


def test_a_sha256_decides(tmp_path):
  path = tmp_path / 'a.zip'
  path.write_bytes(b'abc')
  sha256 = hashlib.sha256(b'abc').hexdigest()
  url = ('http://corpus.invalid/a.zip',)
  found = downloads.check(path, Archive(url, None, sha256, {}))
  assert found == {'size': 3, 'sha256': sha256}
  said = refused(downloads.check, path, Archive(url, None, '0' * 64, {}))
  wanted = f'expected sha256 {"0" * 64}'
  assert said == f'{path}: has 3 bytes with sha256 {sha256}; {wanted}'
