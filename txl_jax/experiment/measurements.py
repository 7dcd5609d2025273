"""Sections of a config, each for the mode of the same name."""

import dataclasses
from collections.abc import Iterator

from txl_jax.program.settings import ON_RESUME, count, key, length, size

# Slowdown of the sliding window by length (Dai et al. 2019, Table 9: the model
# of Al-Rfou et al. against Transformer-XL, on one GPU).
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def _check_lengths(lengths: tuple) -> Iterator[tuple[str, str]]:
  whole = all(type(x) is int and 0 < x <= 10**6 for x in lengths)
  if not whole or not lengths:
    yield 'lengths', 'one or more whole numbers from 1 to 1000000'


@dataclasses.dataclass(frozen=True)
class AttentionLength:
  """The section `attention_length`."""

  MAY_CHANGE = ON_RESUME

  lengths: tuple[int, ...] = key(
    (64, 128, 256, 512),
    'L: attention lengths to measure, in tokens, the current one included. The '
    'training length is added: model.mem_len or, without memory, train.context '
    '+ train.segment_len.',
  )
  tokens: int = count(
    20_000, 'Tokens of the split to read, from its start; 0 is all.'
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    return _check_lengths(self.lengths)


@dataclasses.dataclass(frozen=True)
class Recl:
  """The section `recl`."""

  MAY_CHANGE = ON_RESUME

  others: tuple[str, ...] = key(
    (),
    'Folders of the runs to compare with this one; they must have the same '
    'vocabulary.',
    is_path=True,
  )
  positions: int = size(
    2000,
    'P: number of tokens to score, spread evenly over the split; use at least '
    'the default for a result to publish.',
  )
  step: int = size(
    100, 'Step between context lengths, in tokens; also the shortest one.'
  )
  longest: int = key(
    1000, 'Longest context, in tokens.', at_least=2, at_most=10**6
  )
  shares: tuple[float, ...] = key(
    (0.1, 0.5, 1.0), 'r: fractions of the positions to use, hardest first.'
  )
  batch_size: int = size(16, 'B: contexts read at once.')
  resamples: int = count(
    1000,
    'Number of bootstrap resamples of the positions, for the interval of each '
    'result; 0 for none.',
    at_most=10**5,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if not all(type(x) is str and x and '\0' not in x for x in self.others):
      yield 'others', 'folders'
    if self.longest < 2 * self.step:
      yield 'step', f'at most half of recl.longest, {self.longest // 2}'
    within = [type(x) in (int, float) and 0 < x <= 1 for x in self.shares]
    if not within or not all(within):
      yield 'shares', 'one or more numbers above 0, at most 1'


@dataclasses.dataclass(frozen=True)
class EvalSpeed:
  """The section `eval_speed`."""

  MAY_CHANGE = ON_RESUME

  lengths: tuple[int, ...] = key(tuple(PAPER), 'L: attention lengths.')
  tokens: int = size(
    4, 'Tokens predicted with the window per measurement.', at_most=10**6
  )
  repeats: int = size(5, 'Number of measurements; the median is reported.')
  window: str = key(
    'same',
    'Which model is timed with the sliding window.',
    choices={
      'same': 'the model of the run, without its memory',
      'al_rfou': 'the model of Al-Rfou et al. (2018), as in Table 9, of the '
      'same sizes and with initial weights',
    },
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    return _check_lengths(self.lengths)


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
  """The section `attention_maps`."""

  MAY_CHANGE = ON_RESUME

  start: int = count(
    0, 'Where the text begins in the split, or later if the memory is not full.'
  )
  tokens: int = size(4096, 'Tokens whose attention is averaged.')
  passage: int = size(
    20,
    'How many of the first tokens are also shown individually.',
    at_most=1000,
  )
  context: int = length(
    1024,
    'Tokens to read before the text, in whole segments; at least a memory.',
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    if self.passage > self.tokens:
      yield 'passage', f'at most attention_maps.tokens, {self.tokens}'
