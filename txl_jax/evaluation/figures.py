"""A mean nll in the unit that people quote."""

import math

NAMES = {'bpc': 'bits per character', 'ppl': 'perplexity'}  # of units


def figures(nats: float, unit: str) -> dict[str, float]:
  """{'nats': nats, unit: figure} of a mean nll in nats, per token.

  The unit is 'bpc', nats / ln 2, for tokens that are characters; or 'ppl',
  exp(nats), for words.
  """
  if unit == 'bpc':
    return {'nats': nats, 'bpc': nats / math.log(2)}
  return {'nats': nats, 'ppl': math.exp(min(nats, 700.0))}
