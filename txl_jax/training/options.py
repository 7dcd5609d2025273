"""The section `train` of a config, and what training reads of a config."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

from txl_jax.evaluation.options import Eval
from txl_jax.parallel.mesh import Sizes
from txl_jax.settings import NOTED, ON_RESUME, count, file_path, key, size
from txl_jax.training.optim import Optim
from txl_jax.training.profiling import Profile

_PERIODS = 'steps', 'log_every', 'eval_every', 'save_every', 'sample_every'


@dataclasses.dataclass(frozen=True)
class Train:
  """How long, in what steps, and what is done between them."""

  steps: int = size(
    400_000,
    'Updates of the whole training. A run that continues may be given more, or '
    'fewer, but not below those it has made (docs/runs.md).',
    may_change=NOTED,
  )
  batch_size: int = size(
    22,
    'B: rows of a batch, over all devices. A run that continues with another '
    'one starts with an empty memory.',
    may_change=NOTED,
  )
  segment_len: int = size(512, 'T: tokens of a segment.')
  accumulate: int = size(
    1,
    'Parts of a batch whose gradients are summed before one update; each part '
    'keeps its own memory, the result is that of the whole batch.',
  )
  steps_per_dispatch: int = size(
    1,
    'Steps that one call of the devices makes, for steps so short that calls '
    'take time. steps, log_every, eval_every, save_every, sample_every and the '
    'steps of a trace are multiples of it. XLA may add in another order: '
    'figures agree to 1e-5.',
  )
  loss: str = key(
    'full',
    'Which tokens of a segment training scores.',
    choices={
      'full': 'all',
      'half': 'the last half of each row, as in the ablations of the paper; '
      'the figures of the log are of these',
    },
  )
  varlen: bool = key(
    False,
    'Segment lengths are drawn per step: T with probability 0.95, else T/2, '
    "plus normal noise of deviation 5 (paper's code).",
  )
  resume: str = key(
    'auto',
    'What to do with a run in the workdir.',
    choices={
      'auto': 'continue it, or start one',
      'must': 'continue it, or fail',
      'never': 'fail if there are checkpoints, and begin at step 0 where they '
      'are gone: the record is kept beside',
    },
    may_change=ON_RESUME,
  )
  init_from: str = file_path(
    '',
    'What a new run begins with: the folder of another run, also one of '
    "converted weights, or a file of `--mode=export`; '' is fresh weights. "
    'The model and vocabulary are those of there (docs/runs.md).',
    remote='gs://',
  )
  init_optimiser: bool = key(
    False, 'Take the state of the optimiser from there, too, not a fresh one.'
  )
  log_every: int = size(100, 'Steps between two lines of the log.')
  eval_every: int = size(
    4000,
    'Steps between two evaluations; the last step is always evaluated. They '
    'have the T and M of training.',
  )
  eval_batch_size: int = size(10, 'Streams that evaluations read at once.')
  eval_tokens: int = count(0, 'Tokens they read, from the start; 0 is all.')
  save_every: int = size(
    4000,
    'Steps between two checkpoints; a better evaluation is saved besides.',
    may_change=ON_RESUME,
  )
  async_checkpoints: bool = key(
    True,
    'Train on while a checkpoint is written; until it is, the host holds a '
    'copy of the state.',
    may_change=ON_RESUME,
  )
  compilation_cache: str = file_path(
    '',
    'Folder of programs that were compiled before, for a quicker start on the '
    "same devices and jax; '' is none but JAX_COMPILATION_CACHE_DIR. It may be "
    'gs://BUCKET/NAME.',
    may_change=ON_RESUME,
    remote='gs://',
  )
  tensorboard: bool = key(
    True, 'Write TensorBoard events into the workdir.', may_change=ON_RESUME
  )
  sample_every: int = count(
    0,
    'Steps between two samples of what the model writes, as the section '
    '`generate` says, after its first prompt; 0 is off.',
    may_change=ON_RESUME,
  )
  sample_tokens: int = size(
    100, 'Tokens of a sample at most.', at_most=10_000, may_change=ON_RESUME
  )
  wandb: str = key(
    '',
    "Project at Weights & Biases that gets the record as well; '' is none. "
    "It needs pip install 'txl_jax[wandb]', and WANDB_MODE=offline where "
    'there is no network.',
    may_change=ON_RESUME,
  )
  nonfinite: str = key(
    'stop',
    'What follows a loss or gradient that is not finite.',
    choices={
      'stop': 'the run ends',
      'skip': 'the update is left out',
      'rollback': 'the run goes on from the last checkpoint with an empty '
      'memory and the batches after this one',
    },
    may_change=ON_RESUME,
  )
  nonfinite_limit: int = size(
    5,
    'skip: updates left out between two lines of the log; rollback: times in '
    'the whole run. One more, and the run ends.',
    may_change=ON_RESUME,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.batch_size % self.accumulate:
      yield 'accumulate', f'divisors of {self.batch_size}'
    K = self.steps_per_dispatch
    for name in _PERIODS:
      if getattr(self, name) % K:
        yield name, f'multiples of train.steps_per_dispatch, {K}'
    if self.nonfinite == 'skip' and self.nonfinite_limit >= self.log_every:
      yield 'nonfinite_limit', 'less than train.log_every'
    if self.eval_tokens == 1:
      yield 'eval_tokens', '0, or at least 2'
    if self.init_optimiser and not self.init_from:
      yield 'init_optimiser', "False where train.init_from is ''"


class Config(Protocol):
  """A config, checked, as the code reads it; in truth it is a ConfigDict."""

  seed: int
  data: Any
  model: Any
  mesh: Sizes
  train: Train
  optim: Optim
  profile: Profile
  eval: Eval
