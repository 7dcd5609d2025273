"""What is said of a model beside its weights, by a file or by the user.

The names are those of the arguments of the original code's model, which Hugging
Face and NVIDIA kept.
"""

import operator
from collections.abc import Mapping
from typing import Any

from txl_jax import settings

_SIZES = 'n_token', 'n_layer', 'n_head', 'd_model', 'd_head', 'd_inner'
_SIZES = *_SIZES, 'div_val', 'tgt_len'
_COUNTS = 'attn_type', 'mem_len'
# Of these, numbers below 1 stand for none.
_OR_NONE = 'd_embed', 'clamp_len'
_SWITCHES = 'tie_weight', 'pre_lnorm', 'same_length', 'untie_r'
_RATES = 'dropout', 'dropatt'
_LARGEST = 10**9

# Where a whole module of the original code keeps them, besides the model's own
# attributes.
_OF_MODULE = {
  'word_emb.cutoffs': 'cutoffs',
  'word_emb.div_val': 'div_val',
  'layers.0.dec_attn.pre_lnorm': 'pre_lnorm',
  'layers.0.dec_attn.dropatt.p': 'dropatt',
  'drop.p': 'dropout',
}
_CONFIG = 'model_config'  # the arguments, in NVIDIA's checkpoints


def of_file(found: Mapping[str, Any]) -> dict[str, Any]:
  """Those that a file of PyTorch says, of whichever version it is."""
  made = dict(found)
  for theirs, name in _OF_MODULE.items():
    if theirs in found:
      made[name] = found[theirs]
  if isinstance(config := found.get(_CONFIG), Mapping):
    made |= config
  nested = f'{_CONFIG}.'
  made |= {
    name.removeprefix(nested): x
    for name, x in found.items()
    if name.startswith(nested)
  }
  return made


def known(found: Mapping[str, Any], where: str) -> dict[str, Any]:
  """Those of the options that are known, as Python's own types.

  None stands for what is not said. UserError, which names the place they are
  from, if a value is none of its kind.
  """
  made = {}
  for name, value in found.items():
    if value is None or (check := _kind(name)) is None:
      continue
    function, allowed = check
    try:
      made[name] = function(value)
    except (TypeError, ValueError, OverflowError):
      settings.refuse(f'{where}: {name}', value, allowed)
  return {name: x for name, x in made.items() if x is not None}


def _kind(name):
  """How a value is checked, and what is allowed; None if it is not known."""
  if name in _SIZES:
    return lambda x: _integer(x, 1), 'a whole number from 1 on'
  if name in _COUNTS:
    return lambda x: _integer(x, 0), 'a whole number from 0 on'
  if name in _OR_NONE:
    return lambda x: max(_integer(x, -_LARGEST), 0) or None, 'a whole number'
  if name in _SWITCHES:
    return _switch, 'true or false'
  if name in _RATES:
    return lambda x: _number(x, 0, 1), 'a number from 0 to 1'
  if name == 'layer_norm_epsilon':
    return lambda x: _number(x, 0, 1), 'a number from 0 to 1'
  if name == 'cutoffs':
    return lambda x: tuple(_integer(i, 1) for i in _list(x)), 'whole numbers'
  if name == 'tie_projs':
    return lambda x: tuple(_switch(i) for i in _list(x)), 'true and false'
  return None


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


def _number(value, at_least, at_most):
  if isinstance(value, bool | str) or not at_least <= value <= at_most:
    raise ValueError
  return float(value)


def _list(value):
  if not isinstance(value, list | tuple) or len(value) > 1000:
    raise TypeError
  return value
