"""Samples of text that a model generates while it is trained."""

import dataclasses
from collections.abc import Callable
from typing import Any

from txl_jax.api import call_options, writing
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.generation import decoding
from txl_jax.models import base
from txl_jax.modes import generate
from txl_jax.modes.sections import Config


def make(
  config: Config, vocabulary: AnyVocabulary, params: Any
) -> Callable[[Any], str] | None:
  """The text that parameters, those of now, write; None if it is not asked for.

  All processes call it together. It is as `--mode=generate` would print it: the
  first prompt and one sample, of train.sample_tokens. Of the parameters the
  shapes suffice here. UserError if the section `generate` cannot be followed.
  """
  if not config.train.sample_every:
    return None
  given = {'max_new_tokens': config.train.sample_tokens}
  config = call_options.changed(config, 'generate', given)
  g = config.generate
  prompt = generate.encode(g, generate.read_prompt(g), vocabulary)[0]
  empty = writing.make(config, params, vocabulary, freeze=lambda *_: None)
  decoding.check(empty.model, params, samples=1, segment_len=g.segment_len)

  def sample(params):
    variables = base.freeze(empty.model, params)
    writer = dataclasses.replace(empty, variables=variables)
    pieces = (piece for (piece,) in writer.texts([prompt], echo=True))
    return b''.join(pieces).decode(errors='replace')

  return sample
