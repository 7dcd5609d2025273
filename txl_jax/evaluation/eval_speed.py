"""The cost of a token with a memory, and with a window read anew for each.

Shapes: T segment, L attention length; one row.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from txl_jax.evaluation import attention_length, perplexity, scoring
from txl_jax.models import base
from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, key, size

# How many times slower the window is, by length (Dai et al. 2019, Table 9: a
# model of Al-Rfou et al. against Transformer-XL, on one GPU).
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
_KEYS = 'eval_speed.lengths', 'eval.segment_len', 'eval_speed.lengths'


@dataclasses.dataclass(frozen=True)
class EvalSpeed:
  """The section `eval_speed`."""

  MAY_CHANGE = ON_RESUME

  lengths: tuple[int, ...] = key(tuple(PAPER), 'L: attention lengths.')
  tokens: int = size(
    4, 'Tokens that the window predicts in one measurement.', at_most=10**6
  )
  repeats: int = size(5, 'Number of measurements, of which the median counts.')

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if not settings.are_sizes(self.lengths, 10**6):
      yield 'lengths', 'one or more whole numbers from 1 to 1000000'


class Speed(NamedTuple):
  """Seconds per token."""

  memory: float  # in segments, with a memory of L
  window: float  # with a window of L

  @property
  def ratio(self) -> float:
    """How many times slower the window is."""
    return self.window / self.memory


def measure(
  model: base.LanguageModel,
  params: Any,
  length: int,
  *,
  segment_len: int,
  tokens: int,
  repeats: int,
) -> Speed:
  """The speed of a model at test time for an attention length L.

  Parameters are on one device. UserError if the model has no attention length,
  or there is too little memory for it.
  """
  ours = attention_length.with_memory(model, length)
  plain = model.at_test_time(mem_len=0, same_length='off')
  window = attention_length.at_length(plain, length)
  pairs = (ours, segment_len), (window, tokens)
  for each, T in pairs:
    text = np.zeros(T + 1, np.int32)
    perplexity.check(
      each, params, text, batch_size=1, segment_len=T, segments_per_call=1,
      keys=_KEYS,
    )  # fmt: skip
  return Speed(*(_per_token(*pair, params, repeats) for pair in pairs))


def _per_token(model, T, params, repeats):
  """Median seconds per token when T tokens are scored in one call."""
  rng = np.random.default_rng(0)
  inputs, targets = rng.integers(0, model.vocab_size, [2, 1, 1, T], np.int32)
  variables = base.freeze(model, params)
  memory, seconds = jax.jit(lambda: model.init_memory(1))(), []
  for _ in range(repeats + 1):
    begin = time.perf_counter()
    memory, nll = scoring.jit_score(
      variables, memory, inputs, targets, model=model
    )
    nll.block_until_ready()
    seconds.append(time.perf_counter() - begin)
  return statistics.median(seconds[1:]) / T  # the first one compiles
