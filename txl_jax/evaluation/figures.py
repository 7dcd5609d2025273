"""A mean nll in the unit that people quote."""

import math


def figures(nats: float, unit: str) -> dict[str, float]:
  """A mean nll in nats and in the unit that people quote.

  Args:
    nats: float, per token.
    unit: 'bpc', nats / ln 2, for tokens that are characters; 'ppl',
      exp(nats), for words.

  Returns:
    {'nats': nats, unit: figure}.
  """
  if unit == 'bpc':
    return {'nats': nats, 'bpc': nats / math.log(2)}
  return {'nats': nats, 'ppl': math.exp(min(nats, 700.0))}
