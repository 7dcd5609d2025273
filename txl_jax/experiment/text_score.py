"""Scores a split or a text with the options of the section `eval`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.data import streams
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.evaluation import scoring
from txl_jax.experiment import results, texts
from txl_jax.experiment.sections import Config
from txl_jax.program import errors


def scorer(
  config: Config,
  params: Any,
  vocab_size: int,
  mesh: Mesh,
  tokens: streams.Scored,
) -> Callable[..., scoring.SplitScore]:
  """Returns score(temperature, progress, ...), which scores tokens [n].

  It calls `scoring.score` with the options of the section `eval`, except
  the temperature; `each` and `top` are optional. UserError: the options do
  not fit the model or the tokens.
  """
  ev = config.eval
  if config.model.cutoffs and ev.temperature != 1:
    allowed = '1 with model.cutoffs, an adaptive softmax'
    errors.refuse('eval.temperature', ev.temperature, allowed)
  model = models.at_test_time(config, vocab_size, 'eval', ev.window)
  scoring.check(model, tokens, ev.batch_size, ev.segment_len, ev.context)

  keys = 'batch_size', 'segment_len', 'segments_per_call', 'context'
  fixed = {k: getattr(ev, k) for k in keys} | {'mesh': mesh}

  def score_at(temperature, progress, **options):
    options |= fixed | {'progress': progress}
    scaled = model.at_temperature(temperature)
    return scoring.score(scaled, params, tokens, **options)

  return score_at


def score(
  config: Config,
  params: Any,
  vocabulary: AnyVocabulary,
  mesh: Mesh,
  encoded: texts.TokenisedText,
  progress: Callable[[int], None],
  top: int,
) -> results.Score:
  """Scores a text with the options of the section `eval`.

  `progress` gets the number of tokens scored so far; `top` is K. UserError: the
  text is too short, or the vocabulary lacks the <eos> of eval.first_token.
  """
  tokens, first = _first(config, vocabulary, encoded.ids)
  if len(tokens) < 2:
    n = len(encoded.ids)
    errors.refuse('the number of tokens of text', n, f'at least {first + 1}')
  score_at = scorer(config, params, len(vocabulary), mesh, tokens)
  text_bytes = encoded.size - (int(encoded.ends[0]) if first else 0)
  if vocabulary.kind == 'ids' and vocabulary.sizes is None:
    text_bytes = 0  # ids or names between spaces

  def text_score(temperature, top=0, at_temperature=None):
    n, K = len(tokens) - 1, min(top, len(vocabulary))
    nll, logprobs = np.zeros(n, np.float32), np.zeros([n, K], np.float32)
    ids = logprobs.astype(np.int32)

    def each(at, *scored):
      for array, values in zip((nll, logprobs, ids), scored):
        array[at] = values

    return results.Score(
      ids=encoded.ids[first:],
      offsets=encoded.offsets[first:],
      nll=nll,
      total=score_at(temperature, progress, each=each, top=K).nll,
      text_bytes=text_bytes,
      at_temperature=at_temperature,
      top_ids=ids,
      top_logprobs=logprobs,
      unscored=encoded.ids[:first],
      vocabulary=vocabulary,
    )

  temperature = config.eval.temperature
  other = text_score(temperature) if temperature != 1 else None
  return text_score(1.0, top, other)


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
