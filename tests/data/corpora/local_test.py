import hashlib
import os
import platform
import sysconfig

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import programs
from tests.refusing import refused
from txl_jax.data.corpora import finding, local, own_text
from txl_jax.data.data_config import Data

LINES = b''.join(b'%d bottles\n' % i for i in range(500))


@pytest.fixture
def book(tmp_path):
  return tmp_path / 'book.txt'


def read_text(path, level='byte'):
  """The splits of a text and its source."""
  asked = Data('text', path=str(path), level=level)
  found = finding.find(asked)
  return own_text.splits(asked, found), own_text.source(asked, found)


def texts(splits):
  return [b''.join(splits[s]()) for s in ('train', 'validation', 'test')]


def cuts_by_definition(data):
  """Both cuts, found by looking at one position after the other."""
  cuts = []
  for percent in (90, 95):
    wanted = len(data) * percent // 100
    lines = range(wanted, min(wanted + 4096, len(data)) + 1)
    for cut in lines:
      if data[cut - 1 : cut] == b'\n':
        break
    else:
      cut = wanted
      while cut < len(data) and 0x80 <= data[cut] < 0xC0:
        cut += 1
    cuts.append(cut)
  return cuts


def write_tree(root, tree):
  for name, data in tree.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


words = st.text('aé漢 \n', min_size=1, max_size=30)


@pytest.mark.parametrize('level', ['byte', 'word'])
@settings(deadline=None)
@given(st.lists(words, min_size=8, max_size=30), st.integers(1, 9))
def test_cuts_are_those_of_the_rule(tmp_path_factory, level, pieces, repeats):
  """The same for words, where lines are short."""
  between = '\n' if level == 'word' else ''
  data = (between.join(pieces * repeats) + between).encode()
  path = tmp_path_factory.mktemp('text') / 'book.txt'
  path.write_bytes(data)
  first, second = cuts_by_definition(data)
  expected = [data[:first], data[first:second], data[second:]]
  if all(expected):
    splits, _ = read_text(path, level)
    assert texts(splits) == expected
  else:
    assert 'too few lines' in refused(read_text, path, level)


@pytest.mark.parametrize('newline_at, moved', [(4095, 4096), (4096, 0)])
def test_cut_looks_4096_bytes_ahead(book, newline_at, moved):
  data = bytearray(b'x' * 200_000)
  data[180_000 + newline_at] = ord('\n')
  book.write_bytes(data)
  splits, _ = read_text(book)
  assert len(texts(splits)[0]) == 180_000 + moved


def test_cut_without_lines_keeps_characters_whole(book):
  book.write_bytes('漢'.encode() * 30_001)
  splits, _ = read_text(book)
  for text in texts(splits):
    text.decode()  # raises if a character was cut
  assert b''.join(texts(splits)) == book.read_bytes()


def test_words_of_one_line_stay_whole(book):
  data = ('漢字 xy b ' * 20_001).encode()
  book.write_bytes(data)
  splits, _ = read_text(book, 'word')
  assert b''.join(texts(splits)) == data
  for text in texts(splits):
    assert set(text.decode().split()) == {'漢字', 'xy', 'b'}
    assert text.endswith(b' ')
  assert 0 <= len(texts(splits)[0]) - len(data) * 90 // 100 < 7


def test_words_are_cut_between_files(tmp_path):
  text = b'one two ' * 1800
  tree = {'a': text, 'b': text[:800], 'c': text[:799]}
  write_tree(tmp_path, tree)
  splits, _ = read_text(tmp_path, 'word')
  assert texts(splits) == list(tree.values())
  parts = [split.parts for split in splits.values()]
  paths = [[p.path for p in part] for part in parts]
  assert paths == [[tmp_path / name] for name in tree]


@pytest.mark.parametrize(
  'sizes, wanted, cuts',
  [
    ([1000, 5, 5, 5], [913, 964], [1000, 1005]),
    ([5, 0, 5, 5, 1000], [913, 964], [10, 15]),
    ([10, 10, 10, 10], [20, 25], [20, 30]),
    ([9], [8, 8], [0, 0]),
  ],
)
def test_cuts_are_at_ends_of_documents(book, sizes, wanted, cuts):
  parts = [local.Part(book, 0, size, size) for size in sizes]
  asked = Data('text', path=str(book), documents='file')
  assert local.document_ends(asked, parts, wanted) == cuts


def test_a_separator_within_the_next_chunk():
  parts = local.between_separators([b'a<->', b'b<->c'], b'<->')
  assert [*parts] == [b'a', b'b', b'c']


def test_a_part_ends_within_a_chunk(book):
  read = lambda: iter([b'abc', b'def', b'ghi', b'jkl'])
  assert [*local.Part(book, 2, 5, 12, read)()] == [b'c', b'de']


