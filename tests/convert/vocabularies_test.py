"""Vocabularies of all code bases; golden/make_torch.py made some files."""

import collections
import dataclasses
import json
import pathlib
import pickle
import sys
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.convert import guard, pickling
from txl_jax.convert import vocabularies
from txl_jax.convert.formats import torch_file
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words

GOLDEN = pathlib.Path(__file__).parent / 'golden'
SYMBOLS = ['<eos>', 'the', 'of', 'Straße', '<unk>', 'last']
COUNTS = [9, 5, 4, 3, 2, 1]
WORDS = Words(tuple(SYMBOLS), tuple(COUNTS), '<eos>', '<unk>')


class Vocab:
  """As the original code has it."""

  def __init__(self, symbols=SYMBOLS, counts=COUNTS):
    self.counter = collections.Counter(dict(zip(symbols, counts)))
    self.special, self.min_freq, self.max_size = ['<eos>'], 0, None
    self.lower_case, self.delimiter, self.vocab_file = False, None, None
    self.idx2sym = [*symbols]
    self.sym2idx = collections.OrderedDict(zip(symbols, range(len(symbols))))


class Corpus:
  """With tokens beside the vocabulary."""

  def __init__(self, vocab, tokens=100, dataset='wt103'):
    self.dataset, self.vocab = dataset, vocab
    self.train = self.valid = self.test = np.arange(tokens)
    self.cutoffs = [0, 2, 4, 6]


@pytest.fixture(autouse=True)
def modules(monkeypatch):
  """Classes that pickle as those of the TensorFlow code's modules."""
  for kind, name in (Vocab, 'vocabulary'), (Corpus, 'data_utils'):
    module = types.ModuleType(name)
    setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(kind, '__module__', name)


def read(path, **limits):
  with guard.nothing_runs(**limits):
    return vocabularies.read(path)


def refused(path, **limits):
  return guard.refused(vocabularies.read, path, most=1000, **limits)


def saved(tmp_path, data, name='cache.pkl'):
  path = tmp_path / name
  path.write_bytes(data)
  return path


@pytest.mark.parametrize(
  'dump', [pickling.python2, lambda x: pickle.dumps(x, 2)]
)
def test_a_corpus_of_the_tensorflow_code(tmp_path, dump):
  assert read(saved(tmp_path, dump(Corpus(Vocab())))) == WORDS


def test_the_tokens_of_a_corpus_are_not_read(tmp_path):
  path = saved(tmp_path, pickle.dumps(Corpus(Vocab(), 4_000_000), 4))
  assert path.stat().st_size > 30_000_000
  assert read(path, memory=1 << 20).symbols == WORDS.symbols


@pytest.mark.parametrize('name', ['torch_cache.pt', 'torch_nvidia.pt'])
def test_a_corpus_and_a_checkpoint_of_torch(name):
  assert read(GOLDEN / name) == WORDS


def test_what_hugging_face_published_is_repaired():
  """Its words of Python 2 were once taken for Latin-1."""
  data = (GOLDEN / 'torch_vocab.bin').read_bytes()
  assert 'Stra\u00c3\u009fe'.encode() in data
  found = read(GOLDEN / 'torch_vocab.bin')
  assert found == dataclasses.replace(WORDS, counts=())


def test_a_list_of_words(tmp_path):
  path = saved(tmp_path, b'<S> 3\nthe 2\n<UNK> 1\n', '1b_word_vocab.txt')
  found = read(path)
  assert found == Words(('<S>', 'the', '<UNK>'), (3, 2, 1), '<S>', '<UNK>')


def test_bytes_and_letters(tmp_path):
  values = [32, 101, *range(97, 101), *range(48, 58)]
  counts = tuple(range(16, 0, -1))
  vocab = Vocab([*map(str, values)], counts)
  data = pickling.python2(Corpus(vocab, dataset='enwik8'))
  found = read(saved(tmp_path, data))
  assert found == Bytes(tuple(values), counts, (10,))
  letters = [*'_etaoinshrdlu']
  data = pickling.python2(Corpus(Vocab(letters, [1] * 13)))
  found = read(saved(tmp_path, data))
  assert bytes(found.symbols) == b' etaoinshrdlu' and not found.dropped
  assert found.decode([1, 0, 2]) == b'e t'


