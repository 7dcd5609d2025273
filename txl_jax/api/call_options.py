"""Options of calls to a trained model: the sections `eval` and `generate`.

The modes of the program read them from the config; in Python they are those of
the run, overridden by what a call gives under the names of their keys.
"""

import contextlib
import numbers
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import numpy as np

from txl_jax import models
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.evaluation.perplexity import Eval
from txl_jax.generation.options import Generate
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base
from txl_jax.program import settings
from txl_jax.program.errors import UserError


class Lengths(TypedDict, total=False):
  """Lengths, for a model that has them; by default as in the run's section."""

  segment_len: int  # T: tokens read at once
  mem_len: int  # M: states that a layer remembers
  same_length: str  # how many keys a query sees
  clamp_len: int  # larger distances count as this one; 0 is off


class Scoring(Lengths, total=False):
  """Options of `score`, keys of the section `eval`."""

  window: int  # for models without memory: predict from the last W tokens
  batch_size: int  # streams that the text is cut into; 1 is exact
  first_token: str  # 'none', or 'eos': the first token is scored after an <eos>


class Writing(Lengths, total=False):
  """Options of `generate`, `stream` and `chat`, keys of `generate`."""

  window: int  # for models without memory: they see the last W tokens
  max_new_tokens: int
  temperature: float  # 0 takes the most probable token
  top_k: int  # 0 is off
  top_p: float  # 1 is off
  repetition_penalty: float  # 1 is off
  forbid_unk: bool
  seed: int


OPTIONS = {
  'eval': (Scoring, Eval),
  'generate': (Writing, Generate),
}


def changed(config: Any, section: str, given: Mapping[str, Any]) -> Any:
  """A config whose section, 'eval' or 'generate', has the options of a call.

  UserError names a value that is not allowed, TypeError an unknown option.
  """
  options, declared = OPTIONS[section]
  own: Any = config[section]
  overrides = settings.overrides(models.MODELS[config.model.name].Config)
  known = [k for k in options.__annotations__ if hasattr(declared, k)]
  known += [k for k in Lengths.__annotations__ if k in settings.keys(overrides)]
  for name in given:
    if name not in known:
      raise TypeError(
        f'there is no option {name!r} for this model; allowed: '
        f'{", ".join(known)}'
      )
  given = {k: _of_python(x) for k, x in given.items()}
  values = {k: given.get(k, x) for k, x in own.items() if k != 'model'}
  lengths = {k: given.get(k, x) for k, x in own.model.items()}
  settings.check({'': declared}, values)
  settings.check({'': overrides}, lengths)
  new = config.copy_and_resolve_references()
  with new.ignore_type():
    new[section].update(values)
    new[section].model.update(lengths)
  return new


def _of_python(value):
  """A NumPy number as a Python number, which a config needs."""
  if is_whole(value):
    return int(value)
  return float(value) if isinstance(value, np.floating) else value


def is_whole(value: Any) -> bool:
  """Whether a value is a Python or NumPy integer, and not a bool."""
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def flag(name: str, value: Any) -> None:
  """Raises a UserError unless the value is True or False."""
  if not isinstance(value, bool):
    settings.refuse(name, value, 'True or False')


@contextlib.contextmanager
def told() -> Iterator[None]:
  """Reraises a UserError as a ValueError that names the options of a call."""
  try:
    yield
  except UserError as e:
    text = re.sub(r'\b(eval|generate)\.(model\.)?', '', f'{e}')
    raise ValueError(text) from e


def scorer(config: Any, vocab_size: int) -> base.LanguageModel:
  """The model as configured by the section `eval`."""
  return models.at_test_time(config, vocab_size, 'eval', config.eval.window)


def cut(config: Any) -> dict[str, Any]:
  """B, T and G of `perplexity.score`, from the section `eval`."""
  ev = config.eval
  return dict(
    batch_size=ev.batch_size,
    segment_len=ev.segment_len,
    segments_per_call=ev.segments_per_call,
  )


def writer(config: Any, vocab_size: int) -> base.LanguageModel:
  """The model for the section `generate`, windowed if it has no memory.

  UserError if a window is asked for and the model has a memory.
  """
  own = config, vocab_size, 'generate'
  model = models.at_test_time(*own, config.generate.window)
  if model.remembers():
    return model
  return models.at_test_time(*own, config.train.segment_len)


def sampling(g: Generate, vocabulary: AnyVocabulary) -> Sampling:
  """How tokens are drawn; UserError if an <unk> to forbid does not exist."""
  forbidden: Any = (vocabulary.unk_id,) if g.forbid_unk else ()
  if None in forbidden:
    allowed = 'False, for the vocabulary has no unknown word'
    settings.refuse('generate.forbid_unk', True, allowed)
  drawn = g.temperature, g.top_k, g.top_p, g.repetition_penalty
  return Sampling(*drawn, forbidden)


def ends(g: Generate, vocabulary: AnyVocabulary) -> tuple[int, ...]:
  """The token ids that end a sample; UserError if one asked for is missing.

  A token that only ends documents always ends a sample.
  """
  line_end = None if g.stop == 'none' else vocabulary.line_end
  if line_end is None and g.stop != 'none':
    allowed = 'none, for the vocabulary has no end of a line'
    settings.refuse('generate.stop', g.stop, allowed)
  found = line_end, vocabulary.document_end
  return tuple(x for x in found if x is not None)
