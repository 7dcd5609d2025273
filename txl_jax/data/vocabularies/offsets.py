"""Where the tokens of a text are in it.

Shapes: n tokens of a text.
"""

import re

import numpy as np

from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words


def of_tokens(
  vocabulary: AnyVocabulary, text: bytes, ids: np.ndarray
) -> np.ndarray:
  """(start, end) in bytes of each token, for the ids that `encode` gives.

  int64 [n, 2], in order, none overlapping. The <eos> of a newline is that
  newline; white space between words, and bytes that the vocabulary drops,
  belong to no token.
  """
  if isinstance(vocabulary, Subwords | Ids) and vocabulary.sizes is not None:
    ends = np.cumsum(vocabulary.sizes[ids])
    return np.stack([ends - vocabulary.sizes[ids], ends], axis=1)
  if isinstance(vocabulary, Words | Ids):
    return _of_words(text, vocabulary.newline)
  here = np.frombuffer(text, np.uint8)
  dropped = np.array(getattr(vocabulary, 'dropped', ()), np.uint8)
  starts = np.flatnonzero(~np.isin(here, dropped))
  return np.stack([starts, starts + 1], axis=1)


def _of_words(text, eos):
  string = text.decode('utf-8', 'surrogateescape')
  # This is the same white space as that of `str.split`.
  found = re.finditer(r'\n|\S+' if eos else r'\S+', string)
  spans = np.array([x.span() for x in found], np.int64).reshape(-1, 2)
  sizes = (len(c.encode('utf-8', 'surrogateescape')) for c in string)
  before = np.cumsum([0, *sizes])
  return before[spans]


def in_characters(spans: np.ndarray, text: bytes) -> np.ndarray:
  """Byte spans of a UTF-8 text as spans of its characters.

  int64 [n, 2]. A token that is part of a character spans all of it.
  """
  if not len(spans):
    return spans
  here = np.frombuffer(text, np.uint8)
  character = np.cumsum((here & 0xC0) != 0x80) - 1  # of each byte
  first, last = character[spans[:, 0]], character[spans[:, 1] - 1]
  return np.stack([first, last + 1], axis=1)
