"""Every key of a config with its default; docs/config.md lists them.

A config file calls `get_config()` and changes the keys of its experiment; the
command line overrides any key, as in `--config.optim.lr=1e-3`. The dict is
locked: an undeclared key is an error. Each section is declared beside the code
that reads it; `txl_jax.experiment.sections` lists them.

A file with several experiments lists them in VARIANTS; `get_config(variant)`
receives the variant of --config=NAME:VARIANT.
"""

from txl_jax.experiment import sections
from txl_jax.program import errors, settings


def get_config(model='transformer_xl'):
  """The defaults: a base to change, not an experiment."""
  return sections.compose(model)


def at_test_time(c, **lengths):
  """Sets other lengths for evaluation and generation."""
  c.eval.model.update(lengths)
  c.generate.model.update(lengths)


def with_model(c, name):
  """The same config with another model; keeps the values of shared keys."""
  new = get_config(name)
  there = settings.flatten(new)
  for key, value in settings.flatten(c).items():
    if key in there and key != 'model.name' and value is not None:
      new.update_from_flattened_dict({key: value})
  return new


def check_variant(variant, variants):
  """Raises a UserError if `variant` is not in `variants`."""
  if variant not in variants:
    errors.refuse('the variant', variant, ', '.join(variants))


# The rows of Table 6 of the paper: the model, by its positional encoding;
# whether it has a memory; the positions of a segment in the loss. Not in Table
# 6: Shaw's encoding as in the paper's text, and absolute positions with a
# memory (Section 3.3).
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
  """Turns a Transformer-XL into one of ABLATIONS.

  Without memory, tokens see T keys. A number at the end, as in
  xl_no_recurrence_176, sets T (Table 10).
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
  elif model == 'vaswani':  # needs whole segments, so generates from a window
    c.generate.window, c.generate.model.mem_len = T, 0
    c.eval.segment_len = T
  if variant == 'shaw_unbiased':
    c.model.biases = False
  if 'table_len' in c.model:
    c.model.table_len = T + (c.model.get('mem_len') or 0)
  return c


def baseline(c, name, model):
  """A model with keys `model`; with absolute positions, it sees T tokens."""
  c = with_model(c, name)
  c.model.update(model)
  if name in ('vaswani', 'al_rfou'):
    without_memory(c, c.train.segment_len)
  return c


def without_memory(c, window):
  """No recurrence: evaluation and generation use a sliding window."""
  if 'mem_len' in c.model:
    c.model.mem_len = 0
  for section in c.eval, c.generate:
    section.window = window
    for key in section.model:
      section.model[key] = None
