"""What TFDS leaves to `downloads`: each a reason for some of its lines."""

import hashlib
import http.server
import importlib.util
import threading
import zipfile

import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import (
  NonMatchingChecksumError,
)
from tensorflow_datasets.core.download.extractor import ExtractError

BODY = bytes(range(250)) * 400


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves BODY, half of it where the path says so, and notes requests."""

  def do_GET(self):
    self.server.requests.append((self.path, self.headers.get('Range')))
    if 'missing' in self.path:
      return self.send_error(404)
    self.send_response(200)
    self.send_header('Content-Length', str(len(BODY)))
    self.end_headers()
    self.wfile.write(BODY[: len(BODY) // 2] if 'half' in self.path else BODY)
    return None

  def log_message(self, *args):
    pass


@pytest.fixture
def server(monkeypatch):
  for name in ('http_proxy', 'HTTP_PROXY', 'all_proxy', 'ALL_PROXY'):
    monkeypatch.delenv(name, raising=False)
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.requests = []
  thread = threading.Thread(target=server.serve_forever, args=[0.01])
  thread.start()
  yield server
  server.shutdown()
  server.server_close()
  thread.join()


@pytest.fixture
def manager(server, tmp_path):
  """Makes managers that know what is at the paths of the server."""
  (tmp_path / 'manual').mkdir()
  known = {'size': len(BODY), 'checksum': hashlib.sha256(BODY).hexdigest()}

  def make(*paths, **other):
    urls = [f'http://127.0.0.1:{server.server_port}/{p}' for p in paths]
    info = UrlInfo(**known | other, filename='a.zip')
    manager = tfds.download.DownloadManager(
      download_dir=tmp_path / 'downloads',
      manual_dir=tmp_path / 'manual',
      url_infos=dict.fromkeys(urls, info),
    )
    return manager, urls[0]

  return make


def test_it_asks_one_url(manager, server):
  found, url = manager('missing', 'a.zip')
  with pytest.raises(tfds.download.DownloadError):
    found.download(url)
  assert server.requests == [('/missing', None)]


def test_it_waits_for_a_server_for_ever(manager, monkeypatch):
  send, timeouts = requests.Session.send, []

  def watched(self, request, **kwargs):
    timeouts.append(kwargs['timeout'])
    return send(self, request, **kwargs)

  monkeypatch.setattr(requests.Session, 'send', watched)
  found, url = manager('a.zip')
  found.download(url)
  assert timeouts == [None]


@pytest.mark.parametrize('known', [{'size': None}, {'checksum': None}])
def test_it_checks_size_and_sha256_or_nothing(manager, tmp_path, known):
  (tmp_path / 'manual/a.zip').write_bytes(BODY)
  found, url = manager('a.zip')
  assert found.download(url).read_bytes() == BODY
  found, url = manager('a.zip', **known)
  with pytest.raises(NonMatchingChecksumError) as error:
    found.download(url)
  assert len(str(error.value).splitlines()) == 4


def test_it_downloads_what_is_not_in_manual_dir(manager, server):
  found, url = manager('a.zip')
  assert found.download(url).read_bytes() == BODY
  assert server.requests == [('/a.zip', None)]


def test_it_trusts_what_it_has_kept(manager):
  found, url = manager('a.zip')
  found.download(url).write_bytes(b'damaged')
  found, url = manager('a.zip')
  assert found.download(url).read_bytes() == b'damaged'


@pytest.mark.skipif(
  importlib.util.find_spec('tensorflow') is not None,
  reason='is about environments without TensorFlow',
)
def test_it_unpacks_with_tensorflow_alone(manager, tmp_path):
  path = tmp_path / 'a.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('a', BODY)
  found, _ = manager('a.zip')
  with pytest.raises(ExtractError, match='tensorflow'):
    found.extract(path)
  with pytest.raises(ModuleNotFoundError, match='tensorflow'):
    list(found.iter_archive(path))
