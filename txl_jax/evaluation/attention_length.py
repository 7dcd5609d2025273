"""Quality by the number of tokens each token sees (Dai et al. 2019, Table 6).

Shapes: B streams, T segment, M memory, n tokens, L attention length.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_jax import settings
from txl_jax.errors import UserError
from txl_jax.evaluation import perplexity
from txl_jax.models import base, windowed
from txl_jax.settings import ON_RESUME, count, key

_KEYS = 'eval.batch_size', 'eval.segment_len', 'attention_length.lengths'


@dataclasses.dataclass(frozen=True)
class AttentionLength:
  """The section `attention_length`: the lengths to try."""

  MAY_CHANGE = ON_RESUME

  lengths: tuple[int, ...] = key(
    (64, 128, 256, 512),
    'L: how many tokens each token sees, itself included; the length of '
    'training is tried as well.',
  )
  tokens: int = count(
    0, 'Tokens of the split to read, from its start; 0 is all.'
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if not settings.are_sizes(self.lengths, 10**6):
      yield 'lengths', 'one or more whole numbers from 1 to 1000000'
    if self.tokens == 1:
      yield 'tokens', '0, or at least 2'


def at_length(model: base.LanguageModel, length: int) -> base.LanguageModel:
  """The model with every token seeing the last L, itself included.

  With a memory it reads segments with mem_len = L and same_length = 'M';
  without, it reads a window of L tokens anew for each token. UserError if an
  attention length does not describe what the model sees.
  """
  if not model.remembers():
    return windowed.Windowed(model.vocab_size, model.config, model, length)
  return with_memory(model, length, ', or one without memory')


def with_memory(
  model: base.LanguageModel, length: int, allowed: str = ''
) -> base.LanguageModel:
  """The model with every token seeing the last L by a memory, or UserError."""
  if 'mem_len' not in settings.keys(settings.overrides(type(model.config))):
    raise UserError(
      f'the context of {type(model).__name__} is no attention '
      f'length; allowed: a model with the key mem_len{allowed}'
    )
  return model.at_test_time(mem_len=length, same_length='M')


def sweep(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  lengths: Sequence[int],
  *,
  progress: Callable[[int, int], None] = lambda length, scored: None,
  **cut: Any,
) -> dict[int, perplexity.Score]:
  """{L: score of integers [n]} of a model at test time.

  `cut`, which includes B and T, is passed to `perplexity.score`; progress is
  called with L and the number of tokens scored so far. UserError: see
  `at_length`; or there is too little memory for a length, which is found out
  before the first is scored.
  """
  at = {length: at_length(model, length) for length in sorted(set(lengths))}
  for changed in at.values():
    perplexity.check(changed, params, tokens, **cut, keys=_KEYS)
  found = {}
  for length, changed in at.items():

    def told(scored, length=length):
      progress(length, scored)

    found[length] = perplexity.score(
      changed, params, tokens, **cut, progress=told
    )
  return found
