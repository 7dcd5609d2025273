"""Continues prompts: samples tokens, and turns each row into text.

Shapes: B rows, n tokens.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.data.vocabularies import AnyVocabulary, Ids
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base


class Row:
  """The text of one row, token by token, up to a stop text.

  The last bytes are held back, as many as may turn out to begin a stop text. In
  a text of ids between spaces, a stop text is whole ids.
  """

  def __init__(
    self, vocabulary: AnyVocabulary, stops: Sequence[bytes], prompt: Any = ()
  ):
    self._decoder = vocabulary.decoder()
    whole = isinstance(vocabulary, Ids) and vocabulary.spaced
    ending = rb'(?<!\S)%b\Z' if whole else b'%b'
    self._stops = [re.compile(ending % re.escape(s)) for s in stops]
    # For whole ids, the byte before a stop text is seen as well.
    self._longest = max((len(s) + 2 * whole for s in stops), default=1)
    # Stop texts are not searched for in the prompt.
    self.prompt = prompt
    self.text = self._decoder.push(prompt)
    self._end = vocabulary.document_end
    self._new = []
    self._held = b''
    self._ends = []  # end of each held token, in bytes of the held text
    self.is_done = False
    self.num_emitted = 0  # new tokens whose text is emitted
    self.partial = b''  # emitted beginning of the next token's text

  def push(self, ids: Any) -> bytes:
    """Adds tokens, int [n]; returns the text that has become certain."""
    out = b''
    for i in ids:
      if self.is_done:
        break
      self._held += self._decoder.push([i])
      self._new.append(i)
      self._ends.append(len(self._held))
      out += self._emit(self._certain())
    return out

  def _certain(self):
    """Number of held bytes that certainly belong to the text."""
    held = self._held
    if found := [*filter(None, (s.search(held) for s in self._stops))]:
      self.is_done = True
      # The text ends before the stop text that is completed first.
      return min((match.end(), match.start()) for match in found)[1]
    return max(len(held) - self._longest + 1, 0)

  def _emit(self, n):
    out, self._held = self._held[:n], self._held[n:]
    whole = sum(end <= n for end in self._ends)
    self.partial = out[self._ends[whole - 1] :] if whole else self.partial + out
    self.num_emitted += whole
    self._ends = [end - n for end in self._ends[whole:]]
    return out

  def ids(self) -> np.ndarray:
    """Emitted new tokens, int32 [n], without the <eos> of a document."""
    new = [i for i in self._new[: self.num_emitted] if i != self._end]
    return np.array(new, np.int32)

  def rest(self) -> bytes:
    """Emits the text still held back, when no token follows."""
    return b'' if self.is_done else self._emit(len(self._held))


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
  """A model as configured by the section `generate`, with its weights."""

  model: base.LanguageModel
  variables: Any  # of `base.freeze`
  vocabulary: AnyVocabulary
  segment_len: int
  options: dict[str, Any]  # of `decoding.decode`

  def with_start(self, ids: np.ndarray) -> np.ndarray:
    """Prepends the start token to an empty prompt.

    If an <eos> ends documents, it is prepended to every prompt.
    """
    if len(ids) and self.vocabulary.document_end is None:
      return ids
    return np.concatenate([[self.vocabulary.start], ids]).astype(np.int32)

  def read(
    self, texts: Sequence[np.ndarray], state: decoding.State | None = None
  ) -> decoding.State:
    """The state after reading int [n] in each row; see `decoding.prefill`."""
    options: Any = dict(segment_len=self.segment_len, state=state)
    return decoding.prefill(self.model, self.variables, texts, **options)

  def decode(
    self, state: decoding.State, **overrides: Any
  ) -> Iterator[tuple[np.ndarray, decoding.State]]:
    """Calls `decoding.decode` with the options of the section."""
    options = self.options | overrides
    return decoding.decode(self.model, self.variables, state, **options)

  def make_rows(
    self,
    prompts: Sequence[np.ndarray],
    samples: int = 1,
    stops: Sequence[bytes] = (),
  ) -> list[Row]:
    """`samples` rows for each prompt, ordered by prompt."""
    each = [ids for ids in prompts for _ in range(samples)]
    return [Row(self.vocabulary, stops, ids) for ids in each]

  def stream(
    self, rows: Sequence[Row], samples: int, *, echo: bool = False
  ) -> Iterator[list[bytes]]:
    """Yields the new text of each row, chunk by chunk, until all have ended.

    With echo each text begins with its prompt.
    """
    if echo:
      yield [row.text for row in rows]
    state = self.read([self.with_start(row.prompt) for row in rows[::samples]])
    state = decoding.repeat_rows(self.model, state, samples)
    for tokens, _ in self.decode(state, keep=False):
      yield [row.push(x[x >= 0]) for row, x in zip(rows, tokens)]
      if all(row.is_done for row in rows):
        break
    yield [row.rest() for row in rows]


def make(
  config: Any,
  params: Any,
  vocabulary: AnyVocabulary,
  freeze: Callable[[base.LanguageModel, Any], Any] = base.freeze,
) -> Writer:
  """The Writer of a config; models without memory read a sliding window.

  UserError: the model does not support an option of the section.
  """
  g, V = config.generate, len(vocabulary)
  unk = vocabulary.unk_id if g.forbid_unk else None
  line_end = vocabulary.line_end if g.stop == 'line' else None
  # A token that only ends documents always ends a sample.
  ends = line_end, vocabulary.document_end
  adjustments = g.temperature, g.top_k, g.top_p, g.repetition_penalty
  options = dict(
    sampling=Sampling(*adjustments, () if unk is None else (unk,)),
    ends=tuple(x for x in ends if x is not None),
    max_new_tokens=g.max_new_tokens,
    seed=g.seed,
  )
  model = models.at_test_time(config, V, 'generate', g.window)
  if not model.remembers():
    trained = config.train.context + config.train.segment_len
    model = models.at_test_time(config, V, 'generate', trained)
  variables = freeze(model, params)
  return Writer(model, variables, vocabulary, g.segment_len, options)
