import hashlib
import http.server
import pathlib
import subprocess
import sys
import tempfile
import threading
import zipfile
from unittest import mock

import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.data.corpora import builders
from txl_jax.program.errors import UserError

SIZES = {'train': 2_300_000, 'validation': 150_000, 'test': 50_000}
TEXT = np.random.default_rng(0).integers(9, 120, 2_500_000, np.uint8).tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves server.body, as far as server.cut says, and notes the requests."""

  def do_GET(self):
    server = self.server
    server.requests.append((self.path, self.headers.get('Range')))
    if 'missing' in self.path:
      return self.send_error(404)
    start = 0
    if server.ranges and self.headers.get('Range'):
      start = int(self.headers['Range'].removeprefix('bytes=')[:-1])
    body = server.body[start:]
    self.send_response(206 if start else 200)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body[: server.cuts.pop(0) if server.cuts else None])
    return None

  def log_message(self, *args):
    pass


@pytest.fixture(scope='module')
def archive_bytes(tmp_path_factory):
  path = tmp_path_factory.mktemp('zip') / 'enwik8.zip'
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('other', b'something else')
    archive.writestr('enwik8', TEXT)
  return path.read_bytes()


@pytest.fixture
def server(archive_bytes, monkeypatch):
  for name in ('http_proxy', 'HTTP_PROXY', 'all_proxy', 'ALL_PROXY'):
    monkeypatch.delenv(name, raising=False)
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.body, server.cuts, server.ranges = archive_bytes, [], True
  server.requests = []
  server.address = f'http://127.0.0.1:{server.server_port}'
  thread = threading.Thread(target=server.serve_forever, args=[0.01])
  thread.start()
  yield server
  server.shutdown()
  server.server_close()
  thread.join()


@pytest.fixture
def register(archive_bytes, monkeypatch):
  """Puts the small archive, with the given urls, in the place of enwik8."""

  def register(*urls, sha256=None, sizes=SIZES):
    sha256 = sha256 or hashlib.sha256(archive_bytes).hexdigest()
    members = dict.fromkeys(sizes, ('enwik8',))
    archive = builders.Archive(urls, len(archive_bytes), sha256, members, sizes)
    monkeypatch.setitem(builders.ARCHIVES, 'enwik8', archive)

  return register


def texts(splits):
  return {split: b''.join(read()) for split, read in splits.items()}


EXPECTED = {
  'train': TEXT[:2_300_000],
  'validation': TEXT[2_300_000:2_450_000],
  'test': TEXT[2_450_000:],
}


@pytest.mark.thorough
def test_download_gives_the_bytes_in_order_and_only_once(
  server, register, tmp_path
):
  url = f'{server.address}/enwik8.zip'
  register(url)
  splits, source = builders.read('enwik8', tmp_path)
  assert list(splits) == ['train', 'validation', 'test']
  assert texts(splits) == EXPECTED
  assert texts(splits) == EXPECTED  # the chunks can be had again
  assert source == {
    'file': 'enwik8.zip',
    'urls': [url],
    'size': len(server.body),
    'sha256': hashlib.sha256(server.body).hexdigest(),
  }
  assert len(server.requests) == 1
  splits, _ = builders.read('enwik8', tmp_path)
  assert texts(splits) == EXPECTED
  splits, _ = builders.read('enwik8', tmp_path, force=True)
  assert texts(splits) == EXPECTED
  assert len(server.requests) == 1


def test_records_are_in_chunks_of_one_mebibyte(server, register, tmp_path):
  register(f'{server.address}/enwik8.zip')
  splits, _ = builders.read('enwik8', tmp_path)
  chunks = [len(chunk) for chunk in splits['train']()]
  assert chunks == [1 << 20, 1 << 20, 2_300_000 - (2 << 20)]


def test_urls_are_tried_in_order(server, register, tmp_path):
  bad, good = f'{server.address}/missing.zip', f'{server.address}/enwik8.zip'
  register(bad, good)
  splits, _ = builders.read('enwik8', tmp_path)
  assert texts(splits) == EXPECTED
  assert server.requests == [('/missing.zip', None), ('/enwik8.zip', None)]


def test_damaged_archive_in_the_cache_is_downloaded_anew(
  server, register, tmp_path
):
  register(f'{server.address}/enwik8.zip')
  path = tmp_path / 'tfds/downloads/enwik8.zip'
  path.parent.mkdir(parents=True)
  path.write_bytes(server.body[:-1] + b'x')
  splits, _ = builders.read('enwik8', tmp_path)
  assert texts(splits) == EXPECTED


def test_download_through_a_proxy(server, register, tmp_path, monkeypatch):
  monkeypatch.setenv('http_proxy', server.address)
  monkeypatch.setenv('no_proxy', '')
  url = 'http://corpus.invalid/enwik8.zip'
  register(url)
  splits, _ = builders.read('enwik8', tmp_path)
  assert texts(splits) == EXPECTED
  assert server.requests == [(url, None)]


def test_wrong_checksum_is_refused(server, register, tmp_path):
  url = f'{server.address}/enwik8.zip'
  register(url, sha256='0' * 64)
  message = refused(builders.read, 'enwik8', tmp_path)
  assert f'{url}: ' in message
  assert hashlib.sha256(server.body).hexdigest() in message  # found
  assert f'expected {len(server.body)} bytes, sha256 {"0" * 64}' in message
  assert list((tmp_path / 'tfds/downloads').iterdir()) == []


@pytest.mark.parametrize('found', ['nothing', 'flipped', 'short'])
def test_manual_dir_is_checked(register, archive_bytes, tmp_path, found):
  register('http://corpus.invalid/enwik8.zip')
  path = tmp_path / 'enwik8.zip'
  if found == 'flipped':
    path.write_bytes(bytes([archive_bytes[0] ^ 1]) + archive_bytes[1:])
  elif found == 'short':
    path.write_bytes(archive_bytes[:-1])
  (tmp_path / 'enwik8').write_bytes(TEXT)  # a text of all splits is no proof
  message = refused(builders.read, 'enwik8', tmp_path / 'data', tmp_path)
  assert str(path) in message
  assert ('no such file' in message) == (found == 'nothing')
  assert hashlib.sha256(archive_bytes).hexdigest() in message


def test_texts_of_several_files_do_not_replace_the_archive(
  tmp_path, monkeypatch
):
  for name in 'abc':
    (tmp_path / name).write_text('a text')
  members = {'train': ('x/a', 'x/b'), 'test': ('x/c',)}
  archive = builders.Archive(('http://x.invalid/x.zip',), 3, '0', members)
  monkeypatch.setitem(builders.ARCHIVES, 'lm1b', archive)
  said = refused(builders.read, 'lm1b', tmp_path / 'data', tmp_path)
  assert said.startswith(f'{tmp_path}/x.zip: no such file; ')


def test_damaged_records_are_told_and_mended(server, register, tmp_path):
  register(f'{server.address}/enwik8.zip')
  builders.read('enwik8', tmp_path)
  (path,) = (tmp_path / 'tfds/enwik8').glob('*/*train.array_record*')
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)
  splits, _ = builders.read('enwik8', tmp_path)
  with pytest.raises(UserError, match=r'cannot be read, .* --force'):
    b''.join(splits['train']())
  splits, _ = builders.read('enwik8', tmp_path, force=True)
  assert texts(splits) == EXPECTED


@pytest.mark.thorough
def test_an_odd_description_is_told_and_mended(
  register, archive_bytes, tmp_path
):
  register('http://corpus.invalid/enwik8.zip')
  (tmp_path / 'enwik8.zip').write_bytes(archive_bytes)
  builders.read('enwik8', tmp_path, tmp_path)
  path = tmp_path / 'tfds/enwik8/1.0.0'
  (path / 'dataset_info.json').write_text('{')
  with pytest.raises(UserError, match=f'^{path} cannot be read.* --force'):
    builders.read('enwik8', tmp_path, tmp_path)
  splits, _ = builders.read('enwik8', tmp_path, tmp_path, force=True)
  assert texts(splits) == EXPECTED


def test_records_that_cannot_be_written(register, archive_bytes, tmp_path):
  register('http://corpus.invalid/enwik8.zip')
  (tmp_path / 'enwik8.zip').write_bytes(archive_bytes)

  def full(_, download_config, **__):
    assert not download_config.try_download_gcs
    raise RuntimeError('write() failed: No space left on device; writing x')

  cannot = pytest.raises(UserError, match=r'records cannot .*ing x')
  broken = mock.patch.object(builders.Records, 'download_and_prepare', full)
  with broken, cannot:
    builders.read('enwik8', tmp_path / 'data', tmp_path)
  assert list((tmp_path / 'data/tfds/enwik8').iterdir()) == []


def test_manual_dir_needs_no_network_and_leaves_no_folder(
  register, archive_bytes, tmp_path, monkeypatch
):
  register('http://corpus.invalid/enwik8.zip')
  (tmp_path / 'enwik8.zip').write_bytes(archive_bytes)
  (tmp_path / 'tmp').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))
  quiet = mock.Mock()
  monkeypatch.setattr(builders.tfds, 'disable_progress_bar', quiet)
  monkeypatch.setattr(builders.local, '_CHUNK', 1 << 17)  # many records
  splits, _ = builders.read('enwik8', tmp_path / 'data', tmp_path)
  assert texts(splits) == EXPECTED
  quiet.assert_called_once_with()  # as this is no terminal
  assert list((tmp_path / 'tmp').iterdir()) == []


@pytest.mark.thorough
def test_no_tensorflow_is_imported(archive_bytes, tmp_path):
  (tmp_path / 'enwik8.zip').write_bytes(archive_bytes)
  code = f"""
