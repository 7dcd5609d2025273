from txl_jax.data.vocabularies import unknown
from txl_jax.data.vocabularies.vocabulary import Vocabulary
from txl_jax.data.vocabularies.words import Words

VOCABULARY = Words(('<unk>', 'the', 'city', '.', 'It'), unk='<unk>')


def test_the_words_are_told_in_one_line():
  text = b"It doesn't zebra .\nzebra <unk> city"
  assert unknown.told(VOCABULARY, text, 'the prompt') == (
    "the prompt: not in the vocabulary, read as <unk>: \"doesn't\", 'zebra'"
  )
  many = ' '.join(f'z{i}' for i in range(1205)).encode()
  line = unknown.told(VOCABULARY, many, 'it')
  assert line.endswith("'z4' and 1,200 more") and '\n' not in line
  assert unknown.told(VOCABULARY, b'It \xff', 'it').endswith(r": '\udcff'")


def test_where_nothing_is_told():
  assert unknown.told(VOCABULARY, b'the city', 'it') == ''
  assert unknown.told(Vocabulary.all_bytes(), b'zebra', 'it') == ''
  assert unknown.told(Words(('a',)), b'b', 'it') == ''  # which is refused