def test_folder_is_read_in_the_order_of_paths(tmp_path):
  tree = {
    'b.txt': b'second\n' * 300,
    'a/z.md': b'first, without a line end' * 99,
    'c/x': b'third\n' * 300,
    'c/empty': b'',
    '.hidden': b'no' * 300,
    '.git/config': b'no' * 300,
    'c/.cache/x': b'no' * 300,
  }
  write_tree(tmp_path, tree)
  os.symlink(tmp_path / 'nowhere', tmp_path / 'broken')
  splits, source = read_text(tmp_path)
  together = tree['a/z.md'] + tree['b.txt'] + tree['c/x']
  assert b''.join(texts(splits)) == together
  assert texts(splits) == texts(splits)  # the chunks can be had again
  names = {'a/z.md', 'b.txt', 'c/empty', 'c/x'}
  digest = hashlib.sha256()
  for name in sorted(names):
    digest.update(name.encode() + b'\0%d\0' % len(tree[name]) + tree[name])
  assert source == {
    'path': str(tmp_path),
    'files': 4,
    'bytes': len(together),
    'sha256': digest.hexdigest(),
  }


def test_sha256_covers_contents_paths_and_borders(tmp_path):
  trees = [
    {'a': LINES, 'b': LINES},
    {'a': LINES, 'c': LINES},
    {'a': LINES, 'b': LINES[:-1] + b'.'},
    {'a': LINES + LINES[:10], 'b': LINES[10:]},
  ]
  digests = set()
  for i, tree in enumerate(trees):
    write_tree(tmp_path / str(i), tree)
    digests.add(read_text(tmp_path / str(i))[1]['sha256'])
  assert len(digests) == len(trees)


def test_large_files_come_in_chunks(book):
  data = LINES * 500
  book.write_bytes(data)
  splits, _ = read_text(book)
  chunks = [len(c) for c in splits['train']()]
  assert max(chunks) == 1 << 20
  assert len(chunks) == -(-sum(chunks) // (1 << 20))
  assert b''.join(texts(splits)) == data


@pytest.mark.parametrize(
  'tree, found',
  [
    ({}, 'has 0 bytes'),
    ({'a': b'', 'b': b''}, 'has 0 bytes'),
    ({'.hidden': LINES}, 'has 0 bytes'),
    ({'a': b'one line\n'}, 'too few lines'),
  ],
)
def test_text_that_gives_no_splits(tmp_path, tree, found):
  write_tree(tmp_path, tree)
  said = refused(read_text, tmp_path)
  assert found in said and str(tmp_path) in said


def test_what_is_no_file(book):
  assert f'data.path: {book} does not exist' in refused(read_text, book)
  programs.make_pipe(book)
  assert f'data.path: {book} is a pipe or device' in refused(read_text, book)
  book.unlink()
  book.symlink_to('/dev/zero')
  assert f'data.path: {book} is a pipe or device' in refused(read_text, book)


def test_a_file_that_becomes_a_pipe(book):
  book.write_bytes(LINES)
  splits, _ = read_text(book)
  book.unlink()
  programs.make_pipe(book)
  assert 'txt cannot be read: it is a pipe' in refused(texts, splits)


def test_file_that_cannot_be_read(book, monkeypatch):
  book.write_bytes(LINES)

  def refuse(*args):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(local, 'open_regular', refuse)
  assert 'book.txt cannot be read: Permission' in refused(read_text, book)


def test_pystdlib_takes_sources_and_skips_tests(tmp_path):
  kept = {f'package/module{i}.py': b'x = %d\n' % i for i in range(200)}
  kept |= {'testing.py': b'1', 'config.py': b'2', 'b/tests.py': b'3'}
  skipped = [
    'test/a.py',
    'b/tests/a.py',
    'idlelib/idle_test/a.py',
    'site-packages/a.py',
    'dist-packages/a.py',
    'lib2to3/a.py',
    'config-3.11-x86_64-linux-gnu/a.py',
    'package/__pycache__/a.py',
    '_sysconfigdata__linux_x86_64-linux-gnu.py',
    'package/data.txt',
    'package/module.pyc',
  ]
  write_tree(tmp_path, kept | dict.fromkeys(skipped, b'no'))
  (tmp_path / 'linked').symlink_to(tmp_path / 'package')
  splits, source = local.read_pystdlib(tmp_path)
  expected = [b'', b'', b'']
  digests = {hashlib.sha256(x.encode()).hexdigest(): x for x in kept}
  for digest in sorted(digests):
    number = int(digest[:16], 16) % 100
    expected[(number >= 90) + (number >= 95)] += kept[digests[digest]]
  assert texts(splits) == expected
  assert source['files'] == len(kept)
  assert source['bytes'] == sum(map(len, kept.values()))
  assert source['python'] == platform.python_version()


@pytest.mark.slow
def test_pystdlib_of_this_interpreter():
  splits, source = local.read_pystdlib(sysconfig.get_path('stdlib'))
  train, validation, test = texts(splits)
  total = len(train) + len(validation) + len(test)
  assert total == source['bytes']
  assert 8_000_000 < total < 16_000_000  # 10 to 12 MB from 3.6 to 3.13
  for part in (validation, test):
    assert 0.02 < len(part) / total < 0.1
