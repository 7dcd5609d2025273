"""A text that two write in turns, the model's memory carried between them."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from txl_jax.api import asked, texts
from txl_jax.api.writing import Row, Writer


class Chat:
  """One text: what was said and what the model replied; see `TextModel.chat`.

  Nothing is put between the two: what a model needs there, as a newline, is
  part of what is said. A reply is what the model writes after the whole text
  so far, which it has read once: its memory is kept, not the text.
  """

  def __init__(self, writer: Writer, stops: Sequence[bytes] = ()):
    self._writer, self._stops = writer, stops
    self._ids = np.zeros([0], np.int64)
    self._state: Any = None

  @property
  def ids(self) -> np.ndarray:
    """The tokens so far, int64 [n]."""
    return self._ids

  @property
  def text(self) -> str:
    """The text so far, as the vocabulary writes it."""
    text = self._writer.vocabulary.decode(self._ids)
    return text.decode(errors='replace')

  def say(self, text: str) -> str:
    """The reply to a text; it ends as the options of the chat say.

    A text that stops a reply is neither in it nor in the memory. ValueError if
    the vocabulary has no token for a part of the text.
    """
    return ''.join(self.stream(text))

  def stream(self, text: str) -> Iterator[str]:
    """The reply as it is made; not read to its end, nothing was said."""
    writer = self._writer
    with asked.told():
      said = writer.vocabulary.encode(texts.encoded('text', text), 'text')
    if self._state is None:
      said = writer.begun(said)
    return self._reply(np.asarray(said, np.int64))

  def _reply(self, said):
    writer = self._writer
    utf8 = codecs.getincrementaldecoder('utf-8')('replace')
    row = Row(writer.vocabulary, self._stops)
    row.read(np.concatenate([self._ids, said]))
    now = writer.read([said], self._state)
    # States after some of the new tokens; the first of them is before any that
    # may have to be taken back.
    states, new = [(0, now)], []
    for tokens, now in writer.decode(states[0][1]):
      here = tokens[0][tokens[0] >= 0].tolist()
      new += here
      yield utf8.decode(row.push(here))
      if row.ended:
        break
      states.append((len(new), now))
      while len(states) > 1 and states[1][0] <= row.whole:
        states.pop(0)
    if row.ended:
      n, now = states[0]
      # The tokens before the end, which are drawn again as they were.
      again = writer.decode(now, max_new_tokens=row.whole - n)
      now = [now, *(state for _, state in again)][-1]
      new = new[: row.whole]
    yield utf8.decode(row.rest(), final=True)
    self._state = now
    self._ids = np.concatenate([self._ids, said, np.array(new, np.int64)])
