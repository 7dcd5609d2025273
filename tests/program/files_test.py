import errno
import os
import threading

import pytest

from tests import programs
from tests.refusing import refused
from txl_jax.program import files
from txl_jax.program.errors import UserError


def test_what_is_written_is_read(tmp_path):
  files.write(tmp_path / 'a', '{"x": [1]}')
  assert files.read(tmp_path / 'a') == b'{"x": [1]}'
  assert files.read_json(tmp_path / 'a') == {'x': [1]}
  assert [p.name for p in tmp_path.iterdir()] == ['a']


def test_a_pipe_does_not_block(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  told = []

  def read():
    with pytest.raises(UserError, match='cannot be read: it is a pipe') as e:
      files.read(tmp_path / 'pipe')
    told.append(e)

  thread = threading.Thread(target=read, daemon=True)
  thread.start()
  thread.join(10)
  assert told


def test_what_is_no_file():
  zero = '/dev/zero', 'pipe or device'
  for path, words in zero, ('.', 'a folder'), ('nothing', 'No such file'):
    with pytest.raises(UserError, match=words):
      files.read(path)


def test_the_size_of_a_file_is_limited(tmp_path):
  with (tmp_path / 'sparse').open('wb') as f:
    f.truncate(1 << 40)
  said = refused(files.read, tmp_path / 'sparse', 'key: sparse', 1001)
  assert said == 'key: sparse is larger than the limit of 1,001 bytes'
  (tmp_path / 'full').write_bytes(bytes(1001))
  assert files.read(tmp_path / 'full', '', 1001) == bytes(1001)


@pytest.mark.parametrize(
  'text', ['', '[' * 100_000, '[1]', '1', '{"a": 1', '\xff', '1' * 5000]
)
def test_what_is_no_json_object(tmp_path, text):
  (tmp_path / 'a').write_text(text, encoding='latin-1')
  with pytest.raises(UserError, match=r'a (is not valid JSON|holds a )'):
    files.read_json(tmp_path / 'a')


def failing(*_):
  raise PermissionError(1, 'Operation not permitted')


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
  files.write(tmp_path / 'a', 'before')
  monkeypatch.setattr(os, 'fsync', failing)
  with pytest.raises(UserError, match='a cannot be written: '):
    files.write(tmp_path / 'a', 'after')
  assert files.read(tmp_path / 'a') == b'before'
  assert [p.name for p in tmp_path.iterdir()] == ['a']


def test_no_file_of_anothers_is_written_on_the_way(tmp_path):
  (tmp_path / 'victim').write_text('mine')
  (tmp_path / 'a.tmp').symlink_to(tmp_path / 'victim')
  (tmp_path / 'b.tmp').write_text('mine')
  for name in 'a', 'b':
    files.write(tmp_path / name, 'new')
  mine = [(tmp_path / name).read_text() for name in ('victim', 'b.tmp')]
  assert mine == ['mine', 'mine'] and (tmp_path / 'a.tmp').is_symlink()


def test_a_new_file_replaces_another_when_it_is_whole(tmp_path):
  path = tmp_path / 'a'
  for text in (b'first', b'second'):
    before = path.read_bytes() if path.exists() else None
    with files.replacing(path) as f:
      f.write(text)
      assert (path.read_bytes() if path.exists() else None) == before
    assert path.read_bytes() == text
  with pytest.raises(KeyboardInterrupt), files.replacing(path) as f:
    f.write(b'third')
    raise KeyboardInterrupt
  assert path.read_bytes() == b'second'
  assert [p.name for p in tmp_path.iterdir()] == ['a']


def test_a_device_is_not_replaced(tmp_path):
  (tmp_path / 'a').symlink_to('/dev/null')
  for path in (tmp_path / 'a', programs.make_pipe(tmp_path / 'b'), tmp_path):
    no_file = pytest.raises(OSError, match=r'^\[Errno 0\] it is a .* not a f')
    with no_file, files.replacing(path):
      raise AssertionError('the block is not entered')
  assert sorted(p.name for p in tmp_path.iterdir()) == ['a', 'b']


def test_a_failed_write_is_named(tmp_path):
  full = pytest.raises(OSError, match="No space left on device: 'x'")
  with full, files.naming('x'), open('/dev/full', 'wb', 0) as f:
    f.write(b'a')
  with pytest.raises(OSError, match=str(tmp_path)), files.naming('x'):
    (tmp_path / 'no' / 'file').read_bytes()
  with pytest.raises(OSError) as error, files.naming('x'):
    raise OSError('no failure of the system')
  assert str(error.value) == 'no failure of the system'


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_a_new_folder_lies_beside_and_goes(tmp_path):
  path = tmp_path / 'new' / 'corpus'
  with pytest.raises(KeyError), files.new_folder(path) as made:
    assert made.parent.parent == path.parent
    assert made.parent.name.startswith('corpus.tmp-')
    (made / 'file').write_text('')
    raise KeyError
  assert names(path.parent) == []


def test_a_new_folder_that_cannot_be_removed_hides_no_error(
  tmp_path, monkeypatch
):
  def busy(*_, **__):
    raise OSError(errno.EBUSY, 'a file on NFS is open')

  with pytest.raises(KeyError), files.new_folder(tmp_path / 'corpus'):
    monkeypatch.setattr(os, 'rmdir', busy)
    raise KeyError


@pytest.mark.parametrize('replace', [True, False])
def test_a_new_folder_whose_name_is_taken(tmp_path, replace):
  path = tmp_path / 'corpus'
  path.mkdir()
  (path / 'old').touch()
  if replace:
    with files.new_folder(path, replace) as made:
      (made / 'new').touch()
  else:
    taken = pytest.raises(FileExistsError, match='corpus')
    with taken, files.new_folder(path):
      pass
  assert names(path) == (['new'] if replace else ['old'])
  assert names(tmp_path) == ['corpus']
  with files.new_folder(tmp_path / 'free', replace):
    pass
  assert names(tmp_path) == ['corpus', 'free']


def test_an_old_folder_that_comes_back(tmp_path):
  (tmp_path / 'old').mkdir()
  gone = pytest.raises(FileNotFoundError)
  with gone, files.new_folder(tmp_path, replace=True) as made:
    made.rmdir()
  assert names(tmp_path) == ['old']
