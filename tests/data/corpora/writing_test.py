"""Corpora of words from texts of this machine, beside plain Python."""

import collections
import hashlib
import json
from unittest import mock

import numpy as np
import pytest

from tests.data.corpora.books import TEXT, prepare, split_by_hand, words_of
from tests.refusing import refused
from txl_jax.data import prepared
from txl_jax.data.corpora import preparation, writing
from txl_jax.data.data_config import Data
from txl_jax.data.vocabularies import words as words_lib


@pytest.fixture
def book(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text(TEXT)
  return path


def test_tokens_and_vocabulary(book):
  data = prepare(book)
  parts = split_by_hand(TEXT)
  counts = collections.Counter(words_of(parts['train'], ' '))
  lines = parts['train'].count('\n')
  expected = [('<eos>', lines), *counts.most_common(), ('<unk>', 0)]
  v = data.vocabulary
  assert list(zip(v.symbols, v.counts)) == expected
  listed = (data.folder / 'vocabulary.txt').read_text()
  assert listed == ''.join(f'{w} {n}\n' for w, n in expected)
  ids = {w: i for i, (w, _) in enumerate(expected)}
  unknown = {}
  for split, part in parts.items():
    found = data.tokens(split)
    words = words_of(part)
    assert found.dtype == np.uint8
    assert found.tolist() == [ids.get(w, ids['<unk>']) for w in words]
    entry = data.manifest['splits'][split]
    assert entry['bytes'] == len(part)
    unknown[split] = entry['unknown']
    assert unknown[split] == sum(w not in ids for w in words)
    assert data.sentences(split) is None
  assert any(unknown.values())
  assert data.name.endswith('-word-unk')
  text = (data.folder / 'manifest.json').read_text()
  assert text.startswith('{\n "format": 1,\n "corpus": "text",\n')
  manifest = json.loads(text)
  assert manifest['vocabulary'] == {
    'kind': 'words',
    'size': len(expected),
    'sha256': hashlib.sha256(listed.encode()).hexdigest(),
    'eos': '<eos>',
    'unk': '<unk>',
    'lower': False,
  }
  assert manifest['options'] == {}


@pytest.mark.parametrize('size', [50, 3001])
def test_blocks_do_not_matter(book, monkeypatch, size):
  whole = prepare(book)

  def contents(data):
    return {p.name: p.read_bytes() for p in data.folder.iterdir()}

  expected = contents(whole)
  real = words_lib.blocks
  monkeypatch.setattr(words_lib, 'blocks', lambda chunks: real(chunks, size))
  assert contents(prepare(book, force=True)) == expected


@pytest.mark.parametrize(
  'options',
  [{'lower': True}, {'eos': False}, {'min_count': 5}, {'max_size': 20}],
)
def test_options(book, options):
  if lower := options.get('lower', False):
    book.write_text(TEXT.replace('w1', 'W1'))
  data = prepare(book, **options)
  assert data.vocabulary.lower == lower
  eos = ' ' if 'eos' in options else ' <eos> '
  parts = split_by_hand(TEXT)
  counts = collections.Counter(words_of(parts['train'], ' ')).most_common()
  kept = [w for w, n in counts if n >= options.get('min_count', 1)]
  kept = kept[: options.get('max_size', 1000) - 2]
  assert set(data.vocabulary.symbols) == {*kept, *eos.split(), '<unk>'}
  for split, part in parts.items():
    found = [data.vocabulary.symbols[i] for i in data.tokens(split)]
    words = words_of(part, eos)
    known = {*kept, '<eos>'}
    assert found == [w if w in known else '<unk>' for w in words]


def test_unk_of_the_text_is_an_ordinary_word(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text(TEXT.replace('w1 ', '<unk> '))
  data = prepare(path, unk=False)
  assert data.vocabulary.unk == '<unk>'
  assert data.vocabulary.counts[data.vocabulary.unk_id] > 1000


def test_last_line_without_a_newline_is_ended(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text(TEXT[:-1])
  data = prepare(path)
  assert data.tokens('test')[-1] == data.vocabulary.eos_id


def write_files(folder, files):
  folder.mkdir()
  for name, text in files.items():
    (folder / name).write_text(text)
  return folder


def shown(data, split):
  return ' '.join(data.vocabulary.symbols[i] for i in data.tokens(split))


@pytest.mark.parametrize('listed', [False, True])
def test_files_of_a_folder_are_whole_lines(tmp_path, listed):
  files = {f'{i}': f'one two\n\nend{i}' for i in range(18)}
  files['18'] = files['19'] = 'two one end1'
  folder = write_files(tmp_path / 'notes', files)
  options = {}
  if listed:
    (tmp_path / 'list').write_text('one\ntwo\n<unk>\nend1\n')
    options = {'vocab_file': tmp_path / 'list', 'unk': False}
  data = prepare(folder, **options)
  together = ' '.join(shown(data, split) for split in prepared.SPLITS)
  expected = [w for n in sorted(files) for w in words_of(f'{files[n]}\n')]
  known = {*data.vocabulary.symbols}
  assert together.split() == [w if w in known else '<unk>' for w in expected]
  assert ('end10' in known) == (not listed)
  entries = data.manifest['splits'].values()
  assert sum(e['bytes'] for e in entries) == sum(map(len, files.values()))


def test_byte_order_marks_are_no_words(tmp_path):
  mark = '\ufeff'
  text = f'{mark}one two two {mark}one\n' * 50
  files = {'a': text, 'b': text, 'c': mark, 'd': text}  # a mark begins each
  folder = write_files(tmp_path / 'notes', files)
  (tmp_path / 'list').write_text(f'{mark}one\ntwo\n<unk>\n')
  for options in ({}, {'vocab_file': tmp_path / 'list'}):
    data = prepare(folder, **options)
    known = [f'{mark}one', 'one', 'two'] if not options else ['one', 'two']
    assert {*data.vocabulary.symbols} == {'<eos>', '<unk>', *known}
    last = '<unk>' if options else f'{mark}one'
    assert shown(data, 'train').split()[:4] == ['one', 'two', 'two', last]
    together = ' '.join(shown(data, s) for s in prepared.SPLITS).split()
    assert together.count('one') == 3  # those that begin a file
    entries = data.manifest['splits'].values()
    size = sum(len(text.encode()) - 3 for text in files.values())
    assert sum(e['bytes'] for e in entries) == size


def test_lines_that_are_cut_have_no_end(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text('one two three ' * 9000 + '\nlast')
  data = prepare(path)
  words = '<eos>', 'one', 'two', 'three', '<unk>'
  assert {*data.vocabulary.symbols} == {*words}
  for split in ('train', 'validation'):
    assert data.vocabulary.eos_id not in data.tokens(split)
  together = ' '.join(shown(data, split) for split in prepared.SPLITS)
  assert together == 'one two three ' * 9000 + '<eos> <unk> <eos>'


@pytest.mark.parametrize('listed', [False, True])
def test_unknown_word_is_told(tmp_path, listed):
  lines = 'one two\n' * 100
  files = {'a': lines[:-1], 'b': lines * 18, 'c': lines + 'one strange'}
  folder = write_files(tmp_path / 'notes', files)
  (tmp_path / 'list').write_text('one\ntwo\n')
  options = {'vocab_file': tmp_path / 'list'} if listed else {}
  assert refused(prepare, folder, unk=False, **options) == (
    f"{folder}: word 'strange' is not among the 3 words of the vocabulary, "
    'which has no <unk> (data.unk adds it)'
  )
  data = tmp_path / 'data'
  assert not data.exists() or list(data.iterdir()) == []


@pytest.mark.parametrize(
  'text, options, found',
  [
    (
      'a b c\n' * 1000,
      {'min_count': 901},
      'no word occurs 901 times in the training split; lower data.min_count',
    ),
    (
      ' \t \n' * 1000,
      {},
      'the training split has no words; every split needs some',
    ),
    (
      'a b c d\n' * 900 + ' \n' * 400,
      {},
      'the split validation has no tokens; every split needs at least one',
    ),
  ],
)
def test_no_word_is_left(tmp_path, text, options, found):
  path = tmp_path / 'book.txt'
  path.write_text(text)
  said = refused(prepare, path, unk=False, eos=False, **options)
  assert said == f'{path}: {found}'
  assert list((tmp_path / 'data').iterdir()) == []


def test_what_an_older_version_prepared_still_opens(book):
  data = prepare(book)
  path = data.folder / 'manifest.json'
  manifest = json.loads(path.read_text())
  for entry in manifest['splits'].values():
    del entry['unknown']
  path.write_text(json.dumps(manifest))
  assert prepare(book).digest == data.digest


def test_config_prepares_words_and_tells_their_number(book, tmp_path):
  options = dict(level='word', unk=True, min_count=2)
  config = Data('text', f'{tmp_path}/data', f'{book}', **options)
  data = preparation.locate_or_prepare(config)
  assert data.digest == prepare(book, min_count=2).digest
  assert preparation.vocab_size(config) == len(data.vocabulary)


def test_published_sizes_need_no_data(tmp_path):
  assert preparation.vocab_size(Data('wt103', f'{tmp_path}/data')) == 267_735


def test_the_most_frequent_word_may_be_just_frequent_enough(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text('a b c\n' * 1000)  # of which 900 lines are for training
  found = prepare(path, unk=False, eos=False, min_count=900)
  assert found.vocabulary.symbols == ('a', 'b', 'c')


@pytest.mark.parametrize('of_bytes, whole', [((0, -1), True), ((0, 1), False)])
def test_blocks_where_bytes_have_no_token(monkeypatch, of_bytes, whole):
  blocks = mock.Mock(return_value=[])
  monkeypatch.setattr(writing.subwords, 'blocks', blocks)
  config = Data('text', path='x', level='subword')
  vocabulary = mock.Mock(of_bytes=of_bytes, eos_id=None)
  assert not list(writing._pieces(config, list, vocabulary, {}))
  assert blocks.call_args.args[2] == whole
