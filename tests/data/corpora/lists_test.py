"""Corpora of words whose vocabulary is a list that the user gives."""

import hashlib

import pytest

from tests import programs
from tests.data.corpora.books import TEXT, prepare, split_by_hand, words_of
from tests.refusing import refused
from txl_jax.data import prepared


@pytest.fixture
def book(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text(TEXT)
  return path


def test_list_of_words(book, tmp_path):
  path = tmp_path / 'list'
  path.write_text('w2\nw1\n<unk>\n')
  data = prepare(book, unk=False, vocab_file=path)
  assert data.vocabulary.symbols == ('<eos>', 'w2', 'w1', '<unk>')
  sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
  assert data.name.endswith(f'-word-list_{sha256[:12]}')
  entry = {'file': 'list', 'sha256': sha256}
  assert data.manifest['source']['vocab_file'] == entry
  for split, part in split_by_hand(TEXT).items():
    found = [data.vocabulary.symbols[i] for i in data.tokens(split)]
    known = ('w1', 'w2', '<eos>')
    words = words_of(part)
    assert found == [w if w in known else '<unk>' for w in words]
    unknown = data.manifest['splits'][split]['unknown']
    assert unknown == found.count('<unk>') > 0
  said = refused(prepare, book, vocab_file=tmp_path / 'none')
  assert said.startswith('data.vocab_file: ') and ': No such file' in said


@pytest.mark.parametrize(
  ('odd', 'found'),
  [
    (programs.make_pipe, 'it is a pipe or device'),
    (lambda path: path.symlink_to('/dev/zero'), 'it is a pipe or device'),
    (lambda path: path.mkdir(), 'it is a folder'),
  ],
)
def test_a_list_that_is_no_file_or_endless(book, tmp_path, odd, found):
  odd(tmp_path / 'list')
  said = refused(prepare, book, vocab_file=tmp_path / 'list')
  assert said.startswith(f'data.vocab_file: {tmp_path}/list ') and found in said


@pytest.mark.parametrize(
  'line',
  [b'a ' + b'9' * 5000, b'a ' + b'9' * 19, b'a 1 1', b'a -1', b'\0 \xff'],
)
def test_a_line_that_is_no_word_and_count(book, tmp_path, line):
  (tmp_path / 'list').write_bytes(b'b 1\n' + line)
  said = refused(prepare, book, vocab_file=tmp_path / 'list')
  assert 'list: line 2 is ' in said and '; allowed: a new word' in said


def test_a_list_that_is_no_utf_8(book, tmp_path):
  words = sorted(set(TEXT.split()))
  (tmp_path / 'list').write_bytes('\n'.join(words).encode() + b'\n\xff\xfe')
  book.write_bytes(TEXT.encode() + b'\xff\xfe\n')
  data = prepare(book, unk=False, vocab_file=tmp_path / 'list')
  assert data.vocabulary.decode(data.tokens('test')).endswith(b'\xff\xfe\n')


@pytest.mark.parametrize(
  'change', [lambda data: data[:-3], lambda data: data.replace(b'w1', b'v1')]
)
def test_damaged_list_is_told(book, change):
  path = prepare(book).folder / 'vocabulary.txt'
  path.write_bytes(change(path.read_bytes()))
  message = refused(prepared.load, path.parent)
  assert message.startswith(f'{path}: sha256 ') and '--force' in message
  path.unlink()
  assert ': No such file' in refused(prepared.load, path.parent)
