"""A window that moves by one token, compared with segments of its length.

A model without memory that reads disjoint segments has little context at their
beginning: context fragmentation (Dai et al. 2019, Section 3.1). With a window
every token is predicted from the W before it (Al-Rfou et al. 2018), at W times
the cost.

Shapes: B streams, n tokens, W window.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from txl_jax.evaluation import perplexity
from txl_jax.models import base, windowed
from txl_jax.program.settings import ON_RESUME, count

_KEYS = 'eval.batch_size', 'sliding_window.window', 'sliding_window.window'


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
  """The section `sliding_window`."""

  MAY_CHANGE = ON_RESUME

  window: int = count(
    0,
    'W: length of the window and of the segments; 0 is train.segment_len.',
    at_most=10**6,
  )
  tokens: int = count(
    0, 'Tokens of the split to read, from its start; 0 is all.'
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.tokens == 1:
      yield 'tokens', '0, or at least 2'


class Row(NamedTuple):
  """Mean nll, in nats, of the tokens at some positions in their segment."""

  first: int  # position, from 1: a token there sees that many tokens
  last: int
  tokens: int
  segments: float  # read in segments
  window: float  # the same tokens, read by the window


def compare(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  window: int,
  **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
  """Nll of each token but the first, float32 [n - 1]: by segments, by window.

  The model, at test time, has no memory; the options, which include B, are for
  `perplexity.score`. UserError if there is too little memory for the window.
  """
  slow = windowed.Windowed(model.vocab_size, model.config, model, window)
  check = {k: x for k, x in options.items() if k != 'progress'}
  check |= {'segment_len': window, 'keys': _KEYS}
  for each in (model, slow):
    perplexity.check(each, params, tokens, **check)
  read = perplexity.of_each
  own = options | {'segment_len': window}
  return read(model, params, tokens, **own), read(slow, params, tokens, **own)


def positions(n: int, batch_size: int, window: int) -> np.ndarray:
  """int64 [n]: the position, from 1 to W, of each token in its segment.

  The n scored tokens are cut into B streams as `perplexity.score` does.
  """
  stream = -(-n // batch_size)
  return np.arange(n) % stream % window + 1


def by_position(
  segments: np.ndarray, window: np.ndarray, position: np.ndarray
) -> list[Row]:
  """Rows of positions 1, 2, 3-4, 5-8, ... from arrays [n] of tokens."""
  rows, first, last = [], 1, 1
  while first <= position.max():
    there = (first <= position) & (position <= last)
    means = (float(x[there].mean(dtype=np.float64)) for x in (segments, window))
    end = min(last, int(position.max()))
    rows.append(Row(first, end, int(there.sum()), *means))
    first, last = last + 1, 2 * last
  return rows
