"""Names in a bucket as paths, in memory; with -m slow on an emulator."""

import io

import pytest

from txl_jax import buckets


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
  (in_bucket / 'a').rename(in_bucket / 'd') if rename else (
    in_bucket / 'a'
  ).rmtree()
  gone = [x for x in wrote if x.startswith('DELETE')]
  assert 'seal.json' in gone[0]
  if rename:
    came = [x for x in wrote if not x.startswith('DELETE')]
    assert 'seal.json' in came[-1]
  assert len(gone) == 3


def test_no_such_bucket(bucket):
  path = buckets.Path('gs://no-such-bucket/a')
  with pytest.raises(FileNotFoundError, match='404 Not Found'):
    write(path)


def test_a_bucket_that_refuses(bucket, in_bucket):
  bucket.closed = True
  with pytest.raises(PermissionError, match='the bucket answers 403 Forbidden'):
    write(in_bucket / 'a')


def test_names():
  path = buckets.Path('gs://b//a/c.d/e.txt/')
  assert str(path) == 'gs://b/a/c.d/e.txt'
  assert (path.name, path.suffix) == ('e.txt', '.txt')
  assert str(path.parent) == 'gs://b/a/c.d'
  assert str(path.with_suffix('')) == 'gs://b/a/c.d/e'
  assert str(path.with_name('f') / 'g') == 'gs://b/a/c.d/f/g'
  assert str(buckets.Path('gs://b') / 'x') == 'gs://b/x'
  assert len({path, buckets.Path(str(path)), path.parent}) == 2


def test_reading_what_is_written_over(in_bucket):
  """A file is read as it was when it was opened, or fails."""
  write(in_bucket / 'a', bytes(3 << 24))
  with (in_bucket / 'a').open_read() as f:
    f.read(10)
    write(in_bucket / 'a', b'new')
    # 416, of a part that is not there: the emulator takes no conditions here.
    with pytest.raises(OSError, match=r'the bucket answers 41[26]'):
      f.read()


def test_put_and_fetch(in_bucket, tmp_path):
  (tmp_path / 'a/b').mkdir(parents=True)
  (tmp_path / 'a/b/c').write_bytes(b'1')
  (tmp_path / 'a/manifest.json').write_bytes(b'2')
  buckets.put(tmp_path / 'a', in_bucket)
  (tmp_path / 'd').mkdir()
  buckets.fetch(in_bucket, tmp_path / 'd')
  assert (tmp_path / 'd/b/c').read_bytes() == b'1'
  assert (tmp_path / 'd/manifest.json').read_bytes() == b'2'
