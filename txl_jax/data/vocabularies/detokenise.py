"""Readable text from the words of a tokenised corpus.

The corpora separate punctuation from words and write parts of words apart:
WikiText's "10 @,@ 000", "well @-@ known", "( 1912 )", "the city 's"; Penn
Treebank's "do n't" and "$ N"; lm1b's "don 't". The spaces that tokenisation
added are removed by rules that look only at a word and what precedes it, so
text can be shown while it is written. Straight quotes open and close in turn.
"""

import re

_AFTER = frozenset(',.;:?!%)]}…”’') | {'...'}  # no space before these,
_BEFORE = frozenset('([{$£€¥#“‘')  # none after these,
_JOINERS = {'@-@': '-', '@,@': ',', '@.@': '.'}  # and none on either side
_CLITIC = re.compile(r"(n['’]t|['’](s|t|re|ve|ll|d|m))", re.IGNORECASE)


class Joiner:
  """Turns words, one at a time, into text; the word `eos` is a newline."""

  def __init__(self, eos: str = ''):
    self._eos, self._previous = eos, ''
    self._glued = True  # no space before the next word
    self._open = set()  # straight quotes that are still open

  def push(self, word: str) -> str:
    """The text that a word adds."""
    previous, self._previous = self._previous, word
    space = '' if self._glued else ' '
    self._glued = word == self._eos or word in _JOINERS or word in _BEFORE
    if word == self._eos:
      self._open.clear()
      return '\n'
    if word in _JOINERS:
      return _JOINERS[word]
    if word in ('"', "'"):
      # It closes a quotation, or is like that in "the players ' union".
      if word in self._open or (word == "'" and previous.endswith('s')):
        self._open.discard(word)
        return word
      self._open.add(word)
      self._glued = True
    elif word in _AFTER or _CLITIC.fullmatch(word):
      return word
    return space + word
