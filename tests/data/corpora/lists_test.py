"""Corpora of words whose vocabulary is a list that the user gives."""

import hashlib
import os

import pytest

from tests import programs
from tests.data.corpora.books import TEXT, prepare, split_by_hand, words_of
from txl_jax.data import prepared
from txl_jax.program.errors import UserError


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
  assert data.manifest['source']['vocab_file'] == {
    'file': 'list',
    'sha256': sha256,
  }
  parts = split_by_hand(TEXT)
  for split, part in parts.items():
    found = [data.vocabulary.symbols[i] for i in data.tokens(split)]
    known = ('w1', 'w2', '<eos>')
    words = words_of(part)
    assert found == [w if w in known else '<unk>' for w in words]
    unknown = data.manifest['splits'][split]['unknown']
    assert unknown == found.count('<unk>') > 0
  with pytest.raises(UserError, match=r'data\.vocab_file: .*: No such file'):
    prepare(book, vocab_file=tmp_path / 'none')


def test_a_word_outside_the_list_is_told(book, tmp_path):
  path = tmp_path / 'list'
  train = split_by_hand(TEXT)['train']
  path.write_text('\n'.join(sorted(set(train.split()))))
  words = set(train.split())
  word = next(x for x in TEXT[len(train) :].split() if x not in words)
  with pytest.raises(UserError, match=f"word '{word}' is not among the "):
    prepare(book, unk=False, vocab_file=path)


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
  with pytest.raises(UserError, match=f'^data.vocab_file: .*list .*{found}'):
    prepare(book, vocab_file=tmp_path / 'list')


@pytest.mark.parametrize(
  'line',
  [b'a ' + b'9' * 5000, b'a ' + b'9' * 19, b'a 1 1', b'a -1', b'\0 \xff'],
)
def test_a_line_that_is_no_word_and_count(book, tmp_path, line):
  (tmp_path / 'list').write_bytes(b'b 1\n' + line)
  with pytest.raises(
    UserError, match=r'list: line 2 is .*; allowed: a new word'
  ):
    prepare(book, vocab_file=tmp_path / 'list')


def test_a_list_that_is_no_utf_8(book, tmp_path):
  words = sorted(set(TEXT.split()))
  (tmp_path / 'list').write_bytes('\n'.join(words).encode() + b'\n\xff\xfe')
  book.write_bytes(TEXT.encode() + b'\xff\xfe\n')
  data = prepare(book, unk=False, vocab_file=tmp_path / 'list')
  assert data.vocabulary.decode(data.tokens('test')).endswith(b'\xff\xfe\n')


def change_list(folder, change):
  path = folder / 'vocabulary.txt'
  path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
  'change',
  [
    lambda data: data[:-3],
    lambda data: b'',
    lambda data: data.replace(b'w1', b'v1'),
  ],
)
def test_damaged_list_is_told(book, change):
  data = prepare(book)
  change_list(data.folder, change)
  with pytest.raises(UserError) as error:
    prepared.load(data.folder)
  message = str(error.value)
  assert message.startswith(f'{data.folder}/vocabulary.txt: sha256 ')
  assert '--force' in message
  assert '\n' not in message
  os.remove(data.folder / 'vocabulary.txt')
  with pytest.raises(UserError, match=r'vocabulary\.txt .*: No such file'):
    prepared.load(data.folder)


def test_list_of_another_corpus_is_told(book, tmp_path):
  data = prepare(book)
  (tmp_path / 'other').mkdir()
  path = tmp_path / 'other' / 'book.txt'
  path.write_text('a b c\n' * 100)
  other = prepare(path)
  change_list(data.folder, lambda _: other.vocabulary.text())
  with pytest.raises(UserError, match=r'vocabulary\.txt: sha256 .* expected '):
    prepared.load(data.folder)
