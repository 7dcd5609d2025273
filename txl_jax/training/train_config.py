"""The section `train` of a config, and the type of a whole config."""

import dataclasses
from collections.abc import Iterator

from txl_jax.data.data_config import Data
from txl_jax.evaluation.scoring import Eval
from txl_jax.models.config import Config as ModelConfig
from txl_jax.parallel.mesh import Sizes
from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, key, length, size
from txl_jax.training.optim import Optim
from txl_jax.training.profiling import Profile


@dataclasses.dataclass(frozen=True)
class Train:
  """The section `train`: length, batches, evaluations, checkpoints."""

  MAY_CHANGE = settings.OTHER

  steps: int = size(
    400_000,
    'Total number of updates. It may change when a run is continued, but not '
    'below the number already made (docs/runs.md).',
  )
  epochs: int = count(
    0,
    'Training ends after this many passes over the text, or after train.steps '
    'if that is earlier; 0 is no limit. It may change, like train.steps.',
    at_most=1_000_000,
  )
  batch_size: int = size(
    22,
    'B: rows of a batch, over all devices. The memory starts empty when a run '
    'is continued with another value.',
  )
  segment_len: int = size(
    512, 'T: tokens per segment.', at_most=1_000_000, may_change=settings.NEVER
  )
  context: int = length(
    0,
    'E: up to this many preceding tokens are prepended to each segment, '
    'unscored; for models without memory. Gradients flow through them.',
    may_change=settings.NEVER,
  )
  accumulate: int = size(
    1,
    'Microbatches of a batch, whose gradients are summed before one update; '
    'each keeps its own memory, and the result is that of the whole batch.',
  )
  loss: str = key(
    'full',
    'Which tokens of a segment are scored in training.',
    choices={
      'full': 'all',
      'half': 'the last half of each row, as in the ablations of the paper; '
      'the log covers only these',
    },
  )
  varlen: bool = key(
    False,
    'Draw the segment length of each step: T with probability 0.95, else T/2, '
    "plus normal noise of standard deviation 5 (the paper's code).",
    may_change=settings.NEVER,
  )
  varlen_limit: int = length(
    15, 'varlen: maximum length minus T; 0 means 30.', may_change=settings.NEVER
  )
  varlen_rate: bool = key(
    False,
    'varlen: multiply the learning rate of a step by its drawn length / T; the '
    'log shows the rate without that factor.',
  )
  rows: str = key(
    'joined',
    'How a text of n tokens is cut into B rows.',
    choices={
      'joined': '(n - 1) // B pairs of a token and its target; the last target '
      'of a row is the first token of the next',
      'apart': 'n // B tokens, so no target comes from another row; a final '
      "segment of one pair is skipped (the authors' code for Penn Treebank)",
    },
    may_change=settings.NEVER,
  )
  resume: str = key(
    'auto',
    'Whether to continue the run in the workdir.',
    choices={
      'auto': 'yes, or start one if there is none',
      'must': 'yes, or fail if there is none',
      'never': 'fail if there are checkpoints',
    },
    may_change=ON_RESUME,
  )
  init_from: str = settings.file_path(
    '',
    'Initial weights of a new run: the folder of another run, a file or folder '
    "that `txl_jax.convert` reads, or hf://ORG/NAME; '' is fresh weights. The "
    'model and vocabulary are taken from there too (docs/runs.md).',
    remote=('gs://', 'hf://'),
    may_change=settings.NEVER,
  )
  log_every: int = size(100, 'Steps between log lines.')
  eval_every: int = size(
    4000,
    'Steps between evaluations, run with the training memory length; the last '
    'step is always evaluated.',
  )
  eval_every_epochs: int = count(
    0,
    'Epochs between evaluations, in place of train.eval_every; 0 is off.',
    at_most=1_000_000,
  )
  patience: int = count(
    0,
    'Training ends after this many evaluations in a row without a new best; 0 '
    'is off.',
  )
  eval_batch_size: int = size(10, 'Batch size of evaluations during training.')
  eval_segment_len: int = length(0, 'Segment length of evaluations; 0 is T.')
  eval_context: int = length(0, 'Context of evaluations, in tokens; 0 is E.')
  eval_tokens: int = count(0, 'Tokens to evaluate, from the start; 0 is all.')
  sample_tokens: int = length(
    0,
    'Tokens of the sample generated at each evaluation with the settings of '
    '`generate`, after generate.prompt; 0 is off.',
    may_change=ON_RESUME,
  )
  save_every: int = size(
    4000,
    'Steps between checkpoints; a new best evaluation is saved as well.',
    may_change=ON_RESUME,
  )
  async_checkpoints: bool = key(
    True,
    'Keep training while a checkpoint is written; meanwhile the host holds a '
    'copy of the state.',
    may_change=ON_RESUME,
  )
  tensorboard: bool = key(
    True, 'Write TensorBoard events (extra tensorboard).', may_change=ON_RESUME
  )
  wandb: str = key(
    '',
    "Weights & Biases project to log to as well; '' for none. Requires pip "
    "install 'txl_jax[wandb]', and WANDB_MODE=offline without a network.",
    may_change=ON_RESUME,
  )
  nonfinite: str = key(
    'stop',
    'Response to a loss or gradient that is not finite.',
    choices={
      'stop': 'end the run',
      'rollback': 'continue from the last checkpoint with empty memory, '
      'skipping all batches up to and including the bad one; the number of '
      'steps stays, so an epoch ends as many steps earlier',
    },
    may_change=ON_RESUME,
  )
  nonfinite_limit: int = size(
    5,
    'Maximum number of rollbacks in the whole run; one more ends it.',
    may_change=ON_RESUME,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if self.batch_size % self.accumulate:
      yield 'accumulate', f'divisors of {self.batch_size}'
    # Of `state.Sums.add`; XLA's own is twice as high.
    if self.batch_size * self.segment_len >= (limit := 1 << 30):
      yield 'batch_size', f'below {limit:,} / train.segment_len'
    if self.eval_tokens == 1:
      yield 'eval_tokens', '0, or at least 2'
    if self.varlen_rate and not self.varlen:
      yield 'varlen_rate', 'False without train.varlen'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The keys and sections of a config that training reads."""

  seed: int = count(
    0,
    'Seed of initialisation, dropout, variable lengths and sentence order.',
    at_most=2**32 - 1,
  )
  data: Data = dataclasses.field(default_factory=Data)
  model: ModelConfig
  mesh: Sizes = dataclasses.field(default_factory=Sizes)
  train: Train = dataclasses.field(default_factory=Train)
  optim: Optim = dataclasses.field(default_factory=Optim)
  profile: Profile = dataclasses.field(default_factory=Profile)
  eval: Eval = dataclasses.field(default_factory=Eval)
