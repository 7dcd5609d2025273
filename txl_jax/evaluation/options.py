"""The section `eval` of a config, for --mode=eval."""

import dataclasses

from txl_jax.data.options import SPLITS
from txl_jax.program.settings import ON_RESUME, count, file_path, key, size


@dataclasses.dataclass(frozen=True)
class Eval:
  """What is scored, and how; `eval.model` has the lengths of the model."""

  MAY_CHANGE = ON_RESUME

  split: str = key('validation', 'Which split is scored.', choices=SPLITS)
  batch_size: int = size(
    1, 'Number of streams the split is cut into; 1 is exact.'
  )
  segment_len: int = size(512, 'T: tokens per segment.')
  window: int = count(
    0,
    'W: predict each token from the W tokens before it and nothing else, with '
    'a window that moves one token at a time: slow; for models without memory. '
    '0 scores segments.',
  )
  first_token: str = key(
    'none',
    'Which tokens are scored.',
    choices={
      'none': 'all but the first',
      'eos': 'all, with an <eos> put before the first: for words, but not for '
      'lm1b, which begins with <S>',
    },
  )
  segments_per_call: int = size(16, 'Segments scored per call to the devices.')
  nll_file: str = file_path(
    '', '.npy file to write the nll of each scored token to.'
  )
