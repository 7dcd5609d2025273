"""Options of calls to a trained model: the sections `eval` and `generate`.

The modes of the program read them from the config; in Python they are those of
the run, overridden by what a call gives under the names of their keys.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.experiment.sections import Config
from txl_jax.models import base
from txl_jax.program import errors, settings

# All keys of a section, and those of `model` in it, are options but these.
_PROMPT = 'prompt', 'prompt_file', 'prompt_tokens', 'prompt_start'
_NO_OPTIONS = 'split', 'nll_file', *_PROMPT, 'samples', 'stop'


def changed(config: Config, section: str, given: Mapping[str, Any]) -> Config:
  """A config whose section, 'eval' or 'generate', has the options of a call.

  UserError names a value that is not allowed, TypeError an unknown option.
  """
  use = getattr(config, section)
  lengths = settings.keys(use.model)
  known = [k for k in settings.keys(use) if k not in _NO_OPTIONS] + [*lengths]
  values = {}
  for name, value in given.items():
    if name not in known:
      raise TypeError(
        f'there is no option {errors.shown(name)} for this model; allowed: '
        f'{", ".join(known)}'
      )
    # A config needs Python's numbers, not NumPy's.
    value = value.item() if isinstance(value, np.generic) else value
    values[f'model.{name}' if name in lengths else name] = value
  use = settings.replace(use, values)
  settings.check(use.model)
  settings.check(use)
  return dataclasses.replace(config, **{section: use})


def cut(config: Config) -> dict[str, Any]:
  """B, T, G and E of `perplexity.score`, from the section `eval`."""
  names = 'batch_size', 'segment_len', 'segments_per_call', 'context'
  return {name: getattr(config.eval, name) for name in names}


def scorer(config: Config, vocab_size: int) -> base.LanguageModel:
  """The model as configured by the section `eval`, but for its temperature.

  UserError: it does not fit, or has an adaptive softmax and a temperature.
  """
  if config.model.cutoffs and config.eval.temperature != 1:
    allowed = '1 with model.cutoffs, an adaptive softmax'
    errors.refuse('eval.temperature', config.eval.temperature, allowed)
  return models.at_test_time(config, vocab_size, 'eval', config.eval.window)
