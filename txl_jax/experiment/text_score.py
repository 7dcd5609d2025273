"""The nll of each token of a text, under a trained model."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.evaluation import perplexity
from txl_jax.experiment import call_options, results, texts
from txl_jax.program import errors


def score(
  config: Any,
  params: Any,
  vocabulary: AnyVocabulary,
  mesh: Mesh,
  encoded: texts.Encoded,
  progress: Callable[[int], None],
) -> results.Score:
  """Scores a text as the section `eval` of a config says.

  `progress` is called with the number of tokens scored so far. UserError: the
  text is too short, or has no <eos> to begin with.
  """
  tokens, first = _first(config, vocabulary, encoded.ids)
  if len(tokens) < 2:
    n = len(encoded.ids)
    errors.refuse('the number of tokens of text', n, 'at least 2')
  model = call_options.scorer(config, len(vocabulary))
  cut: Any = call_options.cut(config) | {'mesh': mesh}
  of_text = cut['batch_size'], cut['segment_len'], cut['context']
  perplexity.check(model, tokens, *of_text)
  scored = encoded.size - (int(encoded.ends[0]) if first else 0)
  if vocabulary.kind == 'ids' and vocabulary.sizes is None:
    scored = 0  # they are numbers, not a text

  def read(model, **more):
    nll = np.zeros(len(tokens) - 1, np.float32)
    calls: Any = cut | {'each': nll.__setitem__, 'progress': progress}
    found = perplexity.score(model, params, tokens, **calls)
    where = encoded.ids[first:], encoded.offsets[first:]
    return results.Score(*where, nll, found.nll, scored, **more)

  if (temperature := config.eval.temperature) == 1:
    return read(model)
  second = read(model.at_temperature(temperature))
  return read(model, at_temperature=second)


def _first(config, vocabulary, ids):
  """The tokens to read, and the index of the first that is scored."""
  of_documents = vocabulary.document_end is not None
  if config.eval.first_token == 'none' and not of_documents:
    return ids, 1
  eos = vocabulary.eos_id
  if eos is None:
    allowed = 'none, for the vocabulary has no <eos>'
    errors.refuse('eval.first_token', config.eval.first_token, allowed)
  return streams.Preceded(eos, ids), 0
