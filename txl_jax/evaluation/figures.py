"""A mean nll in the unit that people quote."""

import math

import numpy as np

NAMES = {'bpc': 'bits per character', 'ppl': 'perplexity'}  # of units
BPB = 'bpb'  # bits per byte, in records
_BLOCK = 1 << 22  # tokens that are looked up at once


def figures(nats: float, unit: str) -> dict[str, float]:
  """{'nats': nats, unit: figure} of a mean nll in nats, per token.

  The unit is 'bpc', nats / ln 2, for tokens that are characters; or 'ppl',
  exp(nats), for words.
  """
  if unit == 'bpc':
    return {'nats': nats, 'bpc': nats / math.log(2)}
  return {'nats': nats, 'ppl': math.exp(min(nats, 700.0))}


def bits_per_byte(
  nll: float, tokens: np.ndarray, sizes: np.ndarray | None
) -> dict[str, float]:
  """{BPB: bits} of an nll summed over tokens, for the bytes of their text.

  Tokens are integers [n], all of which were scored, of so many bytes each [V].
  {} without sizes, or without bytes.
  """
  if sizes is None:
    return {}
  blocks = range(0, len(tokens), _BLOCK)
  count = sum(int(sizes[tokens[at : at + _BLOCK]].sum()) for at in blocks)
  return {BPB: nll / math.log(2) / count} if count else {}


def told(bits: dict[str, float]) -> str:
  """What `bits_per_byte` gives in the middle of a line; '' without."""
  return ''.join(f'{x:.5f} bits per byte, ' for x in bits.values())
