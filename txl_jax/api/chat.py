"""A text written in turns, with the model's memory carried between them."""

from collections.abc import Iterator, Sequence
from typing import Any, AnyStr

import numpy as np

from txl_jax.experiment import texts
from txl_jax.generation.text_writer import Row, Writer
from txl_jax.parallel import mesh as mesh_lib


class Chat:
  """One text: what was said and what the model replied; see `TextModel.chat`.

  Nothing is inserted between the two. A reply continues the whole text so far,
  which the model has read only once: its memory is kept.

  Attributes:
    ids: the tokens so far, int64 [n].
  """

  def __init__(self, writer: Writer, stops: Sequence[bytes] = ()):
    self._writer, self._stops = writer, stops
    self.ids = np.zeros([0], np.int64)
    self._state: Any = None  # after these tokens

  @property
  def text(self) -> str:
    """The text so far, as the vocabulary decodes it."""
    return self._writer.vocabulary.decode(self.ids).decode(errors='replace')

  def say(self, text: AnyStr) -> AnyStr:
    """The reply to a text, str or bytes like it, without a stop text.

    The part of a subword before a stop text is kept as the subwords of its
    bytes; the part of a word is not kept, for no token has it.
    UserError if the vocabulary has no token for a part of the text.
    """
    empty: Any = '' if isinstance(text, str) else b''
    return empty.join(self.stream(text))

  def stream(self, text: AnyStr) -> Iterator[AnyStr]:
    """The reply as it is made; unless read to its end, the turn is not kept."""
    said, _ = texts.tokenise(self._writer.vocabulary, 'text', text)
    return texts.like(text, mesh_lib.each_apart(self._reply(said)))

  def _reply(self, said):
    """Yields the bytes of a reply in pieces; at its end the turn is kept."""
    writer, ids, state = self._writer, self.ids, self._state
    if state is None:
      said = writer.with_start(said)
    said = np.asarray(said, np.int64)
    row = Row(writer.vocabulary, self._stops, np.concatenate([ids, said]))
    now = writer.read([said], state)
    # States after some of the new tokens; the first state precedes any token
    # that may have to be taken back.
    states, new = [(0, now)], []
    for tokens, now in writer.decode(states[0][1]):
      here = tokens[0][tokens[0] >= 0].tolist()
      new += here
      yield row.push(here)
      if row.is_done:
        break
      states.append((len(new), now))
      while len(states) > 1 and states[1][0] <= row.num_emitted:
        states.pop(0)
    if row.is_done:
      n, now = states[0]
      # The tokens before the end, which are drawn again exactly as before.
      again = writer.decode(now, max_new_tokens=row.num_emitted - n)
      now = [now, *(state for _, state in again)][-1]
      new = new[: row.num_emitted]
      if row.partial and writer.vocabulary.kind == 'subwords':
        part = writer.vocabulary.encode(row.partial, 'the reply')
        now, new = writer.read([part], now), [*new, *part.tolist()]
    yield row.rest()
    self.ids = np.concatenate([ids, said, np.array(new, np.int64)])
    self._state = now
