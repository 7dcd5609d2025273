"""Positions of tokens in a text.

Shapes: n tokens of a text.
"""

import re

import numpy as np

from txl_jax.data.vocabularies import AnyVocabulary, Ids, Subwords, Words


def of_tokens(
  vocabulary: AnyVocabulary, text: bytes, ids: np.ndarray
) -> np.ndarray:
  """Byte spans (start, end) of the tokens that `encode` returns for a text.

  int64 [n, 2], ascending and disjoint. The span of an <eos> is its newline;
  dropped bytes and white space between words belong to no token.
  """
  if isinstance(vocabulary, Subwords | Ids) and vocabulary.sizes is not None:
    ends = np.cumsum(vocabulary.sizes[ids])
    return np.stack([ends - vocabulary.sizes[ids], ends], axis=1)
  if isinstance(vocabulary, Words | Ids):
    return _of_words(text, vocabulary.newline)
  values = np.frombuffer(text, np.uint8)
  dropped = np.array(getattr(vocabulary, 'dropped', ()), np.uint8)
  starts = np.flatnonzero(~np.isin(values, dropped))
  return np.stack([starts, starts + 1], axis=1)


def _of_words(text, eos):
  string = text.decode('utf-8', 'surrogateescape')
  # In `re`, white space is the same as in `str.split`.
  matches = re.finditer(r'\n|\S+' if eos else r'\S+', string)
  spans = np.array([x.span() for x in matches], np.int64).reshape(-1, 2)
  sizes = (len(c.encode('utf-8', 'surrogateescape')) for c in string)
  before = np.cumsum([0, *sizes])
  return before[spans]


def in_characters(spans: np.ndarray, text: bytes) -> np.ndarray:
  """Converts byte spans of a UTF-8 text to character spans, int64 [n, 2].

  A token that is only part of a character gets the whole character's span.
  """
  if not len(spans):
    return spans
  values = np.frombuffer(text, np.uint8)
  character = np.cumsum((values & 0xC0) != 0x80) - 1  # index for each byte
  first, last = character[spans[:, 0]], character[spans[:, 1] - 1]
  return np.stack([first, last + 1], axis=1)
