"""What a model writes after prompts: drawn tokens, and the text of each row.

Shapes: B rows, n tokens.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base


class Row:
  """The text of one row, token by token, up to a stop text.

  As many bytes are held back as may be the beginning of a stop text.
  """

  def __init__(
    self, vocabulary: AnyVocabulary, stops: Sequence[bytes], prompt: Any = ()
  ):
    self._decoder, self._stops = vocabulary.decoder(), stops
    # In which stop texts have no effect.
    self.prompt, self.text = prompt, self._decoder.push(prompt)
    self._end, self._new = vocabulary.document_end, []
    self._held = b''
    self._ends = []  # end of each held token, in bytes of the held text
    self.ended = False
    self.whole = 0  # tokens whose whole text was given out
    self.part = b''  # what was given out of the next one

  def push(self, ids: Any) -> bytes:
    """What new tokens, int [n], add to the text; nothing once it has ended."""
    out = b''
    for i in ids:
      if self.ended:
        break
      self._held += self._decoder.push([i])
      self._new.append(i)
      self._ends.append(len(self._held))
      out += self._give(self._certain())
    return out

  def _certain(self):
    """How many of the held bytes certainly belong to the text."""
    held = self._held
    if found := [s for s in self._stops if s in held]:
      self.ended = True
      # Before the stop text that is complete first.
      return min((held.find(s) + len(s), held.find(s)) for s in found)[1]
    longest = max(map(len, self._stops), default=1)
    return max(len(held) - longest + 1, 0)

  def _give(self, n):
    out, self._held = self._held[:n], self._held[n:]
    whole = sum(end <= n for end in self._ends)
    self.part = out[self._ends[whole - 1] :] if whole else self.part + out
    self.whole += whole
    self._ends = [end - n for end in self._ends[whole:]]
    return out

  def ids(self) -> np.ndarray:
    """The new tokens of what was given out, int32 [n], but the last <eos>."""
    new = [i for i in self._new[: self.whole] if i != self._end]
    return np.array(new, np.int32)

  def rest(self) -> bytes:
    """The text still held back, once no token follows."""
    return b'' if self.ended else self._give(len(self._held))


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
  """A model as configured by the section `generate`, with its weights."""

  model: base.LanguageModel
  variables: Any  # of `base.freeze`
  vocabulary: AnyVocabulary
  segment_len: int
  options: dict[str, Any]  # of `decoding.decode`

  def begun(self, ids: np.ndarray) -> np.ndarray:
    """A prompt; if empty, the token after which a text begins.

    Where documents have their own end token, it is put before every prompt.
    """
    if len(ids) and self.vocabulary.document_end is None:
      return ids
    return np.concatenate([[self.vocabulary.start], ids]).astype(np.int32)

  def read(
    self, texts: Sequence[np.ndarray], state: decoding.State | None = None
  ) -> decoding.State:
    """The state after int [n] of each row; see `decoding.prefill`."""
    options: Any = dict(segment_len=self.segment_len, state=state)
    return decoding.prefill(self.model, self.variables, texts, **options)

  def decode(
    self, state: decoding.State, **more: Any
  ) -> Iterator[tuple[np.ndarray, decoding.State]]:
    """See `decoding.decode`, whose options are those of the section."""
    options = self.options | more
    return decoding.decode(self.model, self.variables, state, **options)

  def rows(
    self,
    prompts: Sequence[np.ndarray],
    samples: int = 1,
    stops: Sequence[bytes] = (),
  ) -> list[Row]:
    """Samples of each prompt, those of the first one first."""
    each = [ids for ids in prompts for _ in range(samples)]
    return [Row(self.vocabulary, stops, ids) for ids in each]

  def texts(
    self, rows: Sequence[Row], samples: int = 1, *, echo: bool = False
  ) -> Iterator[list[bytes]]:
    """Yields what each row adds to its text, until all have ended.

    With echo each begins with its prompt.
    """
    if echo:
      yield [row.text for row in rows]
    state = self.read([self.begun(row.prompt) for row in rows[::samples]])
    state = decoding.repeat_rows(self.model, state, samples)
    for tokens, _ in self.decode(state, keep=False):
      yield [row.push(x[x >= 0]) for row, x in zip(rows, tokens)]
      if all(row.ended for row in rows):
        break
    yield [row.rest() for row in rows]


def make(
  config: Any,
  params: Any,
  vocabulary: AnyVocabulary,
  freeze: Callable[[base.LanguageModel, Any], Any] = base.freeze,
) -> Writer:
  """The Writer of a config; a model without a memory has a window.

  UserError: the model lacks what the section asks for.
  """
  g, own = config.generate, (config, len(vocabulary), 'generate')
  unk = vocabulary.unk_id if g.forbid_unk else None
  line_end = vocabulary.line_end if g.stop == 'line' else None
  # A token that only ends documents always ends a sample.
  ends = line_end, vocabulary.document_end
  drawn = g.temperature, g.top_k, g.top_p, g.repetition_penalty
  options = dict(
    sampling=Sampling(*drawn, () if unk is None else (unk,)),
    ends=tuple(x for x in ends if x is not None),
    max_new_tokens=g.max_new_tokens,
    seed=g.seed,
  )
  model = models.at_test_time(*own, g.window)
  if not model.remembers():
    trained = config.train.context + config.train.segment_len
    model = models.at_test_time(*own, trained)
  variables = freeze(model, params)
  return Writer(model, variables, vocabulary, g.segment_len, options)
