"""The nll of each token of a text, under a trained model."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from txl_jax.data import streams
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.evaluation import split_score
from txl_jax.experiment import call_options, results, texts
from txl_jax.experiment.sections import Config
from txl_jax.program import errors


def score(
  config: Config,
  params: Any,
  vocabulary: AnyVocabulary,
  mesh: Mesh,
  encoded: texts.TokenisedText,
  progress: Callable[[int], None],
) -> results.Score:
  """Scores a text with the options of the section `eval`.

  `progress` is called with the number of tokens scored so far. UserError: the
  text is too short, or the vocabulary lacks the <eos> of eval.first_token.
  """
  tokens, first = _first(config, vocabulary, encoded.ids)
  if len(tokens) < 2:
    n = len(encoded.ids)
    errors.refuse('the number of tokens of text', n, 'at least 2')
  model = call_options.scorer(config, len(vocabulary))
  use = config.eval
  split_score.check(model, tokens, use.batch_size, use.segment_len, use.context)
  text_bytes = encoded.size - (int(encoded.ends[0]) if first else 0)
  if vocabulary.kind == 'ids' and vocabulary.sizes is None:
    text_bytes = 0  # ids without names have no text

  def score_with(model, at_temperature=None):
    nll = np.zeros(len(tokens) - 1, np.float32)
    options = call_options.batching(config)
    options |= dict(mesh=mesh, each=nll.__setitem__, progress=progress)
    total = split_score.score(model, params, tokens, **options).nll
    scored = encoded.ids[first:], encoded.offsets[first:]
    return results.Score(*scored, nll, total, text_bytes, at_temperature)

  if use.temperature == 1:
    return score_with(model)
  at_temperature = score_with(model.at_temperature(use.temperature))
  return score_with(model, at_temperature)


def _first(
  config: Config, vocabulary: AnyVocabulary, ids: np.ndarray
) -> tuple[Any, int]:
  """The tokens to read, and the index in `ids` of the first scored one."""
  of_documents = vocabulary.document_end is not None
  if config.eval.first_token == 'none' and not of_documents:
    return ids, 1
  eos = vocabulary.eos_id
  if eos is None:
    allowed = 'none, because the vocabulary has no <eos>'
    errors.refuse('eval.first_token', config.eval.first_token, allowed)
  return streams.Preceded(eos, ids), 0
