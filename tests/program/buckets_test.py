"""Paths in a bucket, in memory; with -m slow on an emulator."""

import errno
import importlib.util
import io
import pathlib
import sys
from unittest import mock

import pytest

from tests import fake_bucket, programs
from txl_jax.program import buckets
from txl_jax.program.errors import UserError


def test_a_local_path_stays_one():
  assert buckets.place('~/a', 'x') == pathlib.Path('~/a')
  assert type(buckets.place(pathlib.Path('a'))) is type(pathlib.Path('a'))


@pytest.mark.parametrize(
  'text', ['s3://bucket/a', 'gs://', 'gs:///a', 'gs://bucket/a\nb']
)
def test_what_is_no_name_of_a_bucket(text, memory):
  refused = r'(?s)--workdir=.*allowed: a folder, or gs:'
  with pytest.raises(UserError, match=refused):
    buckets.place(text, '--workdir')


@pytest.mark.parametrize(
  'flags',
  [
    ['--workdir=gs://bucket/run'],
    ['--config.data.dir=gs://bucket/data'],
    ['--config=gs://bucket/run/config.py'],
  ],
)
def test_without_the_extra(flags, tmp_path, monkeypatch):
  find = importlib.util.find_spec

  def find_none(name, *rest):
    return None if name == 'gcsfs' else find(name, *rest)

  monkeypatch.setattr(importlib.util, 'find_spec', find_none)
  programs.write_corpus(tmp_path)
  command = programs.command(tmp_path, 'train.batch_size=8')
  done = programs.here([*command, *flags])
  name = flags[0].partition('=')[2]
  programs.assert_refused(done, name, "pip install 'txl_jax[gcs]'")


@pytest.mark.parametrize(
  'flags',
  [
    ['--workdir=s3://bucket/run'],
    ['--config.data.dir=s3://bucket/data'],
    ['--config.data.path=gs://bucket/text'],
    ['--export_file=gs://bucket/model.npz', '--mode=export'],
  ],
)
def test_what_must_be_elsewhere(flags, tmp_path):
  programs.write_corpus(tmp_path)
  done = programs.here([*programs.command(tmp_path), *flags])
  programs.assert_refused(done, flags[0].partition('=')[2], 'allowed: a ')


@pytest.mark.thorough
def test_local_runs_import_nothing_of_it():
  code = """
import sys
import txl_jax
light = {'jax', 'numpy', 'flax', 'etils', 'fsspec'} & set(sys.modules)
from txl_jax import main
from txl_jax.runs import checkpoint
checkpoint.Checkpoints('/tmp/none').newest()
heavy = {'gcsfs', 'google.cloud.storage', 'google.auth', 'tensorboardX'}
heavy &= set(sys.modules)
print(light, heavy)
"""
  done = programs.run([sys.executable, '-c', code])
  assert done.stdout == 'set() set()\n', done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_a_bucket_imports_no_tensorflow(emulated, tmp_path):
  """Though etils would, where it is installed."""
  (tmp_path / 'tensorflow.py').write_text('raise SystemExit(1)')
  code = f"""
import sys
sys.path.append({str(tmp_path)!r})
from txl_jax.program import buckets
path = buckets.place('gs://bucket/a')
from etils import epath
print(epath.Path(str(path)).exists())
"""
  done = programs.run([sys.executable, '-c', code])
  assert done.stdout == 'False\n', done.stderr


def names(folder):
  return sorted(x.relative_to(folder).as_posix() for x in folder.rglob('*'))


def write(path, data=b'x'):
  path.upload(io.BytesIO(data))


def test_paths(in_bucket):
  for name in 'a/b', 'a/seal.json', 'c':
    write(in_bucket / name, name.encode())
  write(in_bucket / 'big', bytes(3 << 24))
  assert names(in_bucket) == ['a/b', 'a/seal.json', 'big', 'c']
  assert {(x.name, x.is_dir()) for x in in_bucket.iterdir()} == {
    ('a', True),
    ('big', False),
    ('c', False),
  }
  with (in_bucket / 'big').open_read() as f:
    assert f.read(10) == bytes(10)
    assert f.tell() == 10
    assert len(f.read()) == (3 << 24) - 10
  (in_bucket / 'a').rename(in_bucket / 'd')
  (in_bucket / 'c').rename(in_bucket / 'e')
  assert names(in_bucket) == ['big', 'd/b', 'd/seal.json', 'e']
  before = (in_bucket / 'e').stat().st_mtime_ns
  write(in_bucket / 'e', b'd/b')
  assert (in_bucket / 'e').stat().st_mtime_ns != before
  (in_bucket / 'e').unlink()
  (in_bucket / 'e').unlink(missing_ok=True)
  with pytest.raises(FileNotFoundError):
    (in_bucket / 'e').unlink()
  (in_bucket / 'd').rmtree()
  assert names(in_bucket) == ['big']
  assert not (in_bucket / 'd').exists()


