"""The section `generate` of a config, for --mode=generate."""

import dataclasses
from collections.abc import Iterator

from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, key, length, size

LOWEST_TEMPERATURE = 1e-6  # lower ones overflow float32 logits


@dataclasses.dataclass(frozen=True)
class Generate:
  """The section `generate`; `generate.model` has the lengths of the model."""

  MAY_CHANGE = ON_RESUME

  prompt: str = key('', 'The text to continue.')
  prompt_file: str = settings.file_path(
    '', 'File to read the prompt from instead; - is standard input.'
  )
  prompt_tokens: int = count(
    0,
    'Continue this many tokens of eval.split instead of a prompt, and print '
    'what follows them there as well; the paper has at most 512. 0 is off.',
  )
  prompt_start: int = count(0, 'Where these tokens begin in the split.')
  max_new_tokens: int = count(400, 'Maximum number of tokens in a sample.')
  stop: str = key(
    'none',
    'What ends a sample earlier.',
    choices={
      'none': 'only the <eos> of a document',
      'line': 'the end of a line: the word <eos>, or a newline for bytes',
    },
  )
  temperature: float = count(
    1.0, 'Divides the logits; 0 always takes the most probable token.'
  )
  top_k: int = count(0, 'Sample from the k most probable tokens; 0 is off.')
  top_p: float = key(
    1.0,
    'Sample from the fewest tokens that together have this probability.',
    above=0,
    at_most=1,
  )
  repetition_penalty: float = key(
    1.0,
    'Above 1, tokens already seen become rarer: logits above 0 are divided by '
    'it, others multiplied; with an adaptive softmax these are '
    'log-probabilities.',
    at_least=0.01,
  )
  forbid_unk: bool = key(False, 'With words, never write <unk>.')
  seed: int = count(0, 'The same seed gives the same text.', at_most=2**32 - 1)
  samples: int = size(1, 'Samples per prompt.', at_most=1_000_000)
  segment_len: int = size(
    128, 'The prompt is read in pieces of this many tokens.', at_most=1_000_000
  )
  window: int = length(
    0,
    'W: a model without memory sees the last W tokens; 0 is the context and '
    'the segment of training.',
  )
  model: settings.Overrides = dataclasses.field(
    default_factory=settings.Overrides
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.prompt and self.prompt_file:
      yield 'prompt_file', 'nothing while generate.prompt is given'
    if self.prompt_tokens and (self.prompt or self.prompt_file):
      yield 'prompt_tokens', '0 while there is another prompt'
    if 0 < self.temperature < LOWEST_TEMPERATURE:
      yield 'temperature', f'0, or at least {LOWEST_TEMPERATURE}'
