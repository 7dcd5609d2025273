"""A text as documents: what is prepared, beside the texts themselves."""

import gzip
import itertools
import json

import numpy as np
import pytest

from tests.data.corpora import asking
from tests.refusing import refused
from txl_jax.data import plain_text, prepared
from txl_jax.data.corpora import finding, own_text
from txl_jax.data.data_config import Data

TEXTS = [
  f'nö {" ".join(str(i))}\nof\n\n{"x " * (i % 7)}'.encode() for i in range(60)
]
LEVELS = pytest.mark.parametrize('level', ['byte', 'word', 'subword'])


def as_files(folder):
  for i, text in enumerate(TEXTS):
    (folder / f'{i:02}.txt').write_bytes(text)
  return folder


def as_records(folder):
  lines = (json.dumps({'text': text.decode()}) for text in TEXTS)
  (folder / 'all.jsonl').write_text(''.join(f'{x}\n' for x in lines))
  return folder / 'all.jsonl'


FORMS = {as_files: 'file', as_records: 'record'}


@pytest.fixture
def prepare(tmp_path):
  (tmp_path / 'source').mkdir()

  def made(form, **options):
    path = form(tmp_path / 'source')
    more = {'path': path, 'documents': FORMS.get(form)} | options
    return asking.prepare('text', tmp_path / 'data', **more)

  return made


def documents_of(corpus, split):
  """The token ids of each, which are between two <eos>."""
  found, eos = corpus.token_stream(split), corpus.vocabulary.eos_id
  tokens = corpus.tokens(split)
  np.testing.assert_array_equal(np.flatnonzero(tokens == eos), found.starts)
  assert tokens[0] == tokens[-1] == eos
  return [tokens[a + 1 : b] for a, b in itertools.pairwise(found.starts)]


def words(text):
  return b' '.join(text.split())


