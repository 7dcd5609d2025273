"""Configs with keys changed, and what they are refused with."""

import pytest

from txl_jax.configs import common
from txl_jax.experiment import sections
from txl_jax.program.errors import UserError


def changed(**values):
  """The defaults with section__key=value replaced."""
  config = common.get_config()
  with config.ignore_type():
    config.update_from_flattened_dict(
      {key.replace('__', '.'): value for key, value in values.items()}
    )
  return config


def refused(config):
  with pytest.raises(UserError) as e:
    sections.read(config)
  assert '\n' not in str(e.value)
  return str(e.value)
