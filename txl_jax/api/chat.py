"""A dialogue with a model, whose memory is carried from turn to turn."""

from collections.abc import Iterator, Sequence
from typing import AnyStr

import numpy as np

from txl_jax.experiment import texts
from txl_jax.generation import decoding
from txl_jax.generation.text_writer import Row, Writer
from txl_jax.parallel import mesh as mesh_lib


class Chat:
  """A dialogue, kept as one text; see `TextModel.chat`.

  Nothing is inserted between turns and replies. A reply continues the whole
  text so far; the model reads each token once, because its memory is kept.

  Attributes:
    ids: tokens of the text so far, int64 [n].
  """

  def __init__(self, writer: Writer, stops: Sequence[bytes] = ()):
    self._writer, self._stops = writer, stops
    self.ids = np.zeros([0], np.int64)
    self._state: decoding.State | None = None  # after `ids`

  @property
  def text(self) -> str:
    """The text so far, decoded from `ids`."""
    return self._writer.vocabulary.decode(self.ids).decode(errors='replace')

  def say(self, text: AnyStr) -> AnyStr:
    """Returns the model's reply, of the type of `text`, without the stop text.

    If the stop text begins inside a subword, the bytes before it are encoded
    again and remembered; inside a word, they are returned but not remembered.
    UserError if the vocabulary has no token for a part of the turn.
    """
    pieces = self.stream(text)
    return text[:0].join(pieces)

  def stream(self, text: AnyStr) -> Iterator[AnyStr]:
    """Yields the reply in pieces; remembers the turn once all are read."""
    turn, _ = texts.tokenise(self._writer.vocabulary, 'text', text)
    return texts.like(text, mesh_lib.iterate_without_mesh(self._reply(turn)))

  def _reply(self, turn: np.ndarray) -> Iterator[bytes]:
    """Yields the reply to int [n] in pieces, then remembers the turn."""
    writer, ids, state = self._writer, self.ids, self._state
    if state is None:
      turn = writer.with_start(turn)
    turn = np.asarray(turn, np.int64)
    row = Row(writer.vocabulary, self._stops, np.concatenate([ids, turn]))
    state = writer.read([turn], state)
    # (n, state after n reply tokens). A stop text may remove tokens from the
    # end of the reply; the first state precedes all tokens still removable.
    states, reply = [(0, state)], []
    for tokens, state in writer.decode(states[0][1]):
      new = tokens[0][tokens[0] >= 0].tolist()
      reply += new
      yield row.push(new)
      if row.is_done:
        break
      states.append((len(reply), state))
      while len(states) > 1 and states[1][0] <= row.num_emitted:
        states.pop(0)
    if row.is_done:
      n, first = states[0]
      # The tokens before the stop text are drawn again, with the same keys.
      redrawn = writer.decode(first, max_new_tokens=row.num_emitted - n)
      state = [first, *(state for _, state in redrawn)][-1]
      reply = reply[: row.num_emitted]
      if row.partial and writer.vocabulary.kind == 'subwords':
        part = writer.vocabulary.encode(row.partial, 'the reply')
        state = writer.read([part], state)
        reply += part.tolist()
    yield row.rest()
    self.ids = np.concatenate([ids, turn, np.array(reply, np.int64)])
    self._state = state
