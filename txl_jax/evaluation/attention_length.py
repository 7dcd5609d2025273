"""Quality by the number of tokens each token sees (Dai et al. 2019, Table 6).

What the paper calls attention length, and why, is in docs/evaluation.md.

Shapes: B streams, T segment, M memory, n tokens, L attention length.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_jax.evaluation import perplexity
from txl_jax.models import base, windowed
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.program.settings import ON_RESUME, count, key

_KEYS = 'eval.batch_size', 'eval.segment_len', 'attention_length.lengths'


@dataclasses.dataclass(frozen=True)
class AttentionLength:
  """The section `attention_length`: the lengths to try."""

  MAY_CHANGE = ON_RESUME

  lengths: tuple[int, ...] = key(
    (64, 128, 256, 512),
    'L: how many tokens each token sees, itself included; that of training, '
    'model.mem_len, or train.segment_len without memory, is tried as well.',
  )
  threshold: float = count(
    0.001,
    'The effective length is the shortest one tried after which the next one '
    'improves the figure by a smaller share than this.',
    at_most=1,
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

  With a memory it reads segments, see `with_memory`; without, it reads a window
  of L tokens anew for each token. UserError if an attention length does not
  describe what the model sees.
  """
  if not model.remembers():
    return windowed.Windowed(model.vocab_size, model.config, model, length)
  return with_memory(model, length, ', or one without memory')


def with_memory(
  model: base.LanguageModel, length: int, allowed: str = ''
) -> base.LanguageModel:
  """The model with every token seeing the last L by a memory, or UserError.

  That is mem_len = L and same_length = 'M'. A model that has no same_length has
  only the memory, and a token sees its own segment, up to itself, besides.
  """
  allows = settings.keys(settings.overrides(type(model.config)))
  if 'mem_len' not in allows:
    raise UserError(
      f'the context of {type(model).__name__} is no attention '
      f'length; allowed: a model with the key mem_len{allowed}'
    )
  same: Any = {'same_length': 'M'} if 'same_length' in allows else {}
  return model.at_test_time(mem_len=length, **same)


def effective(figures: Sequence[float], threshold: float) -> int:
  """The index of the first figure after which another adds little.

  The figures, the lower the better, are those of longer and longer lengths;
  little is an improvement of the next one by a smaller share than the
  threshold. The last index if there is none.
  """
  steps = enumerate(itertools.pairwise(figures))
  small = (k for k, (now, then) in steps if now - then < threshold * now)
  return next(small, len(figures) - 1)


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
