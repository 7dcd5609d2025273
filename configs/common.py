"""Every key of a config with its default: docs/config.md lists them.

A config file calls `get_config()` and changes what its experiment needs; any
key is overridden on the command line, as in `--config.optim.lr=1e-3`. The
dict is locked: a key that is not declared is an error. Each section is
declared beside the code that reads it; `txl_jax.modes.sections` names them.
"""

from txl_jax.modes import sections


def get_config(model='transformer_xl'):
  """The defaults: a base to change, not an experiment."""
  return sections.compose(model)


def at_test_time(c, **lengths):
  """Gives the model other lengths in evaluation and generation."""
  c.eval.model.update(lengths)
  c.generate.model.update(lengths)
