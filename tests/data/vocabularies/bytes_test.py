import collections
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusing import refused
from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import words
from txl_jax.data.vocabularies.bytes import Bytes, count_bytes

texts = st.one_of(st.binary(max_size=80), st.text('abc\n').map(str.encode))


def split_at(text, cuts):
  cuts = sorted(min(c, len(text)) for c in cuts)
  return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]


@given(texts, st.lists(st.integers(0, 80), max_size=4))
def test_order_is_by_frequency_then_first_appearance(text, cuts):
  counts = count_bytes(split_at(text, cuts))
  v = Bytes.from_counts(counts)
  # Counter.most_common keeps the order of insertion among equal counts.
  expected = collections.Counter(text).most_common()
  assert list(zip(v.symbols, v.counts)) == expected


@given(texts)
def test_all_bytes_maps_every_byte_to_itself(text):
  v = Bytes.all_bytes()
  ids = v.encode(text, 'text')
  assert len(v) == 256 and repr(v) == 'Bytes(256 bytes)'
  assert ids.dtype == np.uint8
  assert ids.tolist() == list(text)
  assert v.decode(ids) == text


@given(texts)
def test_counted_vocabulary_round_trips(text):
  v = Bytes.from_counts(count_bytes([text]))
  ids = v.encode(text, 'text')
  assert [v.symbols[i] for i in ids] == list(text)
  assert v.decode(ids.astype(np.int32)) == text
  assert v.decode(ids.tolist()) == text


@given(texts)
def test_json_round_trips_and_equality(text):
  v = Bytes.from_counts(count_bytes([text]), dropped=b'\n')
  again = Bytes.from_json(json.loads(json.dumps(v.to_json())))
  assert again == v
  assert hash(again) == hash(v)
  assert v != Bytes.all_bytes()


def test_dropped_bytes_vanish_from_vocabulary_and_texts():
  text = b'b\na\nb\n'
  v = Bytes.from_counts(count_bytes([text]), dropped=b'\n')
  assert v.symbols == (ord('b'), ord('a'))
  assert v.counts == (2, 1)
  assert v.encode(b'\na\n\nb', 'text').tolist() == [1, 0]
  assert v.decode(v.encode(text, 'text')) == b'bab'
  of_documents = Bytes((98, 97)).of_documents()
  assert of_documents.decode([0, 2, 1]) == b'ba'
  assert of_documents.encode(b'ab', 'text').tolist() == [1, 0]
  assert of_documents.sizes.tolist() == [1, 1, 0]


def test_byte_outside_names_value_position_and_source():
  v = Bytes((97, 98), dropped=(10,))
  assert refused(v.encode, b'a\nb\xe9a\xe8', 'prompt.txt') == (
    'prompt.txt: byte 0xe9 at position 3 is not among the 2 byte values of '
    'the vocabulary'
  )


@pytest.mark.parametrize(
  'symbols, counts, dropped',
  [
    ((256,), (), ()),
    ((256, 1), (), ()),
    ((-1,), (), ()),
    (('a',), (), ()),
    ((1, 1), (), ()),
    ((1, 2), (), (2,)),
    ((1, 2), (3,), ()),
  ],
)
def test_impossible_vocabularies_are_refused(symbols, counts, dropped):
  with pytest.raises(ValueError):
    Bytes(symbols, counts, dropped)


BYTES = Bytes((97, 98), (2, 1), (10,))
WORDS = words.Words(('a', 'b'), (2, 1), 'b')


@pytest.mark.parametrize(
  'vocabulary, changes',
  [
    (BYTES, {'symbols': [97, '98']}),
    (BYTES, {'symbols': [97, 98.0]}),
    (BYTES, {'symbols': [97, True]}),
    (BYTES, {'symbols': 'ab'}),
    (BYTES, {'symbols': {'97': 1}}),
    (BYTES, {'symbols': None}),
    (BYTES, {'counts': [2, -1]}),
    (BYTES, {'counts': [2, '1']}),
    (BYTES, {'counts': [2.0, 1.0]}),
    (BYTES, {'counts': 2}),
    (BYTES, {'dropped': [[10]]}),
    (BYTES, {'dropped': None}),
    (BYTES, {'kind': ['bytes']}),
    (BYTES, {'kind': None}),
    (BYTES, {'kind': 'pieces'}),
    (WORDS, {'lower': 'no'}),
    (WORDS, {'lower': 0}),
    (WORDS, {'lower': None}),
    (WORDS, {'eos': None}),
    (WORDS, {'unk': ['a']}),
    (WORDS, {'eos': 3}),
    (WORDS, {'symbols': ['a', 1]}),
    (WORDS, {'symbols': ['a', None]}),
    (WORDS, {'symbols': ['a', ['b']]}),
    (WORDS, {'symbols': 'ab'}),
    (WORDS, {'counts': [1, None]}),
    (WORDS, {'counts': 'ab'}),
  ],
)
def test_json_of_other_types_is_refused(vocabulary, changes):
  named = next(iter(changes)) if vocabulary is WORDS else None
  with pytest.raises(ValueError, match=named):
    vocabularies.from_json(vocabulary.to_json() | changes)


@pytest.mark.parametrize('missing', ['kind', 'symbols', 'counts', 'lower'])
def test_json_that_lacks_something_is_refused(missing):
  fields = WORDS.to_json()
  del fields[missing]
  with pytest.raises(ValueError):
    vocabularies.from_json(fields)


@pytest.mark.parametrize('found', [None, [], 'words', 3, True])
def test_json_that_is_no_object_is_refused(found):
  with pytest.raises(ValueError, match='the vocabulary is'):
    vocabularies.from_json(found)


@pytest.mark.parametrize(
  'symbols, start', [(b'ab \n', 3), (b'ab c', 2), (b'a_b', 1), (b'abc', 0)]
)
def test_a_text_starts_after_a_newline_or_a_space(symbols, start):
  v = Bytes(tuple(symbols))
  assert v.start == start
  assert (v.eos_id, v.unk_id) == (None, None)


def test_a_line_ends_with_a_newline():
  assert Bytes.all_bytes().line_end == 10
  assert Bytes((10, 97)).line_end == 0
  assert Bytes((97, 98), dropped=(10,)).line_end is None


def test_from_json_tells_the_kinds_apart():
  for v in BYTES, WORDS:
    assert vocabularies.from_json(json.loads(json.dumps(v.to_json()))) == v
  with pytest.raises(ValueError, match='words'):
    Bytes.from_json({'kind': 'words'})
