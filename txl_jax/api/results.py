"""What calls to a `TextModel` return.

Shapes: n tokens, N layers, H heads, D width of a layer.
"""

import dataclasses
import math

import numpy as np

from txl_jax.evaluation import figures


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """Tokens of a text, and where they are in it."""

  ids: np.ndarray  # int32 [n]
  # int64 [n, 2]: start and end of each: in characters if a str was given, in
  # bytes if bytes or token ids (of the text they stand for).
  offsets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Score(Tokens):
  """Scored tokens of a text: all but the first, or all after an <eos>."""

  nll: np.ndarray  # float32 [n], -log p of each token, in nats
  total: float  # their sum, added as in --mode=eval
  # Bytes of the text they stand for, white space included; 0 if they do not.
  text_bytes: int
  # The same with logits divided by eval.temperature; None if that is 1.
  at_temperature: 'Score | None' = None

  @property
  def nats(self) -> float:
    """Mean nll per token, in nats."""
    return self.total / len(self.nll)

  @property
  def perplexity(self) -> float:
    """exp(nats), per token: what --mode=eval reports for words."""
    return figures.figures(self.nats, 'ppl')['ppl']

  @property
  def bits_per_token(self) -> float:
    """nats / ln 2: what --mode=eval reports for bytes, as bpc."""
    return figures.figures(self.nats, 'bpc')['bpc']

  @property
  def bits_per_byte(self) -> float:
    """Bits per byte of the text, white space and dropped bytes included.

    NaN of token ids, which are no text, unless their names are its parts.
    """
    if not self.text_bytes:
      return math.nan
    return self.bits_per_token * (len(self.nll) / self.text_bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class Hidden(Tokens):
  """The states of one layer, which count from 1; 0 is the embeddings."""

  states: np.ndarray  # float32 [n, D]


@dataclasses.dataclass(frozen=True, eq=False)
class Attention(Tokens):
  """Probabilities [l - 1, h - 1, i, j] that token i gives to j.

  In head h of layer l, which count from 1: layer l makes the states l.
  """

  probabilities: np.ndarray  # float32 [N, H, n, n]
