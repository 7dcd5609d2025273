"""What doubles of a corpus have in common."""

from types import MappingProxyType


class Corpus:
  """One that is neither sentences nor documents; it needs `tokens`."""

  name = digest = 'made here'
  of_documents = False
  files = MappingProxyType({})

  def sentences(self, split):
    """None."""
    del split

  def token_stream(self, split, count=0):
    """The first tokens."""
    return self.tokens(split)[: count or None]

  def ordered_like(self, vocabulary):
    """Itself."""
    del vocabulary
    return self
