"""UTF-8 bytes in pieces to text."""

import codecs


class TextStream:
  """UTF-8 bytes in pieces to text; an incomplete character waits.

  Bytes that are no UTF-8 become U+FFFD. The texts of all calls together are
  what decoding all bytes at once with errors='replace' gives.
  """

  def __init__(self):
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

  def push(self, piece):
    """The text that is complete with these bytes."""
    return self._decoder.decode(piece)

  def close(self):
    """The text of the bytes that still wait; they are incomplete."""
    return self._decoder.decode(b'', final=True)
