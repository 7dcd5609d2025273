"""Readable text from the words of a tokenised corpus.

The corpora separate punctuation from words and write parts of words apart:
WikiText's "10 @,@ 000", "well @-@ known", "( 1912 )", "the city 's"; Penn
Treebank's "do n't" and "$ N"; lm1b's "don 't". Spaces that the tokenisation
put there are taken out by rules of the word and of what stands before it, so
text can be shown while it is written. What the original looked like is not
known for certain: straight quotes are taken to open and close in turn.
"""

import re

# These stand right after the word before them...
_AFTER = frozenset(',.;:?!%)]}…”’') | {'...'}
# ...these right before the word after them...
_BEFORE = frozenset('([{$£€¥#“‘')
# ...and these on both sides.
_JOINERS = {'@-@': '-', '@,@': ',', '@.@': '.'}
_CLITIC = re.compile(r"(n['’]t|['’](s|t|re|ve|ll|d|m))", re.IGNORECASE)


class Joiner:
  """Words, one at a time, to text."""

  def __init__(self, eos: str = ''):
    """Starts a text; the word `eos` is a newline, '' for none."""
    self._eos, self._previous = eos, ''
    self._glued = True  # no space before the next word
    self._open = set()  # straight quotes that wait for their second half

  def push(self, word: str) -> str:
    """The text that a word adds."""
    previous, self._previous = self._previous, word
    space = '' if self._glued else ' '
    self._glued = False
    if self._eos and word == self._eos:
      self._glued = True
      self._open.clear()
      return '\n'
    if word in _JOINERS:
      self._glued = True
      return _JOINERS[word]
    if word in ('"', "'"):
      return self._quote(word, previous, space)
    if word in _AFTER or _CLITIC.fullmatch(word):
      return word
    self._glued = word in _BEFORE
    return space + word

  def _quote(self, quote, previous, space):
    if quote in self._open:
      self._open.remove(quote)
      return quote
    if quote == "'" and previous.endswith('s'):
      return quote  # the players ' union
    self._open.add(quote)
    self._glued = True
    return space + quote
