import os
import threading

import pytest

from txl_jax import files
from txl_jax.errors import UserError


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


@pytest.mark.parametrize(
  ('path', 'words'),
  [
    ('/dev/zero', 'pipe or device'),
    ('.', 'a folder'),
    ('nothing', 'No such file'),
  ],
)
def test_what_is_no_file(path, words):
  with pytest.raises(UserError, match=words):
    files.read(path)


def test_the_size_of_a_file_is_limited(tmp_path):
  with (tmp_path / 'sparse').open('wb') as f:
    f.truncate(1 << 40)
  with pytest.raises(UserError, match='key: sparse has more than 1,000 bytes'):
    files.read(tmp_path / 'sparse', 'key: sparse', 1000)


@pytest.mark.parametrize(
  'text', ['', '[' * 100_000, '[1]', '1', '{"a": 1', '\xff', '1' * 5000]
)
def test_what_is_no_json_object(tmp_path, text):
  (tmp_path / 'a').write_text(text, encoding='latin-1')
  with pytest.raises(UserError, match='a is damaged'):
    files.read_json(tmp_path / 'a')


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
  files.write(tmp_path / 'a', 'before')
  (tmp_path / 'a.tmp').mkdir()
  with pytest.raises(UserError, match='a cannot be written: Is a directory'):
    files.write(tmp_path / 'a', 'after')
  assert files.read(tmp_path / 'a') == b'before'
