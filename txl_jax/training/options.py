"""The section `train` of a config, and the type of a whole config."""

import dataclasses
from collections.abc import Iterator

from txl_jax.data.options import Data
from txl_jax.evaluation.split_score import Eval
from txl_jax.models.config import Config as ModelConfig
from txl_jax.parallel.mesh import Sizes
from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, key, length, size
from txl_jax.training.optim import Optim
from txl_jax.training.profiling import Profile


@dataclasses.dataclass(frozen=True)
class Train:
  """The section `train`: length, batches, evaluations, checkpoints."""

  steps: int = size(
    400_000,
    'Total number of updates. A run that is continued may get more or fewer, '
    'but no fewer than it has already made (docs/runs.md).',
    may_change=settings.OTHER,
  )
  epochs: int = count(
    0,
    'Passes over the text after which training ends, unless train.steps are '
    'fewer; 0 is no limit. It may change as train.steps may.',
    at_most=1_000_000,
    may_change=settings.OTHER,
  )
  batch_size: int = size(
    22,
    'B: rows of a batch, over all devices. A run continued with another value '
    'starts with an empty memory.',
    may_change=settings.OTHER,
  )
  segment_len: int = size(512, 'T: tokens per segment.', at_most=1_000_000)
  context: int = length(
    0,
    'E: up to so many tokens before each segment are read anew with it, not '
    'scored; for models without memory. Gradients flow through them.',
  )
  accumulate: int = size(
    1,
    'Parts of a batch whose gradients are summed before one update; each part '
    'keeps its own memory, and the result is that of the whole batch.',
  )
  loss: str = key(
    'full',
    'Which tokens of a segment are scored in training.',
    choices={
      'full': 'all',
      'half': 'the last half of each row, as in the ablations of the paper; '
      'the log reports only these',
    },
  )
  varlen: bool = key(
    False,
    'Draw the segment length of each step: T with probability 0.95, else T/2, '
    "plus normal noise of standard deviation 5 (the paper's code).",
  )
  varlen_limit: int = length(
    15, 'varlen: lengths are at most this far above T; 0 is no limit.'
  )
  varlen_rate: bool = key(
    False,
    'varlen: the learning rate of a step is multiplied by its drawn length / '
    'T; the log shows the rate before that.',
  )
  rows: str = key(
    'joined',
    'The B rows that a text of n tokens is cut into.',
    choices={
      'joined': '(n - 1) // B pairs of a token and its target; the last target '
      'of a row is the first token of the next',
      'apart': 'n // B tokens, no target being of another row; a last pair '
      "that is left alone is not read (the authors' code for Penn Treebank)",
    },
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
    'What a new run starts from: the folder of another run, a file or folder '
    'of weights that `txl_jax.convert` reads, or hf://ORG/NAME; '
    "'' is fresh weights. The model and vocabulary are the ones found there "
    '(docs/runs.md).',
    remote=('gs://', 'hf://'),
  )
  log_every: int = size(100, 'Steps between two log lines.')
  eval_every: int = size(
    4000,
    'Steps between two evaluations, which use the M of training; the last step '
    'is always evaluated.',
  )
  eval_every_epochs: int = count(
    0,
    'Epochs between two evaluations, in place of train.eval_every; 0 is off.',
    at_most=1_000_000,
  )
  eval_batch_size: int = size(10, 'Streams that evaluations read at once.')
  eval_segment_len: int = length(0, 'Tokens of their segments; 0 is T.')
  eval_context: int = length(0, 'Tokens of their context; 0 is E.')
  eval_tokens: int = count(0, 'Tokens they read, from the start; 0 is all.')
  sample_tokens: int = length(
    0,
    'Tokens of a sample that is generated at each evaluation, as the section '
    '`generate` says, after generate.prompt; 0 is off.',
    may_change=ON_RESUME,
  )
  save_every: int = size(
    4000,
    'Steps between two checkpoints; a better evaluation is saved as well.',
    may_change=ON_RESUME,
  )
  async_checkpoints: bool = key(
    True,
    'Keep training while a checkpoint is written; until it is, the host holds '
    'a copy of the state.',
    may_change=ON_RESUME,
  )
  tensorboard: bool = key(
    True, 'TensorBoard events (extra tensorboard).', may_change=ON_RESUME
  )
  wandb: str = key(
    '',
    "Weights & Biases project that also gets the record; '' is none. It needs "
    "pip install 'txl_jax[wandb]', and WANDB_MODE=offline if there is no "
    'network.',
    may_change=ON_RESUME,
  )
  nonfinite: str = key(
    'stop',
    'What to do about a loss or gradient that is not finite.',
    choices={
      'stop': 'end the run',
      'rollback': 'go on from the last checkpoint, with an empty memory and '
      'the batches after this one',
    },
    may_change=ON_RESUME,
  )
  nonfinite_limit: int = size(
    5,
    'How many rollbacks may be made in the whole run. One more ends it.',
    may_change=ON_RESUME,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.batch_size % self.accumulate:
      yield 'accumulate', f'divisors of {self.batch_size}'
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
