"""A vocabulary for a model without a known one: token ids in digits."""

from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.data.vocabularies.words import Words


def words(vocab_size: int) -> Words:
  """The words 0, 1, 2…: a text of ids, with spaces between, is its tokens."""
  return Words(tuple(map(str, range(vocab_size))))


def are(vocabulary: AnyVocabulary) -> bool:
  """Whether it is one of `words`."""
  ends = vocabulary.symbols[:1] + vocabulary.symbols[-1:]
  last = str(len(vocabulary) - 1)
  return isinstance(vocabulary, Words) and ends == ('0', last)
