"""Configs with keys changed, and what they are refused with."""

from tests import refusing
from txl_jax.configs import common
from txl_jax.experiment import sections


def changed(**values):
  """The defaults with section__key=value replaced."""
  config = common.get_config()
  with config.ignore_type():
    config.update_from_flattened_dict(
      {key.replace('__', '.'): value for key, value in values.items()}
    )
  return config


def refused(config):
  return refusing.refused(sections.read, config)
