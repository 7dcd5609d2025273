"""A mean nll in the units that are usually quoted."""

import math

import numpy as np

NAMES = {'bpc': 'bits per character', 'ppl': 'perplexity'}  # of units
BPB = 'bpb'  # bits per byte, in records


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
  """{BPB: bits per byte of text} of an nll summed over tokens.

  Tokens are integers [n], all of which were scored; sizes [V] are the bytes of
  each token id. {} without sizes, or without bytes.
  """
  if sizes is None:
    return {}
  count = int(np.bincount(tokens, minlength=len(sizes)) @ sizes)
  return {BPB: nll / math.log(2) / count} if count else {}


def told(bits: dict[str, float]) -> str:
  """The result of `bits_per_byte` as part of a line; '' if it is empty."""
  return ''.join(f'{x:.5f} bits per byte, ' for x in bits.values())