@pytest.mark.parametrize('rename', [False, True])
def test_a_mark_is_last_to_come_and_first_to_go(bucket, in_bucket, rename):
  for name in 'a/z', 'a/seal.json', 'a/b/c':
    write(in_bucket / name)
  wrote = []
  bucket.seen = wrote.append
  path = in_bucket / 'a'
  path.rename(in_bucket / 'd') if rename else path.rmtree()
  gone = [x for x in wrote if x.startswith('DELETE')]
  assert 'seal.json' in gone[0]
  if rename:
    came = [x for x in wrote if not x.startswith('DELETE')]
    assert 'seal.json' in came[-1]
  assert len(gone) == 3


def test_a_bucket_that_refuses(bucket, in_bucket):
  bucket.closed = True
  with pytest.raises(PermissionError, match='the bucket answers 403 Forbidden'):
    write(in_bucket / 'a')


def test_errors_of_the_client():
  for error, number, said in (
    (fake_bucket.Error(401), errno.EACCES, 'the bucket answers 401 Unauth'),
    (fake_bucket.Error(503), errno.EIO, 'the bucket answers 503 Service'),
    (fake_bucket.Error(404), errno.ENOENT, 'the bucket answers 404 Not Found'),
    (OSError('no route'), errno.EIO, 'no route'),
  ):
    with pytest.raises(OSError) as e, buckets._translating_errors('gs://b/a'):
      raise error
    assert (e.value.errno, e.value.filename) == (number, 'gs://b/a')
    assert e.value.strerror.startswith(said)


def test_names(memory):
  path = buckets.place('gs://my-bucket.a_b/runs/x')
  assert str(path) == 'gs://my-bucket.a_b/runs/x'
  assert buckets.place(path) is path
  path = buckets.Path('gs://b//a/c.d/e.txt/')
  assert str(path) == 'gs://b/a/c.d/e.txt'
  assert (path.name, path.suffix) == ('e.txt', '.txt')
  assert str(path.parent) == 'gs://b/a/c.d'
  assert str(path.with_suffix('')) == 'gs://b/a/c.d/e'
  assert str(path.with_name('f') / 'g') == 'gs://b/a/c.d/f/g'
  assert str(buckets.Path('gs://b') / 'x') == 'gs://b/x'
  assert len({path, buckets.Path(str(path)), path.parent}) == 2


def test_reading_what_is_written_over(in_bucket):
  """A file is read as it was when it was opened."""
  write(in_bucket / 'a', b'old')
  with (in_bucket / 'a').open_read() as f:
    write(in_bucket / 'a', b'new')
    assert f.read() == b'old'


def test_put_and_fetch(in_bucket, tmp_path):
  (tmp_path / 'a/b/c').mkdir(parents=True)
  (tmp_path / 'a/b/c/d').write_bytes(b'1')
  (tmp_path / 'a/manifest.json').write_bytes(b'2')
  buckets.put(tmp_path / 'a', in_bucket)
  (tmp_path / 'd').mkdir()
  buckets.fetch(in_bucket, tmp_path / 'd')
  assert (tmp_path / 'd/b/c/d').read_bytes() == b'1'
  assert (tmp_path / 'd/manifest.json').read_bytes() == b'2'


def test_one_client_for_each_bucket(monkeypatch):
  storage = mock.Mock()
  monkeypatch.setattr(buckets.importlib, 'import_module', lambda _: storage)
  assert buckets._bucket('one-here') is buckets._bucket('one-here')
  storage.Client.assert_called_once_with()


def test_no_listing_is_kept(monkeypatch):
  config = pytest.importorskip('fsspec.config')
  monkeypatch.setenv('EPATH_USE_TF', 'no')
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  monkeypatch.setattr(config, 'conf', {'gcs': {'other': 1}})
  buckets.place('gs://bucket/a')
  assert config.conf == {'gcs': {'other': 1, 'use_listings_cache': False}}


def test_what_another_deletes_meanwhile(memory):
  path = buckets.place('gs://bucket/a')
  write(path / 'b')
  memory.seen = lambda what: memory.objects.clear()
  path.rmtree()
  assert not path.exists()


def test_absolute_paths(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  found = [*map(buckets.absolute, ('a/../b', 'gs://b//a/', 'hf://a/b/'))]
  assert found == [f'{tmp_path}/b', 'gs://b/a', 'hf://a/b/']
