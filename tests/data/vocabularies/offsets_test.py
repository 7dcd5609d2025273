"""Where tokens are in their text."""

import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np

from txl_jax.data.vocabularies import offsets
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words, split

BYTES = Bytes.all_bytes()
SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]
TEXTS = st.text(st.sampled_from([*'aébİ𝄞', *SPACES]), max_size=30)
some = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


def words(text, eos):
  found = dict.fromkeys(split(text, eos, False), 1) | {'x': 1}
  return Words.from_counts(found, eos=eos)


@some
@hypothesis.given(TEXTS, st.sampled_from(['', '<eos>']), st.booleans())
def test_of_words(text, eos, odd):
  data = text.encode() + b' \xff\xe9z' * odd
  vocabulary = words(data, eos)
  ids = vocabulary.encode(data, 'it')
  spans = offsets.of_tokens(vocabulary, data, ids)
  assert spans.shape == (len(ids), 2) and spans.dtype == np.int64
  for i, (start, end) in zip(ids.tolist(), spans):
    here = data[start:end].decode('utf-8', 'surrogateescape')
    assert vocabulary.symbols[i] == (eos if here == '\n' else here)
  if not odd:
    for i, (start, end) in zip(ids, offsets.in_characters(spans, data)):
      assert text[start:end] in (vocabulary.symbols[i], '\n')


def test_of_lower_case():
  """A letter whose small one is longer."""
  vocabulary = Words.from_counts({'i\u0307a': 2, 'b': 1}, lower=True)
  text = 'İA B'.encode()
  assert vocabulary.encode(text, 'it').tolist() == [0, 1]
  spans = offsets.of_tokens(vocabulary, text, vocabulary.encode(text, 'it'))
  found = offsets.in_characters(spans, text).tolist()
  assert found == [[0, 2], [3, 4]]


@some
@hypothesis.given(st.text(max_size=20))
def test_of_bytes(text):
  data = text.encode()
  spans = offsets.of_tokens(BYTES, data, BYTES.encode(data, 'it'))
  assert spans.tolist() == [[i, i + 1] for i in range(len(data))]
  expected = [[i, i + 1] for i, c in enumerate(text) for _ in c.encode()]
  assert offsets.in_characters(spans, data).tolist() == expected


def test_of_bytes_that_are_dropped():
  vocabulary = Bytes((97, 98), dropped=(10,))
  text = b'\na\n\nb'
  spans = offsets.of_tokens(vocabulary, text, vocabulary.encode(text, 'it'))
  assert spans.tolist() == [[1, 2], [4, 5]]
