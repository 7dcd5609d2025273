"""What builders_test.py leaves open: unknown facts, and unpacking."""

import hashlib
import http.server
import io
import tarfile
import zipfile

import pytest

from tests import programs
from txl_jax.data.corpora import downloads
from txl_jax.data.corpora.downloads import Archive
from txl_jax.program.errors import UserError

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


WRITE = pytest.mark.parametrize('write', [write_zip, write_tar])


@WRITE
def test_unpack_takes_the_members(write, tmp_path):
  write(tmp_path / 'archive')
  folder = tmp_path / 'out'
  folder.mkdir()
  names = ['folder/b.txt', 'folder/a.txt']
  found = downloads.unpack(tmp_path / 'archive', names, folder)
  assert {n: p.read_bytes() for n, p in found.items()} == {
    n: FILES[n] for n in names
  }
  assert len(list(folder.rglob('*.txt'))) == 2


def test_an_archive_whose_md5_alone_is_published(tmp_path):
  path = tmp_path / 'a.tgz'
  path.write_bytes(b'abc')
  url, right = ('http://corpus.invalid/a.tgz',), hashlib.md5(b'abc').hexdigest()
  known = Archive(url, 3, None, {}, md5=right)
  assert downloads.check(path, known)['size'] == 3
  path.write_bytes(b'abd')
  found = hashlib.md5(b'abd').hexdigest()
  with pytest.raises(
    UserError, match=f'md5 {found}; expected 3 bytes, md5 {right}'
  ):
    downloads.check(path, known)
  path.unlink()
  programs.make_pipe(path)
  with pytest.raises(UserError, match='no such file; expected 3 bytes, md5'):
    downloads.check(path, known)


def test_a_sha256_decides(tmp_path):
  path = tmp_path / 'a.zip'
  path.write_bytes(b'abc')
  sha256 = hashlib.sha256(b'abc').hexdigest()
  url = ('http://corpus.invalid/a.zip',)
  found = downloads.check(path, Archive(url, None, sha256, {}))
  assert found == {'size': 3, 'sha256': sha256}
  with pytest.raises(UserError) as error:
    downloads.check(path, Archive(url, None, '0' * 64, {}))
  assert str(error.value) == (
    f'{path}: has 3 bytes with sha256 {sha256}; expected sha256 {"0" * 64}'
  )


class Handler(http.server.BaseHTTPRequestHandler):
  """A server that knows ranges, and where they end."""

  def do_GET(self):
    asked = self.headers.get('Range')
    start = int(asked.removeprefix('bytes=')[:-1]) if asked else 0
    body = self.server.body[start:]
    if not body:
      return self.send_error(416)
    self.send_response(206 if start else 200)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)
    return None

  def log_message(self, *args):
    pass
