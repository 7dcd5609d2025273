"""Options of calls to a trained model: the sections `eval` and `generate`.

The modes of the program read them from the config. In Python, they default to
the config of the run, and keyword arguments of a call override them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.experiment.sections import Config
from txl_jax.program import errors, settings

# All keys of a section and of its `model` are options, except these.
_PROMPT = 'prompt', 'prompt_file', 'prompt_tokens', 'prompt_start', 'echo'
_NO_OPTIONS = 'split', 'nll_file', *_PROMPT, 'samples', 'stop'


def changed(
  config: Config, section_name: str, options: Mapping[str, Any]
) -> Config:
  """The config with the options of a call in section 'eval' or 'generate'.

  UserError for an invalid value, TypeError for an unknown option.
  """
  section = getattr(config, section_name)
  of_model = settings.keys(section.model)
  known = [k for k in settings.keys(section) if k not in _NO_OPTIONS]
  known += of_model
  values = {}
  for name, value in options.items():
    if name not in known:
      known += ['samples', 'stop'] if section_name == 'generate' else []
      raise TypeError(
        f'this model has no option {errors.shown(name)}; allowed: '
        f'{", ".join(known)}'
      )
    # A config needs Python's numbers, not NumPy's.
    value = value.item() if isinstance(value, np.generic) else value
    values[f'model.{name}' if name in of_model else name] = value
  section = settings.replace(section, values)
  settings.check(section.model)
  settings.check(section)
  return dataclasses.replace(config, **{section_name: section})
