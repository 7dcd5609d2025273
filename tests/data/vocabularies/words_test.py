"""Vocabularies of words, beside counting with collections.Counter."""

import collections
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusing import refused
from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import words
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words

# Words of several scripts, one with upper case, and kinds of white space.
LETTERS = st.sampled_from(['a', 'B', 'é', '漢', '<unk>', ',', 'Ω'])
SPACES = st.sampled_from([' ', '  ', '\n', '\t', '\n\n', '\u00a0', '\u3000'])
texts = st.lists(st.tuples(LETTERS, SPACES), max_size=40).map(
  lambda pairs: ''.join(w + s for w, s in pairs)
)
texts_of_blocks = st.text('ab \né', max_size=60).map(str.encode)
sizes = st.integers(1, 12)
CAT = Words(('<eos>', 'the', 'cat', '<unk>'), (2, 3, 1, 4), '<eos>', '<unk>')


def cut(text, size):
  return [text[i : i + size] for i in range(0, len(text), size)]


def tokens_by_hand(text, eos):
  """Line by line, as the published code reads a file."""
  found = []
  *lines, last = text.split('\n')
  for line in lines:
    found += [*line.split(), eos]
  return found + last.split()


@given(texts)
def test_order_is_by_frequency_then_first_appearance(text):
  words = tokens_by_hand(text, '<eos>')
  counts = collections.Counter(words)
  found = Words.from_counts(counts, eos='<eos>')
  expected = [(w, n) for w, n in counts.most_common() if w != '<eos>']
  expected.insert(0, ('<eos>', text.count('\n')))
  assert list(zip(found.symbols, found.counts)) == expected


@given(texts)
def test_encode_is_the_place_of_each_word(text):
  words = tokens_by_hand(text, '<eos>')
  v = Words.from_counts(collections.Counter(words), eos='<eos>')
  ids = v.encode(text.encode(), 'text')
  assert ids.dtype == np.int32
  assert [v.symbols[i] for i in ids] == words


def test_lower_case():
  v = Words(('<eos>', 'σας', 'é'), eos='<eos>', lower=True)
  assert v.encode('É\nΣΑΣ'.encode(), 'text').tolist() == [2, 0, 1]


def test_without_eos_a_newline_is_white_space():
  v = Words(('a', 'b'))
  assert v.encode(b'a\n\nb a', 'text').tolist() == [0, 1, 0]
  assert (v.eos_id, v.unk_id, v.start) == (None, None, 0)


def test_a_line_ends_with_eos():
  assert CAT.line_end == CAT.encode(b'\n', 'text').item() == 0
  assert Words(('a', '<S>'), eos='<S>').line_end == 1
  assert Words(('a', '<eos>')).line_end is None


def test_words_outside_are_unk():
  assert CAT.encode(b'the dog\n', 'text').tolist() == [1, 3, 0]
  assert CAT.encode(b'the <unk>', 'text').tolist() == [1, 3]
  assert (CAT.eos_id, CAT.unk_id, CAT.start) == (0, 3, 0)


def test_word_outside_without_unk_is_told():
  v = Words(('<eos>', 'the', 'cat'), eos='<eos>')
  assert refused(v.encode, b'the cat\n\ncat, the\n', 'cats.txt') == (
    "cats.txt: word 'cat,' is not among the 3 words of the vocabulary, which "
    'has no <unk> (data.unk adds it)'
  )


def test_bytes_that_are_no_utf_8_are_kept():
  v = Words.from_counts({'a\udcff': 1})
  assert v.decode(v.encode(b'a\xff', 'text')) == b'a\xff'
  assert Words.from_entry(v.entry(), v.text()) == v


@pytest.mark.parametrize(
  'options, expected',
  [
    ({}, {'c': 5, 'a': 2, 'b': 2, '#': 1}),
    ({'min_count': 2}, {'c': 5, 'a': 2, 'b': 2}),
    ({'max_size': 3}, {'c': 5, 'a': 2}),
    # Of what is left out, unk gets the count, and its place by that.
    ({'min_count': 2, 'unk': '<unk>'}, {'c': 5, 'a': 2, 'b': 2, '<unk>': 1}),
    ({'max_size': 3, 'unk': '<unk>'}, {'c': 5, '<unk>': 5}),
    ({'unk': 'a'}, {'c': 5, 'a': 2, 'b': 2, '#': 1}),
    ({'min_count': 3, 'unk': 'a'}, {'a': 5, 'c': 5}),
    ({'unk': '<unk>'}, {'c': 5, 'a': 2, 'b': 2, '#': 1, '<unk>': 0}),
  ],
)
def test_rare_words_are_left_out(options, expected):
  counts = {'a': 2, '<eos>': 3, 'b': 2, 'c': 5, '#': 1}
  v = Words.from_counts(counts, eos='<eos>', **options)
  assert v.symbols == ('<eos>', *expected)
  assert v.counts == (3, *expected.values())


def test_list_of_words():
  v = Words.from_list(b'b 7\n<UNK> 5\na 2\n', 'list', unk='<UNK>')
  assert v == Words(('b', '<UNK>', 'a'), (7, 5, 2), '', '<UNK>')
  v = Words.from_list(b'b\na', 'list', eos='<eos>', unk='<unk>')
  assert v == Words(('<eos>', 'b', 'a'), (), '<eos>', '')
  v = Words.from_list(b'b\na\n', 'list', unk='<unk>', add_unk=True)
  assert v == Words(('b', 'a', '<unk>'), (), '', '<unk>')
  v = Words.from_list(b'b 2\na 1\n', 'list', unk='<unk>', add_unk=True)
  assert v == Words(('b', 'a', '<unk>'), (2, 1, 0), '', '<unk>')


