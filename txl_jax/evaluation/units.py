"""Conversion of nll to bits per character, perplexity and bits per byte."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.data.vocabularies import AnyVocabulary

NAMES = {'bpc': 'bits per character', 'ppl': 'perplexity'}  # main units
# Additional units: key in a record, name in messages.
OF_BITS = {'bpt': 'bits per token', 'bpb': 'bits per byte'}


def to_units(nats: float, unit: str) -> dict[str, float]:
  """Returns {'nats': nats, unit: value} for a mean nll per token in nats.

  The unit is 'bpc' (nats / ln 2, for characters) or 'ppl' (exp(nats), for
  words).
  """
  if unit == 'bpc':
    return {'nats': nats, 'bpc': nats / math.log(2)}
  return {'nats': nats, 'ppl': math.exp(min(nats, 700.0))}


def loss_text(record: Mapping[str, Any], unit: str) -> str:
  """Formats the loss in a record, in nats and in its unit."""
  return f'loss {record["nats"]:.4f} nats, {record[unit]:.4f} {unit}'


def bits(
  nll: float, tokens: np.ndarray, vocabulary: AnyVocabulary
) -> dict[str, float]:
  """Returns {'bpb': bits per byte} for an nll in nats, summed over tokens.

  Tokens are integers [n], all scored. 'bpb' is omitted if the vocabulary has no
  byte sizes or the text has no bytes; for token ids, 'bpt' is included.
  """
  result = {}
  total = nll / math.log(2)
  if vocabulary.kind == 'ids':
    result['bpt'] = total / len(tokens)
  if (sizes := vocabulary.sizes) is not None:
    count = int(np.bincount(tokens, minlength=len(sizes)) @ sizes)
    result |= {'bpb': total / count} if count else {}
  return result


def bits_text(record: Mapping[str, Any]) -> str:
  """Formats the entries of `bits` in a record; '' if there are none.

  If each token is a byte, bits per token are left out.
  """
  # One name for each value.
  found = {record[k]: name for k, name in OF_BITS.items() if k in record}
  return ''.join(f'{x:.5f} {name}, ' for x, name in found.items())
