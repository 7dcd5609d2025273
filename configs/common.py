"""Every key of a config with its default: docs/config.md lists them.

A config file calls `get_config()` and changes what its experiment needs; any
key is overridden on the command line, as in `--config.optim.lr=1e-3`. The
dict is locked: a key that is not declared is an error. Each section is
declared beside the code that reads it; `txl_jax.modes.sections` names them.

A file with several experiments has them in VARIANTS, and its
`get_config(variant)` is told which by --config=configs/FILE.py:VARIANT.
"""

from txl_jax import settings
from txl_jax.modes import sections


def get_config(model='transformer_xl'):
  """The defaults: a base to change, not an experiment."""
  return sections.compose(model)


def at_test_time(c, **lengths):
  """Gives the model other lengths in evaluation and generation."""
  c.eval.model.update(lengths)
  c.generate.model.update(lengths)


def with_model(c, name):
  """The same config with another model, and those of its keys that it has."""
  new = get_config(name)
  there = settings.flatten(new)
  for key, value in settings.flatten(c).items():
    if key in there and key != 'model.name' and value is not None:
      new.update_from_flattened_dict({key: value})
  return new


def check_variant(variant, variants):
  """Raises a UserError unless a file has the variant."""
  if variant not in variants:
    settings.refuse('the variant', variant, ', '.join(variants))
