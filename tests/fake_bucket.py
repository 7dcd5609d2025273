"""A bucket in the memory of a test, with the calls that `buckets` makes.

What it does is what the emulator does: the same tests hold for both.
"""

import threading


class Error(Exception):
  """Of google.api_core.exceptions: an answer that is an error."""

  def __init__(self, code):
    super().__init__(f'{code} at an address')
    self.code = code


class Bucket:
  """Objects, {name: (generation, bytes)}; as `emulator.Door` it may refuse."""

  def __init__(self, missing=False):
    self.objects, self.generations, self.missing = {}, 0, missing
    self.lock = threading.Lock()
    self.open()

  def open(self):
    self.closed, self.seen = False, lambda what: None

  def write(self, what):
    """Is called before anything is written."""
    if self.missing:
      raise Error(404)
    self.seen(what)
    if self.closed:
      raise Error(403)

  def blob(self, name):
    return Blob(self, name)

  def get_blob(self, name):
    return self.blob(name).found() if name in self.objects else None

  def list_blobs(self, prefix, delimiter='', max_results=None):
    if self.missing:
      raise Error(404)
    names = sorted(x for x in self.objects if x.startswith(prefix))
    found = _List()
    for name in names[:max_results]:
      below = name[len(prefix) :].split('/')
      if delimiter and below[1:]:
        found.prefixes.add(f'{prefix}{below[0]}/')
      else:
        found.append(self.get_blob(name))
    return found


class _List(list):
  def __init__(self):
    super().__init__()
    self.prefixes = set()


class Blob:
  """An object, or the name of one."""

  def __init__(self, bucket, name):
    self.bucket, self.name = bucket, name

  def found(self):
    self.generation, data = self.bucket.objects[self.name]
    self.size = len(data)
    return self

  def _write(self, data, how):
    bucket = self.bucket
    bucket.write(how)
    with bucket.lock:
      bucket.generations += 1
      bucket.objects[self.name] = bucket.generations, data
      self.found()

  def _data(self):
    found = self.bucket.objects.get(self.name)
    if found is None or found[0] != self.generation:
      raise Error(404)
    return found[1]

  def _must_be(self, generation):
    there = self.bucket.objects.get(self.name, (0, b''))[0]
    if generation is not None and there != generation:
      raise Error(412)

  def upload_from_file(self, file, rewind, size, if_generation_match, retry):
    self._must_be(if_generation_match)
    if rewind:
      file.seek(0)
    data = file.read()
    assert len(data) == size
    self._write(data, f'POST upload {self.name}')

  def rewrite(self, source, token, retry):
    if token is None:  # the first of two requests, as for a large object
      return 'half', 0, source.size
    assert token == 'half'
    self._write(source._data(), f'POST {source.name}/rewriteTo/{self.name}')
    return None, self.size, self.size

  def download_to_file(self, file):
    file.write(self._data())

  def download_to_filename(self, path):
    with open(path, 'wb') as f:
      f.write(self._data())

  def delete(self, if_generation_match=None, retry=None):
    self.bucket.write(f'DELETE {self.name}')
    if self.name not in self.bucket.objects:
      raise Error(404)
    self._must_be(if_generation_match)
    del self.bucket.objects[self.name]
