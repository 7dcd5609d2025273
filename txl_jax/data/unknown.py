"""Words of a text that a vocabulary lacks, and how it might write them.

The corpora write parts of words, and punctuation, apart: "does n't" (lm1b:
"don 't"), "well @-@ known", "10 @,@ 000". A prompt is split at white space, as
they are, so "doesn't" is a word that none of them has. A spelling in parts is
proposed if `detokenise` turns it back into the word and all parts are known.
"""

import itertools
import re
from collections.abc import Iterator

from txl_jax.data import detokenise
from txl_jax.data.words import Words

_ENDS = "['’](?:s|re|ve|ll|d|m)(?![^\\W\\d_])"
# The parts of a word as Penn Treebank and WikiText, or lm1b, write them.
_PARTS = tuple(
  re.compile(rf'{nots}|{_ENDS}|[^\W_]+?(?={nots})|[^\W_]+|[^\w\s]|_', re.I)
  for nots in ("n['’]t(?![^\\W\\d_])", "['’]t(?![^\\W\\d_])")
)
_JOINED = {'-': '@-@', ',': '@,@', '.': '@.@'}
_SHOWN = 5


def words(vocabulary: Words, text: bytes) -> dict[str, str]:
  """{word: how the corpus writes it, or ''} of a text, in order of appearance.

  These are the words that `encode` turns into <unk>, which the vocabulary must
  have.
  """
  found = {}
  for word in vocabulary.outside(text):
    if word not in found:
      found[word] = written(vocabulary, word)
  return found


def written(vocabulary: Words, word: str) -> str:
  """Words of the vocabulary that together read as one it lacks, or ''."""
  for parts in _ways(word):
    known = vocabulary.ids(parts).min(initial=0) >= 0
    joiner = detokenise.Joiner()
    if known and ''.join(map(joiner.push, parts)) == word:
      return ' '.join(parts)
  lower = word.lower()
  return lower if vocabulary.ids([lower])[0] >= 0 else ''


def _ways(word: str) -> Iterator[list[str]]:
  """A word in parts, in several ways."""
  for form in _PARTS:
    parts = form.findall(word)
    if len(parts) < 2:
      continue
    joined = parts.copy()
    for i, (before, part, after) in enumerate(zip(parts, parts[1:], parts[2:])):
      if before.isalnum() and after.isalnum():
        joined[i + 1] = _JOINED.get(part, part)
    yield joined
    yield parts


def told(vocabulary: object, text: bytes, name: str) -> str:
  """Which words of a text become <unk>, in one line; '' if none do."""
  if not isinstance(vocabulary, Words) or vocabulary.unk_id is None:
    return ''
  found = words(vocabulary, text)
  if not found:
    return ''
  shown = ', '.join(
    f'{word!r} (the corpus writes {way!r})' if way else repr(word)
    for word, way in itertools.islice(found.items(), _SHOWN)
  )
  more = f' and {len(found) - _SHOWN:,} more' if len(found) > _SHOWN else ''
  return (
    f'{name}: not in the vocabulary, read as {vocabulary.unk}: {shown}{more}'
  )