def test_words_of_digits_are_bytes_unless_they_are_listed(tmp_path):
  symbols = [*map(str, range(30, 50))]
  listed = '\n'.join(symbols).encode()
  assert read(saved(tmp_path, listed, 'vocab.txt')).symbols == tuple(symbols)
  alone = pickle.dumps(Vocab(symbols, [1] * 20), 2)
  found = read(saved(tmp_path, alone))
  assert found.symbols == tuple(range(30, 50))


def test_what_stands_for_bytes(tmp_path):
  low, high = range(10, 120, 10), range(245, 256)  # newlines, none
  arabic = [*map(chr, range(0x660, 0x66A)), 'a']
  others = range(246, 257), range(257, 269), range(20, 30), 'aé', arabic
  bytewise = (high, high), (low, low), ('a1_A', b'a1 A'), ('a1', b'a1')
  for symbols, values in *bytewise, *((x, ()) for x in others):
    symbols = tuple(map(str, symbols))
    found = read(saved(tmp_path, pickle.dumps({'idx2sym': [*symbols]})))
    dropped = (10,) if values == high else ()
    expected = Bytes(tuple(values), (), dropped) if values else Words(symbols)
    assert found == expected
  found = read(saved(tmp_path, pickle.dumps({'idx2sym': ['a', '']})))
  assert found == Words(('a', vocabularies.EMPTY))


def test_counts_of_less_than_half_of_the_words_are_dropped(tmp_path):
  symbols = [f'w{i}' for i in range(10)]
  for n, counts in (4, ()), (5, (3,) * 5 + (0,) * 5):
    fields = {'idx2sym': symbols, 'counter': dict.fromkeys(symbols[:n], 3)}
    assert read(saved(tmp_path, pickle.dumps(fields))).counts == counts


def test_words_that_only_hugging_face_has_in_latin_1(tmp_path):
  symbols = ['<unk>', 'Straße', 'Ã©']  # of Latin-1, unless the last is an é
  data = pickle.dumps(Vocab(symbols, [1] * 3).__dict__)
  assert read(saved(tmp_path, data, 'vocab.pkl')).symbols == tuple(symbols)
  symbols = ['<unk>', 'Ã©']  # an é, or two letters
  data = pickling.python2(Corpus(Vocab(symbols, [1, 1])))
  assert read(saved(tmp_path, data)).symbols == tuple(symbols)
  for whole in {'vocab': Corpus(Vocab(symbols))}, Vocab(symbols):
    found = read(saved(tmp_path, pickle.dumps(whole, 4)))
    assert found.symbols == tuple(symbols)
  data = pickle.dumps(Vocab(symbols, [1, 1]).__dict__)
  assert read(saved(tmp_path, data, 'vocab.pkl')).symbols == ('<unk>', 'é')


def test_a_checkpoint_without_a_vocabulary_or_with_a_bad_one(tmp_path):
  path = saved(tmp_path, pickle.dumps({'epoch': 3}, 2))
  assert vocabularies.within(path) is None
  for bad in {'vocab': Vocab(['a', 'a'], [1, 1])}, {'vocab': 'nothing'}:
    path = saved(tmp_path, pickle.dumps(bad, 2))
    said = guard.refused(vocabularies.within, path)
    assert 'is not a supported vocabulary' in said


def test_what_is_written_is_read(tmp_path):
  vocabularies.write(tmp_path, WORDS)
  assert read(tmp_path / 'vocab.txt') == WORDS
  text = (tmp_path / 'tokenizer_config.json').read_text()
  assert text.startswith('{\n  "tokenizer_class": ')
  config = json.loads(text)
  assert config['eos_token'] == '<eos>' and config['unk_token'] == '<unk>'
  assert config['tokenizer_class'] == 'TransfoXLTokenizer'
  lines = (tmp_path / 'vocab.txt').read_text().splitlines()
  assert lines[3] == 'Straße 3'
  for eos, written in ('<S>', '<S>'), ('', '<eos>'):
    vocabularies.write(tmp_path, Words(('<S>', '<UNK>'), (), eos, '<UNK>'))
    config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
    assert config['eos_token'] == written


