"""The section `generate` of a config, for --mode=generate."""

import dataclasses

from txl_jax.settings import ON_RESUME, key

LOWEST_TEMPERATURE = 1e-6  # below, the quotient leaves the range of float32


@dataclasses.dataclass(frozen=True)
class Generate:
  """What is written; `generate.model` has the lengths of the model."""

  prompt: str = key('', 'The text to continue.', may_change=ON_RESUME)
  prompt_file: str = key(
    '', 'A file instead of it; - is standard input.', may_change=ON_RESUME
  )
  max_new_tokens: int = key(
    400, 'Tokens of a sample at most.', at_least=0, may_change=ON_RESUME
  )
  stop: str = key(
    'none',
    'What ends a sample before that.',
    choices={
      'none': 'nothing',
      'line': 'the end of a line: the word <eos>, or for bytes a newline',
    },
    may_change=ON_RESUME,
  )
  temperature: float = key(
    1.0,
    'Divides the logits; 0 takes the most probable token.',
    at_least=0,
    may_change=ON_RESUME,
  )
  top_k: int = key(
    0,
    'Sample among the k most probable tokens; 0 is off.',
    at_least=0,
    may_change=ON_RESUME,
  )
  top_p: float = key(
    1.0,
    'Sample among the fewest tokens that hold this probability.',
    above=0,
    at_most=1,
    may_change=ON_RESUME,
  )
  repetition_penalty: float = key(
    1.0,
    'Above 1, tokens already seen become rarer: it divides logits above 0 and '
    'multiplies others; with an adaptive softmax these are log-probabilities.',
    above=0,
    may_change=ON_RESUME,
  )
  forbid_unk: bool = key(
    False, 'Words: never write <unk>.', may_change=ON_RESUME
  )
  seed: int = key(
    0,
    'The same seed gives the same text.',
    at_least=0,
    at_most=2**32 - 1,
    may_change=ON_RESUME,
  )
  samples: int = key(1, 'How many.', at_least=1, may_change=ON_RESUME)
  stream: bool = key(
    True, 'Print a single sample as it is made.', may_change=ON_RESUME
  )
  segment_len: int = key(
    128,
    'The prompt is read in pieces of this length.',
    at_least=1,
    may_change=ON_RESUME,
  )
  window: int = key(
    0,
    'W: a model without memory sees the last W tokens; 0 is the segment '
    'length of training.',
    at_least=0,
    may_change=ON_RESUME,
  )

  def problems(self):
    """Keys that do not go together, see `settings`."""
    if self.prompt and self.prompt_file:
      yield 'prompt_file', 'nothing while generate.prompt is given'
    if 0 < self.temperature < LOWEST_TEMPERATURE:
      yield 'temperature', f'0, or at least {LOWEST_TEMPERATURE}'