import sys
from txl_jax.data.corpora import builders
builders.ARCHIVES['enwik8'] = builders.Archive(
    ('http://corpus.invalid/enwik8.zip',), {len(archive_bytes)},
    {hashlib.sha256(archive_bytes).hexdigest()!r},
    dict.fromkeys({SIZES}, ('enwik8',)), {SIZES})
splits, _ = builders.read('enwik8', {str(tmp_path)!r}, {str(tmp_path)!r})
assert sum(len(c) for read in splits.values() for c in read()) == {len(TEXT)}
assert 'tensorflow' not in sys.modules
"""
  root = pathlib.Path(builders.__file__).parents[3]
  subprocess.run([sys.executable, '-c', code], check=True, cwd=root)


def test_training_needs_no_tfds(tmp_path):
  book = tmp_path / 'my book.txt'
  book.write_bytes(b'a few lines\n' * 99)
  code = """
import sys
from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import Data
section = Data(corpus='text', dir=sys.argv[1], path=sys.argv[2])
data = preparation.locate_or_prepare(section)
assert data.tokens('train').size > 0
names = 'tensorflow', 'tensorflow_datasets', 'jax', 'flax', 'requests'
for name in (*names, 'tokenizers'):
  assert name not in sys.modules, name
"""
  root = pathlib.Path(builders.__file__).parents[3]
  subprocess.run(
    [sys.executable, '-c', code, str(tmp_path / 'data'), str(book)],
    check=True,
    cwd=root,
  )
