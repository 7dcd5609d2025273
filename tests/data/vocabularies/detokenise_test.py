import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_jax.data.vocabularies import detokenise
from txl_jax.data.vocabularies.words import Words

WIKITEXT = (
  ' = Robert Boulter = \n \n Robert Boulter is an English film , television '
  'and theatre actor . He had a guest @-@ starring role on the series " The '
  'Bill " in 2000 ( see 1 @,@ 234 @.@ 5 notes ) ; the actor \'s part , the '
  "players ' union , and 50 % of $ 5 million : it is all ' fine ' . \n"
)
READABLE = (
  '= Robert Boulter =\n\nRobert Boulter is an English film, television and '
  'theatre actor. He had a guest-starring role on the series "The Bill" in '
  "2000 (see 1,234.5 notes); the actor's part, the players' union, and 50% of "
  "$5 million: it is all 'fine'.\n"
)


def join(text, eos='<eos>'):
  joiner = detokenise.Joiner(eos)
  words = text.replace('\n', f' {eos} ').split()
  return ''.join([joiner.push(word) for word in words])


def test_wikitext():
  assert join(WIKITEXT) == READABLE


@pytest.mark.parametrize(
  'text, expected',
  [
    ("he did n't say we 're no. N", "he didn't say we're no. N"),
    ('it rose $ N to N %', 'it rose $N to N%'),
    ("the company 's <unk> unit", "the company's <unk> unit"),
    ("I don 't know , he 'd say", "I don't know, he'd say"),
    ('" a " " b "', '"a" "b"'),
    ('" a\n" b "', '"a\n"b"'),  # a line forgets a quote that is open
    ('@-@ a', '-a'),
  ],
)
def test_parts_of_words(text, expected):
  assert join(text) == expected


def test_another_end_of_sentence():
  assert join('a b .\nc', eos='<S>') == 'a b.\nc'


@given(
  st.lists(st.sampled_from(sorted(set(WIKITEXT.split()))), max_size=30),
  st.integers(0, 30),
)
def test_pieces_are_the_whole(words, cut):
  v = Words(tuple(sorted(set(WIKITEXT.split()))))
  ids = [v.symbols.index(w) for w in words]
  decoder = v.decoder()
  assert decoder.push(ids[:cut]) + decoder.push(ids[cut:]) == v.decode(ids)
