"""What a file or the user says about a model in addition to its weights.

The names are those of the arguments of the original code's model, which Hugging
Face and NVIDIA kept.
"""

import operator
from collections.abc import Mapping
from typing import Any

from txl_jax.program import settings

_LARGEST = 10**9
# Whole numbers, and the least of each; a clamp_len below 1 is none.
_AT_LEAST = {
  'n_layer': 1, 'n_head': 1, 'tgt_len': 1, 'mem_len': 0, 'clamp_len': -_LARGEST
}  # fmt: skip
_SWITCHES = 'tie_weight', 'pre_lnorm', 'same_length', 'untie_r'
_RATES = 'dropout', 'dropatt', 'layer_norm_epsilon'
_LISTS = {'cutoffs': 'whole numbers', 'tie_projs': 'true and false'}

# Where a whole module of the original code keeps them, besides the model's own
# attributes.
_OF_MODULE = {
  'word_emb.cutoffs': 'cutoffs',
  'layers.0.dec_attn.dropatt.p': 'dropatt',
  'layers.0.dec_attn.layer_norm.eps': 'layer_norm_epsilon',
  'layers.0.dec_attn.pre_lnorm': 'pre_lnorm',
  'drop.p': 'dropout',
}
# Of the program and of the model, in NVIDIA's checkpoints.
ARGUMENTS = 'args', 'model_config'


def of_file(found: Mapping[str, Any]) -> dict[str, Any]:
  """Those that a file of PyTorch says, of whichever version it is."""
  said = (found.get(name) for name in ARGUMENTS)
  program, model = (x if isinstance(x, Mapping) else {} for x in said)
  module = {name: found[x] for x, name in _OF_MODULE.items() if x in found}
  return {**program, **found, **module, **model}


def known(found: Mapping[str, Any], where: str) -> dict[str, Any]:
  """Those of the options that are known, as Python's own types.

  UserError, which begins with `where`, if a value is none of its kind. None
  stands for what is not said; a clamp_len below 1 becomes 0.
  """
  made = {}
  for name, value in found.items():
    if value is None or not (allowed := _allowed(name)):
      continue
    try:
      made[name] = _plain(name, value)
    except (TypeError, ValueError, OverflowError):
      settings.refuse(f'{where}{name}', value, allowed)
  return made


def _allowed(name):
  """The values that an option may have, in words; '' if it is not known."""
  if name in _AT_LEAST:
    least = _AT_LEAST[name]
    return 'a whole number' + f' from {least} on' * (least >= 0)
  if name in _SWITCHES:
    return 'true or false'
  return 'a number from 0 to 1' if name in _RATES else _LISTS.get(name, '')


def _plain(name, value):
  """A value as Python's own type; TypeError and others of another kind."""
  if name in _AT_LEAST:
    return max(_integer(value, _AT_LEAST[name]), 0)
  if name in _SWITCHES:
    return _switch(value)
  if name in _RATES:
    if isinstance(value, bool | str) or not 0 <= value <= 1:
      raise ValueError
    return float(value)
  if not isinstance(value, list | tuple):
    raise TypeError
  if name == 'tie_projs':
    return tuple(map(_switch, value))
  return tuple(_integer(x, 1) for x in value)


def _integer(value, at_least):
  if isinstance(value, bool):
    raise TypeError
  found = operator.index(value)
  if not at_least <= found <= _LARGEST:
    raise ValueError
  return found


def _switch(value):
  if value not in (False, True):
    raise ValueError
  return bool(value)
