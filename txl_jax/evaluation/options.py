"""The section `eval` of a config, for --mode=eval."""

import dataclasses

from txl_jax.data.options import SPLITS
from txl_jax.settings import ON_RESUME, key


@dataclasses.dataclass(frozen=True)
class Eval:
  """What is scored, and how; `eval.model` has the lengths of the model."""

  split: str = key(
    'validation', 'What is scored.', choices=SPLITS, may_change=ON_RESUME
  )
  batch_size: int = key(
    1,
    'Streams that the split is cut into; 1 is exact.',
    at_least=1,
    may_change=ON_RESUME,
  )
  segment_len: int = key(
    512, 'T: tokens of a segment.', at_least=1, may_change=ON_RESUME
  )
  window: int = key(
    0,
    'W: every token is predicted from the W tokens before it and nothing '
    'else, by a window that moves one token at a time: slow; for models '
    'without memory. 0 scores segments.',
    at_least=0,
    may_change=ON_RESUME,
  )
  first_token: str = key(
    'none',
    'Which tokens are scored.',
    choices={
      'none': 'all but the first',
      'eos': 'all, the first one after an <eos> put before it: for words, but '
      'not for lm1b, which begins with <S>',
    },
    may_change=ON_RESUME,
  )
  segments_per_call: int = key(
    16,
    'Segments that one call of the devices scores.',
    at_least=1,
    may_change=ON_RESUME,
  )
  nll_file: str = key(
    '',
    'A .npy file for the nll of each scored token.',
    may_change=ON_RESUME,
  )
