"""Results of calls to a `TextModel`.

Shapes: n tokens, N layers, H heads, D width of a layer, K most likely tokens.
"""

import dataclasses
import math

import numpy as np

from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.evaluation import units


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """Tokens of a text and their positions in it."""

  ids: np.ndarray  # int32 [n]
  # int64 [n, 2]: start and end of each token, in characters of a str, or in
  # bytes of a bytes object or of the text decoded from token ids.
  offsets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Score(Tokens):
  """The nll of each token; the first token is scored only after an <eos>."""

  nll: np.ndarray  # float32 [n], -log p of each token, in nats
  total: float  # sum of nll, computed as in --mode=eval
  # Bytes of the scored text, white space included; 0 for ids with spaces.
  text_bytes: int
  # With logits divided by eval.temperature; None if it is 1.
  at_temperature: 'Score | None'
  # The K most likely tokens at the place of each token, in descending order,
  # and their log-probabilities: int32 and float32 [n, K], K = 0 by default.
  top_ids: np.ndarray
  top_logprobs: np.ndarray
  unscored: np.ndarray  # int32 [0 or 1], the token of the text before `ids`
  vocabulary: AnyVocabulary

  def __repr__(self) -> str:
    n = len(self.nll)
    bits = f'{self.bits_per_token:.5f} bits per token'
    return f'Score({n:,} tokens, {bits}, perplexity {self.perplexity:.5f})'

  def _repr_html_(self) -> str:
    """The text, up to 10,000 tokens, coloured by the nll."""
    from txl_jax.experiment import score_page

    return score_page.part(self, repr(self), 10_000)

  @property
  def nats(self) -> float:
    """Mean nll per token, in nats."""
    return self.total / len(self.nll)

  @property
  def perplexity(self) -> float:
    """exp(nats): the ppl of --mode=eval."""
    return units.to_units(self.nats, 'ppl')['ppl']

  @property
  def bits_per_token(self) -> float:
    """nats / ln 2: the bpc of --mode=eval, for bytes."""
    return units.to_units(self.nats, 'bpc')['bpc']

  @property
  def bits_per_byte(self) -> float:
    """Bits per byte of the text, white space and dropped bytes included.

    NaN for a vocabulary of ids separated by spaces.
    """
    if not self.text_bytes:
      return math.nan
    return self.bits_per_token * (len(self.nll) / self.text_bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class Hidden(Tokens):
  """Output of one layer, counted from 1; layer 0 is the embeddings."""

  states: np.ndarray  # float32 [n, D]


@dataclasses.dataclass(frozen=True, eq=False)
class Attention(Tokens):
  """Attention probabilities of all layers and heads."""

  # float32 [N, H, n, n]: [l - 1, h - 1, i, j] is the probability with which
  # token i attends to token j in head h of layer l, both counted from 1.
  probabilities: np.ndarray