def test_what_the_tokenizer_does_not_have():
  assert vocabularies.has_tokenizer(WORDS)
  for other in Bytes.all_bytes(), Words(('a', 'b')):
    assert not vocabularies.has_tokenizer(other)


def changed(**changes):
  return pickle.dumps({**Vocab().__dict__, **changes}, 2)


@pytest.mark.parametrize(
  'data, said',
  [
    (pickling.call('os', 'system', 'x'), 'names os.system'),
    (pickle.dumps([1]), 'no idx2sym'),
    (pickle.dumps({'vocab': {'vocab': {'vocab': {'idx2sym': 1}}}}), 'no idx'),
    (changed(idx2sym=[], sym2idx={}), 'a word is empty'),
    (changed(idx2sym=[], sym2idx={'a': 0, 'b': 2}), "'b' has the id 2, exp"),
    (changed(idx2sym=[], sym2idx={'a': 0, 'b': 0}), "'b' has the id 0, exp"),
    (changed(_added_tokens_encoder={'b': 7}), "'b' has the id 7, expected 6"),
    (changed(idx2sym='abc'), 'not a list'),
    (changed(idx2sym=[1, 2]), 'not a list'),
    (changed(idx2sym=['a', 'a']), 'twice'),
    (changed(counter=dict.fromkeys(SYMBOLS, -1)), 'below 0'),
    (changed(counter={'the': 'x'}), 'not a whole number'),
    (b'', 'too early'),
    (b'\x80\x02', 'too early'),
  ],
)
def test_what_is_no_vocabulary(tmp_path, data, said):
  path = saved(tmp_path, data, 'vocab.pkl')
  assert said in refused(path, memory=4 << 20)


@pytest.mark.parametrize('size', [None, 6, 8])
def test_special_tokens_that_were_numbered_before_the_words(tmp_path, size):
  """As transformers 4.35.2 saves a tokenizer after `build_vocab`."""
  special = {'<eos>': 0, '<unk>': 1, '<formula>': 2}
  path = tmp_path / 'vocab.pkl'
  for more in {}, {'idx2sym': []}:  # once more after from_pretrained
    path.write_bytes(changed(_added_tokens_encoder=special, **more))
    assert vocabularies.read(path, size) == WORDS
  path.write_bytes(changed(_added_tokens_encoder=special | {'<pad>': 6}))
  expected = (*SYMBOLS, '<pad>')[:size]
  assert vocabularies.read(path, size).symbols == expected


def test_white_space_that_python_2_did_not_split_at(tmp_path):
  symbols = ['<S>', '<UNK>', '10\u00a0km', '\u3000']
  data = pickling.python2(Corpus(Vocab(symbols, [1] * 4)))
  words = read(saved(tmp_path, data))
  assert words.symbols == ('<S>', '<UNK>', r'10\xa0km', r'\u3000')
  assert words.encode('10\u00a0km'.encode(), 'x').tolist() == [1, 1]


def test_files_that_are_none(tmp_path):
  assert 'cannot be read' in refused(tmp_path / 'vocab.bin')
  assert 'it is a folder' in refused(tmp_path)
  torch_file.write(tmp_path / 'x.pt', {'a': np.ones(2)})
  assert 'no idx2sym' in refused(tmp_path / 'x.pt')
  refused(saved(tmp_path, b'a\na\n', 'vocab.txt'))


@hypothesis.given(st.data())
@guard.EXAMPLES
def test_damage(tmp_path_factory, data):
  name = data.draw(st.sampled_from(['cache.pkl', 'torch_vocab.bin']))
  whole = pickling.python2(Corpus(Vocab()))
  if name == 'torch_vocab.bin':
    whole = (GOLDEN / name).read_bytes()
  damaged = guard.damaged(data, whole)
  path = saved(tmp_path_factory.mktemp('x'), damaged, name)
  limits = dict(most=1000, memory=4 << 20)
  guard.read_or_refuse(vocabularies.read, path, **limits)
