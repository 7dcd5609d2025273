"""Corpora of words from texts of this machine, beside plain Python."""

import collections
import hashlib
import json
import os

import numpy as np
import pytest

from configs import common
from txl_jax.data import counting, preparation, prepared
from txl_jax.errors import UserError

# 2000 lines, so the cuts at 90 and 95 percent lie near line 1800 and 1900.
RNG = np.random.default_rng(0)
LINES = [
  ' '.join(f'w{i}' for i in RNG.zipf(1.5, 6) if i < 200) for _ in range(2000)
]
TEXT = ''.join(f'{line}\n' for line in LINES)


@pytest.fixture
def book(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_text(TEXT)
  return path


def prepare(path, **options):
  options = {'level': 'word', 'unk': True} | options
  data_dir = path.parent / 'data'
  return preparation.prepare('text', data_dir, path=path, **options)


def split_by_hand(text):
  """90 / 5 / 5 by bytes, cut after newlines."""
  cuts = [text.index('\n', len(text) * p // 100 - 1) + 1 for p in (90, 95)]
  return dict(
    train=text[: cuts[0]],
    validation=text[cuts[0] : cuts[1]],
    test=text[cuts[1] :],
  )


def words_of(text, eos=' <eos> '):
  return text.replace('\n', eos).split()


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
  unknown = 0
  for split, part in parts.items():
    found = data.tokens(split)
    words = words_of(part)
    assert found.dtype == np.uint8
    assert found.tolist() == [ids.get(w, ids['<unk>']) for w in words]
    unknown += sum(w not in ids for w in words)
    assert data.source_bytes(split) == len(part)
    assert data.manifest['splits'][split]['lines'] == part.count('\n')
    assert data.sentences(split) is None
  assert unknown > 0
  assert data.name.endswith('-word-unk')
  names = sorted(p.name for p in data.folder.iterdir())
  assert names == [
    'manifest.json',
    'test.bin',
    'train.bin',
    'validation.bin',
    'vocabulary.txt',
  ]
  manifest = json.loads((data.folder / 'manifest.json').read_text())
  assert manifest['vocabulary'] == {
    'kind': 'words',
    'size': len(expected),
    'sha256': hashlib.sha256(listed.encode()).hexdigest(),
    'eos': '<eos>',
    'unk': '<unk>',
    'lower': False,
  }
  assert manifest['options'] == {
    'level': 'word',
    'lower': False,
    'eos': True,
    'unk': True,
    'min_count': 1,
    'max_size': 0,
  }


@pytest.mark.parametrize('processes', [1, 2, 3])
def test_processes_and_blocks_do_not_matter(book, monkeypatch, processes):
  whole = prepare(book)
  contents = lambda data: {
    p.name: p.read_bytes() for p in data.folder.iterdir()
  }
  expected = contents(whole)
  real = counting.blocks
  size = {1: 50, 2: 7000, 3: 3001}[processes]
  monkeypatch.setattr(counting, 'blocks', lambda chunks: real(chunks, size))
  assert contents(prepare(book, force=True, processes=processes)) == expected


@pytest.mark.parametrize(
  'options',
  [
    {'lower': True},
    {'eos': False},
    {'min_count': 5},
    {'max_size': 20},
  ],
)
def test_options(book, options):
  data = prepare(book, **options)
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
  lines = [data.manifest['splits'][s]['lines'] for s in prepared.SPLITS]
  assert sum(lines) == 2000


def test_unknown_word_without_unk(tmp_path):
  lines = ['w1 w2'] * 2000
  lines[1850] = lines[1950] = 'w1 strange w2'
  path = tmp_path / 'book.txt'
  path.write_text(''.join(f'{line}\n' for line in lines))
  with pytest.raises(UserError) as error:
    prepare(path, unk=False)
  assert str(error.value) == (
    f"{path}: word 'strange' in line 1851 is not among the 3 words of the "
    'vocabulary, which has no <unk>; words, and punctuation beside them, are '
    'separated by spaces; data.unk (--unk) adds <unk>'
  )
  assert list((tmp_path / 'data').iterdir()) == []


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
  with pytest.raises(UserError, match=r'data\.vocab_file: .*: No such file'):
    prepare(book, vocab_file=tmp_path / 'none')


def test_a_word_outside_the_list_is_told_with_its_line(book, tmp_path):
  path = tmp_path / 'list'
  train = split_by_hand(TEXT)['train']
  path.write_text('\n'.join(sorted(set(train.split()))))
  rest = TEXT[len(train) :].split('\n')
  words = set(train.split())
  at = next(i for i, line in enumerate(rest) if set(line.split()) - words)
  line = 1 + train.count('\n') + at
  with pytest.raises(UserError, match=f' in line {line} is not among the '):
    prepare(book, unk=False, vocab_file=path)


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
  with pytest.raises(UserError, match=r'vocabulary\.txt: No such file'):
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


def test_config_prepares_words_and_tells_their_number(book, tmp_path):
  config = common.get_config().data
  config.update(corpus='text', path=str(book), dir=str(tmp_path / 'data'))
  config.update(level='word', unk=True, min_count=2)
  data = preparation.locate_or_prepare(config)
  assert data.digest == prepare(book, min_count=2).digest
  assert preparation.vocab_size(config) == len(data.vocabulary)


@pytest.mark.parametrize(
  'corpus, size',
  [('wt103', 267_735), ('wt2', 33_278), ('ptb', 10_000), ('lm1b', 793_471)],
)
def test_published_sizes_need_no_data(corpus, size, tmp_path):
  config = common.get_config().data
  config.update(corpus=corpus, dir=str(tmp_path / 'data'))
  assert preparation.vocab_size(config) == size
