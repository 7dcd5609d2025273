"""Detokenisation: readable text from the words of a tokenised corpus.

The corpora separate punctuation and clitics by spaces: WikiText has "10 @,@
000", "well @-@ known", "( 1912 )" and "the city 's"; Penn Treebank "do n't" and
"$ N"; lm1b "don 't". The rules that remove these spaces never look ahead, so
text can be printed as it is generated. Straight quotes alternate between
opening and closing.
"""

import re

_AFTER = frozenset(',.;:?!%)]}…”’') | {'...'}  # no space before these words
_BEFORE = frozenset('([{$£€¥#“‘')  # no space after these
_JOINERS = {'@-@': '-', '@,@': ',', '@.@': '.'}  # no space on either side
_CLITIC = re.compile(r"(n['’]t|['’](s|t|re|ve|ll|d|m))", re.IGNORECASE)


class Joiner:
  """Joins words into text, word by word; the word `eos` becomes a newline."""

  def __init__(self, eos: str = ''):
    self._eos = eos
    self._previous = ''
    self._glued = True  # no space before the next word
    self._open = set()  # straight quotes that are open

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
      # A closing quote, or an apostrophe as in "the players ' union".
      if word in self._open or (word == "'" and previous.endswith('s')):
        self._open.discard(word)
        return word
      self._open.add(word)
      self._glued = True
    elif word in _AFTER or _CLITIC.fullmatch(word):
      return word
    return space + word