def test_counts_of_a_list_of_words():
  def read(data):
    return Words.from_list(data, 'list', eos='<eos>')

  assert read(b'b 7\na 7\nc 0\n').counts == (0, 7, 7, 0)
  assert read(b'<eos> 3\nb 7\na 2\n').counts == (3, 7, 2)
  assert read(b'b\na\n').counts == read(b'b 7\na\n').counts == ()


@pytest.mark.parametrize(
  'data, found',
  [
    (b'', "list: line 1 is ''"),
    (b'a 1\n\nb 1\n', "list: line 2 is ''; allowed: a new word, opt"),
    (b'a 1\nb one\n', "list: line 2 is 'b one'"),
    (b'a 1 2\n', "list: line 1 is 'a 1 2'"),
    (b'a b' + b'c' * 99, f"list: line 1 is 'a b{'c' * 77}'; allowed: a new"),
    (b'a\nb\na\n', "list: line 3 is 'a'; allowed: a new word, opt"),
  ],
)
def test_list_of_another_form(data, found):
  assert refused(Words.from_list, data, 'list').startswith(found)


@pytest.mark.parametrize(
  'fields',
  [
    ((),),
    (('a b',),),
    (('a', ''),),
    (('a', 'a'),),
    (('a', 'b'), (1,)),
    (('a',), (), '<eos>'),
    (('a',), (), '', '<unk>'),
  ],
)
def test_impossible_vocabularies_are_refused(fields):
  with pytest.raises(ValueError):
    Words(*fields)


def test_json_pickle_and_list_round_trip():
  again = json.loads(json.dumps(CAT.to_json()))
  assert vocabularies.from_json(again) == CAT
  CAT.encode(b'the', 'text')  # fills what is cached
  assert pickle.loads(pickle.dumps(CAT)) == CAT
  assert repr(CAT) == 'Words(4 words)'
  assert CAT.text() == b'<eos> 2\nthe 3\ncat 1\n<unk> 4\n'
  assert Words.from_entry(CAT.entry(), CAT.text()) == CAT
  for sha256 in '', 'g':  # below and above all digests
    with pytest.raises(ValueError, match='sha256'):
      Words.from_entry(CAT.entry() | {'sha256': sha256}, CAT.text())
  with pytest.raises(ValueError, match='words'):
    Words.from_json(Bytes.all_bytes().to_json())


@pytest.mark.parametrize('ids', [[4], [-1], [0, 300]])
def test_decode_refuses_ids_outside(ids):
  with pytest.raises(ValueError, match='not in'):
    CAT.decode(ids)


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(0, 9))
def test_decoding_in_pieces(ids, cut):
  decoder = CAT.decoder()
  pieces = decoder.push(ids[:cut]) + decoder.push(np.array(ids[cut:], int))
  assert pieces == CAT.decode(ids)


VOCABULARY = Words(('<unk>', 'the', 'city', '.', 'It'), unk='<unk>')


@pytest.mark.thorough
def test_unknown_words_are_told_in_one_line():
  text = b"It doesn't zebra .\nzebra <unk> city"
  assert VOCABULARY.unknown(text, 'the prompt') == (
    "the prompt: not in the vocabulary, read as <unk>: \"doesn't\", 'zebra'"
  )
  many = ' '.join(f'z{i}' for i in range(1205)).encode()
  line = VOCABULARY.unknown(many, 'it')
  assert line.endswith("'z4' and 1,200 more") and '\n' not in line
  assert VOCABULARY.unknown(b'It \xff', 'it').endswith(r": '\udcff'")


def test_long_words_are_not_shown_to_their_ends():
  word = b'x' * 75_111
  line = VOCABULARY.unknown(word, 'it')
  assert line == f"it: not in the vocabulary, read as <unk>: '{'x' * 198}…"
  said = refused(Words(('a',)).encode, word, 'it')
  assert said.startswith(f"it: word '{'x' * 198}… is not among the")


def test_where_no_word_is_unknown():
  assert VOCABULARY.unknown(b'the city', 'it') == ''
  assert Bytes.all_bytes().unknown(b'zebra', 'it') == ''
  assert Words(('a',)).unknown(b'b', 'it') == ''  # which is refused


@given(texts_of_blocks, sizes, sizes)
def test_blocks_are_whole_lines_and_together_the_text(text, chunk, size):
  blocks = list(words.blocks(cut(text, chunk), size))
  assert b''.join(blocks) == text
  assert all(blocks)
  for block in blocks[:-1]:
    assert block.endswith((b'\n', b' '))
    if b'\n' in block:
      assert block.endswith(b'\n')  # a cut at a space is within one line


def test_blocks_have_about_the_size_asked_for():
  lines = b'0123456\n' * 1000
  blocks = list(words.blocks(cut(lines, 10), 100))
  assert all(90 <= len(block) <= 110 for block in blocks[:-1])
  chunks = [b'a\nbcdef', b'\n', b'g\n']
  assert [*words.blocks(chunks, 4)] == [b'a\n', b'bcdef\n', b'g\n']
  assert [*words.blocks(chunks, 7)] == [b'a\n', b'bcdef\ng\n']
