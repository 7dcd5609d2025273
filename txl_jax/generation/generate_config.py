"""The section `generate` of a config, for --mode=generate."""

import dataclasses
from collections.abc import Iterator

from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, key, length, size

LOWEST_TEMPERATURE = 1e-6  # lower ones overflow float32 logits


@dataclasses.dataclass(frozen=True)
class Generate:
  """The section `generate`; `generate.model` overrides keys of the model."""

  MAY_CHANGE = ON_RESUME

  prompt: str = key('', 'The text to continue.')
  prompt_file: str = settings.file_path(
    '', 'File to read the prompt from instead; - is standard input.'
  )
  prompt_tokens: int = count(
    0,
    'Use this many tokens of eval.split as the prompt, and also print the true '
    'continuation; the paper uses up to 512. 0 is off.',
  )
  prompt_start: int = count(
    0, 'Index of the first of the prompt_tokens in eval.split.'
  )
  echo: bool = key(True, 'Print the prompt before its continuation.')
  max_new_tokens: int = count(400, 'Maximum number of tokens in a sample.')
  stop: str = key(
    'none',
    'What ends a sample before max_new_tokens.',
    choices={
      'none': 'only the <eos> of a document',
      'line': 'the end of a line: the word <eos>, or else a newline',
    },
  )
  temperature: float = count(
    1.0, 'Divides the logits; 0 always takes the most probable token.'
  )
  top_k: int = count(0, 'Sample from the k most probable tokens; 0 is off.')
  top_p: float = key(
    1.0,
    'Sample from the smallest set of tokens with this total probability.',
    above=0,
    at_most=1,
  )
  repetition_penalty: float = key(
    1.0,
    'Above 1, tokens that have occurred become less likely: their positive '
    'logits are divided by it, negative ones multiplied; with an adaptive '
    'softmax, log-probabilities are multiplied.',
    at_least=0.01,
  )
  forbid_unk: bool = key(False, 'Word-level models: never generate <unk>.')
  seed: int = count(0, 'The same seed gives the same text.', at_most=2**32 - 1)
  samples: int = size(1, 'Samples per prompt.', at_most=1_000_000)
  segment_len: int = size(
    128, 'The prompt is read in pieces of this many tokens.', at_most=1_000_000
  )
  window: int = length(
    0,
    'W: a model without memory sees the last W tokens; 0 means train.context + '
    'train.segment_len.',
  )
  model: settings.Overrides = dataclasses.field(
    default_factory=settings.Overrides
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if self.prompt and self.prompt_file:
      yield 'prompt_file', "'' with generate.prompt"
    if self.prompt_tokens and (self.prompt or self.prompt_file):
      yield 'prompt_tokens', '0 with generate.prompt or generate.prompt_file'
    if 0 < self.temperature < LOWEST_TEMPERATURE:
      yield 'temperature', f'0, or at least {LOWEST_TEMPERATURE}'
