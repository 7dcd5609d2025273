"""Every key of a config with its default: docs/config.md lists them.

A config file calls `get_config()` and changes what its experiment needs; any
key is overridden on the command line, as in `--config.optim.lr=1e-3`. The
dict is locked: a key that is not declared is an error. Each section is
declared beside the code that reads it; `txl_jax.experiment.sections` names
them.

A file with several experiments has them in VARIANTS, and its
`get_config(variant)` gets the one in --config=NAME:VARIANT.
"""

from txl_jax.experiment import sections
from txl_jax.program import errors, settings


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
    errors.refuse('the variant', variant, ', '.join(variants))


# The rows of Table 6 of the paper: which model, by its encoding of positions;
# whether it has a memory; and which positions of a segment the loss is of. Not
# among them: Shaw's encoding as their text has it, and the absolute positions
# with a memory of section 3.3.
ABLATIONS = {
  'xl': ('transformer_xl', True, 'full'),
  'shaw': ('shaw', True, 'full'),
  'xl_half': ('transformer_xl', True, 'half'),
  'xl_no_recurrence': ('transformer_xl', False, 'full'),
  'xl_no_recurrence_half': ('transformer_xl', False, 'half'),
  'shaw_no_recurrence': ('shaw', False, 'full'),
  'shaw_no_recurrence_half': ('shaw', False, 'half'),
  'shaw_unbiased': ('shaw', True, 'full'),
  'vaswani_memory': ('vaswani', True, 'full'),
  'vaswani_half': ('vaswani', False, 'half'),
  'al_rfou_half': ('al_rfou', False, 'half'),
}


def ablate(c, variant):
  """A Transformer-XL as one of ABLATIONS; one without memory sees T tokens.

  A number at the end, as in xl_no_recurrence_176, is another T (Table 10).
  """
  name, _, number = variant.rpartition('_')
  if number.isdecimal():
    variant, c.train.segment_len = name, int(number)
  model, recurrence, loss = ABLATIONS[variant]
  c = with_model(c, model)
  c.train.loss = loss
  T = c.train.segment_len
  if not recurrence:
    without_memory(c, T)
  elif model == 'vaswani':  # written from a window, for it needs segments
    c.generate.window, c.generate.model.mem_len = T, 0
    c.eval.segment_len = T
  if variant == 'shaw_unbiased':
    c.model.biases = False
  if 'table_len' in c.model:
    c.model.table_len = T + (c.model.get('mem_len') or 0)
  return c


def baseline(c, name, model):
  """Another model with some keys; an absolute Transformer sees T tokens."""
  c = with_model(c, name)
  c.model.update(model)
  if name in ('vaswani', 'al_rfou'):
    without_memory(c, c.train.segment_len)
  return c


def without_memory(c, window):
  """No recurrence: evaluation and generation see a window that moves."""
  if 'mem_len' in c.model:
    c.model.mem_len = 0
  for section in c.eval, c.generate:
    section.window = window
    for key in section.model:
      section.model[key] = None
