import pytest

from txl_jax.data import unknown
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words

KNOWN = [
  '<unk>',
  'does',
  "n't",
  'don',
  "'t",
  'city',
  "'s",
  'well',
  '@-@',
  'known',
  '10',
  '@,@',
  '000',
  '3',
  '@.@',
  '5',
  '(',
  'the',
  ')',
  '.',
  ',',
  'It',
  'we',
  "'re",
]
VOCABULARY = Words(tuple(dict.fromkeys(KNOWN)), unk='<unk>')


@pytest.mark.parametrize(
  'word, way',
  [
    ("doesn't", "does n't"),
    ("don't", "don 't"),
    ("city's", "city 's"),
    ("we're", "we 're"),
    ('well-known', 'well @-@ known'),
    ('10,000', '10 @,@ 000'),
    ('3.5', '3 @.@ 5'),
    ('(the', '( the'),
    ('the),', 'the ) ,'),
    ('city.', 'city .'),
    ('10,000.', '10 @,@ 000 .'),
    ("city's.", "city 's ."),
    ('THE', 'the'),
    ('zebra', ''),
    ("zebra's", ''),
    ('wellknown', ''),
    ('\udcff', ''),
  ],
)
def test_how_the_corpus_writes_a_word(word, way):
  assert unknown.written(VOCABULARY, word) == way


def test_the_words_are_told_in_one_line():
  text = b"It doesn't zebra .\nzebra <unk> city"
  assert unknown.told(VOCABULARY, text, 'the prompt') == (
    'the prompt: not in the vocabulary, read as <unk>: "doesn\'t" (the corpus '
    "writes \"does n't\"), 'zebra'"
  )
  many = ' '.join(f'z{i}' for i in range(1205)).encode()
  line = unknown.told(VOCABULARY, many, 'it')
  assert line.endswith("'z4' and 1,200 more") and '\n' not in line
  assert unknown.told(VOCABULARY, b'It \xff', 'it').endswith(r": '\udcff'")


def test_where_nothing_is_told():
  assert unknown.told(VOCABULARY, b'the city', 'it') == ''
  assert unknown.told(Vocabulary.all_bytes(), b'zebra', 'it') == ''
  assert unknown.told(Words(('a',)), b'b', 'it') == ''  # which is refused
