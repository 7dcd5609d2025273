"""A mean nll in the units that are usually quoted."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.data.vocabularies import AnyVocabulary

NAMES = {'bpc': 'bits per character', 'ppl': 'perplexity'}  # of units
# In records, and in words.
OF_BITS = {'bpb': 'bits per byte', 'bpt': 'bits per token'}


def figures(nats: float, unit: str) -> dict[str, float]:
  """{'nats': nats, unit: figure} of a mean nll in nats, per token.

  The unit is 'bpc', nats / ln 2, for tokens that are characters; or 'ppl',
  exp(nats), for words.
  """
  if unit == 'bpc':
    return {'nats': nats, 'bpc': nats / math.log(2)}
  return {'nats': nats, 'ppl': math.exp(min(nats, 700.0))}


def bits(
  nll: float, tokens: np.ndarray, vocabulary: AnyVocabulary
) -> dict[str, float]:
  """{'bpb': bits per byte of text} of an nll summed over tokens.

  Tokens are integers [n], all of which were scored. {} where tokens have no
  sizes, or no bytes; of token ids also 'bpt', bits per token.
  """
  found, total = {}, nll / math.log(2)
  if vocabulary.kind == 'ids':
    found['bpt'] = total / len(tokens)
  if (sizes := vocabulary.sizes) is not None:
    count = int(np.bincount(tokens, minlength=len(sizes)) @ sizes)
    found |= {'bpb': total / count} if count else {}
  return found


def told(record: Mapping[str, Any]) -> str:
  """The result of `bits`, in a record, as part of a line; '' without one."""
  here = {x: name for x, name in OF_BITS.items() if x in record}
  return ''.join(f'{record[x]:.5f} {name}, ' for x, name in here.items())