@LEVELS
@pytest.mark.parametrize('form', FORMS)
def test_every_document_is_there_once(prepare, form, level):
  corpus = prepare(form, level=level)
  shown = words if level == 'word' else lambda text: text
  found, sizes = [], []
  for split in 'train', 'validation', 'test':
    each = documents_of(corpus, split)
    found += [corpus.vocabulary.decode(x) for x in each]
    entry = corpus.manifest['splits'][split]
    assert entry['sentences'] == len(each)
    sizes.append(entry['bytes'])
  assert [*map(shown, found)] == [*map(shown, TEXTS)]
  assert sum(sizes) == sum(map(len, TEXTS))
  wanted = [sum(sizes) * p // 100 for p in (90, 95)]
  longest = max(map(len, TEXTS))
  for place, offset in zip(itertools.accumulate(sizes), wanted):
    assert abs(place - offset) <= longest
  assert corpus.of_documents and corpus.sentences('train') is None
  # The same again, from the disk.
  again = prepared.load(corpus.folder)
  assert again.digest == corpus.digest
  assert again.vocabulary == corpus.vocabulary


@LEVELS
@pytest.mark.parametrize(
  'kind, separator, texts, between',
  [
    ('line', '', [*map(words, TEXTS)], b'\n\n'),
    ('blank', '', [b'a b\n' + words(x) for x in TEXTS], b'\n \n\n'),
    ('blank', '', [b'a b\n' + words(x) for x in TEXTS], b'\n\n'),
    ('separator', '<|x|>', [x.strip(b'\n') for x in TEXTS], b'\n<|x|>\n'),
    ('separator', '%\n%', [words(x) for x in TEXTS], b'%\n%'),
    ('separator', '%', [words(x) for x in TEXTS], b'\r\n%\r\n'),
    ('line', '', [*map(words, TEXTS)], b'\r\n'),
  ],
)
def test_documents_within_files(
  prepare, monkeypatch, kind, separator, texts, between, level
):
  """The same tokens as from records of these texts."""
  monkeypatch.setattr(plain_text, '_CHUNK', 7)  # separators span chunks

  def in_text(folder):
    halves = texts[:20], texts[20:]
    for name, half in zip(('a.txt', 'b.txt.gz'), halves):
      data = between + between.join(half) + between
      data = gzip.compress(data) if name.endswith('.gz') else data
      (folder / name).write_bytes(data)
    return folder

  def in_records(folder):
    lines = (json.dumps({'text': text.decode()}) for text in texts)
    path = folder.parent / 'all.jsonl'
    path.write_text('\n'.join(lines))
    return path

  options = dict(level=level, documents=kind, separator=separator)
  found = prepare(in_text, **options)
  other = prepare(in_records, level=level, documents='record')
  assert found.name != other.name and found.digest == other.digest
  assert kind in found.name


@LEVELS
def test_splits_by_name(prepare, tmp_path, level):
  for split, texts in ('train', TEXTS[:50]), ('valid', TEXTS[50:]):
    lines = [json.dumps({'text': text.decode()}) for text in texts]
    (tmp_path / f'source/{split}.jsonl').write_text('\n'.join(lines))
  corpus = prepare(lambda folder: folder, documents='record', level=level)
  assert len(documents_of(corpus, 'train')) == 50
  assert len(documents_of(corpus, 'validation')) == 10


def test_what_is_in_a_vocabulary(prepare):
  corpus = prepare(as_files)
  vocabulary = corpus.vocabulary
  assert Data('text', documents='file').known_vocab_size == 257
  assert len(vocabulary) == 257
  assert vocabulary.start == vocabulary.eos_id == vocabulary.document_end == 256
  assert vocabulary.decode([97, 256, 98]) == b'ab'
  assert vocabulary.sizes.tolist() == [1] * 256 + [0]
  assert vocabulary.encode(b'\xff\n', 'it').tolist() == [255, 10]
  assert vocabulary.line_end == 10
  assert type(vocabulary).from_json(vocabulary.to_json()) == vocabulary


def test_subwords_of_documents(prepare):
  vocabulary = prepare(as_files, level='subword', max_size=260).vocabulary
  assert len(vocabulary) == 260
  assert vocabulary.eos_id == vocabulary.start == 259
  text = b'n\xc3\xb6 <eos> \xff'
  ids = vocabulary.encode(text, 'it')
  assert 259 not in ids and vocabulary.decode([*ids, 259]) == text
  assert vocabulary.sizes[259] == 0
  assert type(vocabulary).from_json(vocabulary.to_json()) == vocabulary
  plain = type(vocabulary).from_fields(json.loads(vocabulary.tokenizer))
  assert plain.eos_id is None and plain.of_documents() == vocabulary


def test_a_tokenizer_that_is_given(prepare, tmp_path):
  corpus = prepare(as_files, level='subword', max_size=260)
  given = tmp_path / 'given.json'
  given.write_text(json.dumps(corpus.vocabulary.to_json()))
  again = prepare(as_files, level='subword', tokenizer=given)
  assert again.vocabulary == corpus.vocabulary
  assert again.digest == corpus.digest


@pytest.mark.parametrize('count', [0, 1, 2, 3, 5, 19, 20, 40])
@pytest.mark.parametrize('largest', [0, -1])
def test_no_split_is_without_a_document(tmp_path, count, largest):
  for i in range(count):
    (tmp_path / f'{i:02}').write_text('x' * 10)
  names = sorted(tmp_path.iterdir())
  for name in names[largest:][:1]:
    name.write_text('y' * 500)
  asked = Data('text', path=f'{tmp_path}', documents='file')
  found = finding.find(asked)
  if count < 3:
    assert 'too few documents' in refused(own_text.splits, asked, found)
    return
  parts = own_text.splits(asked, found).values()
  assert all(split.parts for split in parts)
  files = [part.path for split in parts for part in split.parts]
  assert files == names


@pytest.mark.parametrize(
  'form, options, words',
  [
    (as_files, {'documents': 'record'}, '00.txt has no records'),
    (as_records, {'documents': 'line'}, 'allowed: none, file, record, since'),
    (as_files, {'documents': 'separator'}, "data.separator is ''; allowed: a"),
    (as_files, {'separator': '%'}, "separator is '%'; allowed: a text, only"),
    (
      lambda folder: as_files(folder) / '00.txt',
      {'documents': 'separator', 'separator': '<|x|>'},
      'too few documents (data.documents=separator <|x|>) to make 3',
    ),
    (as_files, {'documents': 'line', 'raw': True}, 'data.raw is True'),
    (as_files, {'level': 'word', 'eos': False}, 'data.eos is False; allowed'),
    (as_files, {'level': 'subword', 'max_size': 256}, '0, or at least 257'),
  ],
)
def test_what_is_refused(prepare, form, options, words):
  assert words in refused(prepare, form, **options)


def test_with_the_vocabulary_of_a_model(prepare):
  corpus = prepare(as_files)
  plain = prepare(as_files, documents='none')
  found = plain.encoded_with(corpus.vocabulary)
  assert found.vocabulary == corpus.vocabulary
  np.testing.assert_array_equal(found.tokens('test'), plain.tokens('test'))
  said = refused(corpus.encoded_with, plain.vocabulary)
  assert 'use <eos> differently' in said
  subwords = dict(level='subword', max_size=270)
  other = prepare(as_files, documents='none', **subwords).vocabulary
  of_subwords = prepare(as_files, **subwords)
  assert 'as data' in refused(of_subwords.encoded_with, other.of_documents())
