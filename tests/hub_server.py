"""A Hub on this machine, as huggingface_hub 2.4 talks to it; no Xet.

  with hub_server.serving() as hub:
    hub.put('org/name', {'config.json': b'{}'})

`environment` has what makes a client of it. A repository has commits, each a
dict of files; files of LARGE names are stored by their sha256, as by LFS.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = '.bin', '.safetensors', '.pkl', '.pt', '.parquet'
TOKEN = 'hf_' + 'a' * 34


def _is_large(path):
  return path.endswith(LARGE)


def _git_hash(data):
  return hashlib.sha1(b'blob %d\0' % len(data) + data).hexdigest()


class Repository:
  def __init__(self, private=False, gated=False):
    self.private, self.gated = private, gated
    self.commits = {}  # {sha: {path: bytes}}, in order
    self.messages = []  # of commits that a client makes
    self.refs = {}

  def commit(self, files, ref='main'):
    """A commit of all files at a time; its sha."""
    names = f'{len(self.commits)}{sorted(files)}'
    sha = hashlib.sha1(names.encode()).hexdigest()
    self.commits[sha] = dict(files)
    self.refs[ref] = sha
    return sha

  def find(self, revision):
    """The sha of a branch or of itself; None if there is none."""
    sha = self.refs.get(revision, revision)
    return sha if sha in self.commits else None


class Hub(http.server.ThreadingHTTPServer):
  """Has `repositories`, and what goes wrong.

  Attributes:
    cut: {path: bytes after which the connection breaks, once}
    swapped: {path: bytes that are sent in place of the file}
    status: an HTTP status of every answer, or 0.
    asked: (method, path) of all requests.
  """

  daemon_threads = True

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.repositories, self.blobs = {}, {}
    self.cut, self.swapped, self.status = {}, {}, 0
    self.asked, self.ranges = [], []

  @property
  def url(self):
    return f'http://127.0.0.1:{self.server_port}'

  def put(self, name, files, **about):
    """A new commit of a repository, which is made if needed; its sha."""
    ref = about.pop('ref', 'main')
    made = self.repositories.setdefault(name, Repository(**about))
    return made.commit(files, ref)

  def files(self, name):
    """The files on main."""
    repository = self.repositories[name]
    return repository.commits[repository.refs['main']]

  def environment(self, home, token=''):
    """Variables of a client with an empty cache."""
    made = {
      'HF_ENDPOINT': self.url,
      'HF_HOME': f'{home}',
      'HF_HUB_DISABLE_XET': '1',
      'HF_HUB_DISABLE_TELEMETRY': '1',
      'NO_PROXY': '127.0.0.1',
    }
    return made | ({'HF_TOKEN': token} if token else {})


@contextlib.contextmanager
def serving():
  with Hub() as hub:
    thread = threading.Thread(target=hub.serve_forever, args=(0.02,))
    thread.start()
    try:
      yield hub
    finally:
      hub.shutdown()
      thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  server: Hub

  def log_message(self, *_):
    pass

  def _answer(self, status, data=b'', head=None, cut=None):
    if not isinstance(data, bytes):
      data = json.dumps(data).encode()
    self.send_response(status)
    for key, value in {'Content-Length': len(data), **(head or {})}.items():
      self.send_header(key, f'{value}')
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(data[:cut])
      self.close_connection |= cut is not None

  def _fail(self, status, code, message=''):
    head = {'X-Error-Code': code, 'X-Error-Message': message or code}
    self._answer(status, {'error': message or code}, head)

  def _signed_in(self):
    return self.headers.get('authorization') == f'Bearer {TOKEN}'

  def _known(self, name):
    """A repository, or None after an answer that says why not."""
    said = self.headers.get('authorization')
    if said and not self._signed_in():
      self._fail(401, '', 'Invalid credentials in Authorization header')
      return None
    found = self.server.repositories.get(name)
    if not found or (found.private and not self._signed_in()):
      self._fail(404 if self._signed_in() else 401, 'RepoNotFound')
      return None
    return found

  def _revision(self, found, revision):
    if sha := found.find(urllib.parse.unquote(revision)):
      return sha
    self._fail(404, 'RevisionNotFound')
    return None

  def _handle(self):
    url = urllib.parse.urlsplit(self.path)
    size = int(self.headers.get('content-length') or 0)
    self.body = self.rfile.read(size)
    self.server.asked.append((self.command, url.path))
    if self.server.status:
      self._answer(self.server.status, {'error': 'out of order'})
      return
    name, where = r'([\w.-]+/[\w.-]+)', '(?:/datasets)?'
    kind = '(?:models|datasets)'
    for method, pattern, call in (
      ('GET', f'/api/{kind}/{name}/tree/([^/]+)', self._tree),
      ('GET', f'/api/{kind}/{name}(?:/revision/(.+))?', self._info),
      ('GET HEAD', f'{where}/{name}/resolve/([^/]+)/(.+)', self._resolve),
      ('POST', '/api/repos/create', self._create),
      ('POST', '/api/validate-yaml', self._validate),
      ('POST', f'/api/models/{name}/preupload/([^/]+)', self._preupload),
      ('POST', f'/{name}.git/info/lfs/objects/batch', self._batch),
      ('PUT', '/lfs/([0-9a-f]+)', self._store),
      ('POST', f'/api/models/{name}/commit/([^/]+)', self._commit),
    ):
      matched = re.fullmatch(pattern, url.path)
      if matched and self.command in method.split():
        call(*matched.groups())
        return
    self._fail(404, 'NotFound', f'{self.command} {url.path}')

  do_GET = do_HEAD = do_POST = do_PUT = _handle

  def _info(self, name, revision):
    if not (found := self._known(name)):
      return
    if not found.refs:
      self._answer(200, {'id': name, 'sha': None, 'private': found.private})
      return
    if sha := self._revision(found, revision or 'main'):
      siblings = [{'rfilename': path} for path in found.commits[sha]]
      about = {'id': name, 'sha': sha, 'private': found.private}
      self._answer(200, about | {'siblings': siblings})

  def _tree(self, name, revision):
    if not (found := self._known(name)):
      return
    if sha := self._revision(found, revision):
      entries = []
      for path, data in found.commits[sha].items():
        entry = {'type': 'file', 'path': path, 'size': len(data)}
        entry['oid'] = _git_hash(data)
        if _is_large(path):
          oid = hashlib.sha256(data).hexdigest()
          entry['lfs'] = {'oid': oid, 'size': len(data), 'pointerSize': 134}
        entries.append(entry)
      self._answer(200, entries)

  def _resolve(self, name, revision, path):
    path = urllib.parse.unquote(path)
    if not (found := self._known(name)):
      return
    if found.gated and not self._signed_in():
      self._fail(403, 'GatedRepo')
      return
    if not (sha := self._revision(found, revision)):
      return
    if (data := found.commits[sha].get(path)) is None:
      self._fail(404, 'EntryNotFound')
      return
    etag = hashlib.sha256(data).hexdigest()
    etag = etag if _is_large(path) else _git_hash(data)
    head = {'X-Repo-Commit': sha, 'ETag': f'"{etag}"', 'Accept-Ranges': 'bytes'}
    if _is_large(path):
      head |= {'X-Linked-Etag': f'"{etag}"', 'X-Linked-Size': len(data)}
    data, status = self.server.swapped.get(path, data), 200
    if asked := re.match(r'bytes=(\d+)-', self.headers.get('range', '')):
      self.server.ranges.append((path, int(asked[1])))
      head['Content-Range'] = f'bytes {asked[1]}-{len(data) - 1}/{len(data)}'
      data, status = data[int(asked[1]) :], 206
    cut = self.server.cut.pop(path, None) if self.command == 'GET' else None
    self._answer(status, data, head, cut)

  def _create(self):
    if not self._signed_in():
      self._fail(401, '', 'Invalid username or password.')
      return
    asked = json.loads(self.body)
    name = f'{asked["organization"]}/{asked["name"]}'
    url = f'{self.server.url}/{name}'
    if asked['organization'] == 'forbidden':
      self._fail(403, '', 'You have no rights here')
    elif name in self.server.repositories:
      self._answer(409, {'error': 'there already', 'url': url})
    else:
      private = asked.get('visibility') == 'private' or asked.get('private')
      self.server.repositories[name] = Repository(private=bool(private))
      self.server.put(name, {'.gitattributes': b''})
      self._answer(200, {'url': url})

  def _validate(self):
    self._answer(200, {'errors': [], 'warnings': []})

  def _preupload(self, name, revision):
    if self._known(name):
      files = [
        {
          'path': x['path'],
          'uploadMode': 'lfs' if _is_large(x['path']) else 'regular',
          'shouldIgnore': False,
        }
        for x in json.loads(self.body)['files']
      ]
      self._answer(200, {'files': files})

  def _batch(self, name):
    if self._known(name):
      objects = []
      for x in json.loads(self.body)['objects']:
        href = f'{self.server.url}/lfs/{x["oid"]}'
        objects.append(x | {'actions': {'upload': {'href': href}}})
      self._answer(200, {'transfer': 'basic', 'objects': objects})

  def _store(self, oid):
    assert hashlib.sha256(self.body).hexdigest() == oid
    self.server.blobs[oid] = self.body
    self._answer(200)

  def _commit(self, name, revision):
    if not (found := self._known(name)):
      return
    files = dict(found.commits[found.refs[revision]])
    for line in self.body.splitlines():
      entry = json.loads(line)
      value = entry['value']
      if entry['key'] == 'header':
        found.messages.append(value['summary'])
      if entry['key'] == 'file':
        files[value['path']] = base64.b64decode(value['content'])
      elif entry['key'] == 'lfsFile':
        files[value['path']] = self.server.blobs[value['oid']]
    sha = found.commit(files, revision)
    url = f'{self.server.url}/{name}/commit/{sha}'
    done = {'success': True, 'commitOid': sha, 'commitUrl': url}
    self._answer(200, done)
