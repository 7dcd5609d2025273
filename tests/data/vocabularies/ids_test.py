import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import offsets
from txl_jax.data.vocabularies.ids import Ids

NUMBERS = Ids.of_names({}, 12)
NAMED = Ids.of_names({0: 'Bar', 2: 'Pitch_60', 3: '9'}, 5)
LETTERS = Ids.of_names(dict(enumerate('ab \n7é')), 6)
PIECES = Ids.of_names({0: 'a', 1: 'ab', 2: ' b'}, 3)


@pytest.mark.parametrize(
  'vocabulary, text, ids',
  [
    (NUMBERS, '3 4 11', [3, 4, 11]),
    (Ids.of_names({}, 4), '3 0', [3, 0]),
    (NAMED, 'Bar Pitch_60 1 9 4', [0, 2, 1, 3, 4]),
    (LETTERS, 'ba \n7é', [1, 0, 2, 3, 4, 5]),
    (PIECES, 'aab b', [0, 1, 2]),
    (Ids.of_names({0: 'a b'}, 2), '1a b1', [1, 0, 1]),
    (NUMBERS.of_documents(), '', []),
  ],
)
def test_texts(vocabulary, text, ids):
  data = text.encode()
  assert vocabulary.encode(data, 'it').tolist() == ids
  assert vocabulary.decode(ids) == data
  decoder = vocabulary.decoder()
  assert b''.join(decoder.push([i]) for i in ids) == data
  spans = offsets.of_tokens(vocabulary, data, np.array(ids, np.int32))
  pieces = [data[i:j].decode() for i, j in spans]
  assert pieces == [vocabulary.symbols[i] for i in ids]
  again = vocabularies.from_json(vocabulary.to_json())
  assert again == vocabulary and again.spaced == vocabulary.spaced


def test_ids_in_place_of_names():
  assert NAMED.encode(b'0 2\n3', 'it').tolist() == [0, 2, 3]


def test_documents_end_in_an_id_after_all_others():
  made = NAMED.of_documents()
  assert (len(made), made.eos_id, made.document_end) == (6, 5, 5)
  assert made.decode([0, 5, 1]) == b'Bar 1'
  assert LETTERS.of_documents().sizes.tolist() == [1, 1, 1, 1, 1, 2, 0]
  assert (LETTERS.line_end, NUMBERS.line_end) == (3, None)
  assert Ids.of_names({1: 'a\r'}, 2).raw and not LETTERS.raw
  assert repr(LETTERS) == 'Ids(6 ids)'


@pytest.mark.parametrize(
  'vocabulary, text, found',
  [
    (NUMBERS, '3 12', "it: '12' is not a token; allowed: 0 to 11, or names"),
    (NUMBERS, '0 12', "it: '12' is not a token; allowed: 0 to 11, or names"),
    (NUMBERS, '-1', "it: '-1' is not a token"),
    (NUMBERS.of_documents(), '12', "'12' is not a token; allowed: 0 to 11"),
    (LETTERS, 'abc', "it: 'c' is not a token; allowed: token names"),
  ],
)
def test_what_is_no_token(vocabulary, text, found):
  assert found in refused(vocabulary.encode, text.encode(), 'it')
