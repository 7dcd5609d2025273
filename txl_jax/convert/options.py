"""What a file or the user says about a model in addition to its weights.

The names are those of the arguments of the original code's model, which Hugging
Face and NVIDIA kept.
"""

import operator
import re
from collections.abc import Mapping
from typing import Any

from txl_jax.program import settings
from txl_jax.program.errors import UserError

_LARGEST = 10**9
_SIZES = 'n_token', 'n_layer', 'n_head', 'd_model', 'd_head', 'd_inner'
# Whole numbers, and the least of each.
_AT_LEAST = {
  **dict.fromkeys((*_SIZES, 'div_val', 'tgt_len'), 1),
  **dict.fromkeys(('attn_type', 'mem_len'), 0),
  **dict.fromkeys(('d_embed', 'clamp_len'), -_LARGEST),  # below 1 for none
}
_SWITCHES = 'tie_weight', 'pre_lnorm', 'same_length', 'untie_r'
_RATES = 'dropout', 'dropatt', 'layer_norm_epsilon'
_LISTS = {'cutoffs': 'whole numbers', 'tie_projs': 'true and false'}

# Where a value is from; see also `unsaid`.
SAID = 'said beside the weights'
FLAG = 'said by a flag'
GUESS = 'said by nothing'

# Where a whole module of the original code keeps them, besides the model's own
# attributes.
_OF_MODULE = {
  'word_emb.cutoffs': 'cutoffs',
  'word_emb.div_val': 'div_val',
  'layers.0.dec_attn.dropatt.p': 'dropatt',
  'drop.p': 'dropout',
}
# The same in each layer: of its attention and its dense part.
_OF_LAYERS = {'layer_norm.eps': 'layer_norm_epsilon', 'pre_lnorm': 'pre_lnorm'}
_CONFIG = 'model_config'  # the arguments, in NVIDIA's checkpoints
_ARGUMENTS = 'config', 'args'  # of the program; the last come first
_NONE = 'ext_len', 'sample_softmax'  # what we have nothing like


class Known(dict[str, Any]):
  """Options by name, and where each is from, those among them that say none."""

  origins: Mapping[str, str] = {}


def origin(found: Mapping[str, Any], name: str) -> str:
  """Where an option is from; '' if nothing gives it."""
  if isinstance(found, Known):
    return found.origins.get(name, '')
  return SAID if name in found else ''


def unsaid(name: str) -> str:
  """The origin of a value that nothing gives, and what would give it."""
  return f'{GUESS}; --{name} sets it'


def of_file(found: Mapping[str, Any]) -> dict[str, Any]:
  """Those that a file of PyTorch says, of whichever version it is.

  UserError if its layers differ in what they have to have in common.
  """
  made = {}
  for name in _ARGUMENTS:
    if isinstance(arguments := found.get(name), Mapping):
      made |= arguments
  if 'tied' in made:
    made['tie_weight'] = made['tied']
  made |= found
  made |= {name: found[x] for x, name in _OF_MODULE.items() if x in found}
  for theirs, name in _OF_LAYERS.items():
    made |= _of_layers(found, theirs, name)
  if isinstance(config := found.get(_CONFIG), Mapping):
    made |= config
  nested = f'{_CONFIG}.'
  inside = (name for name in found if name.startswith(nested))
  return made | {name.removeprefix(nested): found[name] for name in inside}


def _of_layers(found, theirs, name):
  """{name: value} of what all layers have in common; {} if they have it not."""
  pattern = r'layers\.\d+\.(dec_attn|pos_ff)\.' + re.escape(theirs)
  own = {k: x for k, x in found.items() if re.fullmatch(pattern, k)}
  first = next(iter(own), '')
  for key, value in own.items():
    if value != own[first]:
      raise UserError(
        f'{first} is {own[first]!r:.80} and {key} is {value!r:.80}; allowed: '
        'one value in all layers'
      )
  return {name: own[first]} if own else {}


def known(
  found: Mapping[str, Any],
  where: str,
  told: Mapping[str, Any] | None = None,
  default: Mapping[str, Any] | None = None,
) -> Known:
  """Those of the options that are known, as Python's own types.

  They are those found in a place; those told by flags come before them, and
  after them the defaults of Hugging Face's code. None stands for what is not
  said. UserError, which names the place, if a value is none of its kind,
  or of what is not converted.
  """
  for name in _NONE:
    value = found.get(name)
    if isinstance(value, int) and value > 0:
      settings.refuse(f'{where}: {name}', value, '0, for it is not converted')
  made, origins = {}, {}
  of = {'default of Hugging Face': default, SAID: found, FLAG: told}
  for from_there, values in of.items():
    for name, value in (values or {}).items():
      if value is None or not (allowed := _allowed(name)):
        continue
      try:
        made[name] = _plain(name, value)
      except (TypeError, ValueError, OverflowError):
        place = f'--{name}' if from_there is FLAG else f'{where}: {name}'
        settings.refuse(place, value, allowed)
      origins[name] = from_there
  result = Known({name: x for name, x in made.items() if x is not None})
  result.origins = origins
  return result


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
    number = _integer(value, _AT_LEAST[name])
    return number if _AT_LEAST[name] >= 0 else max(number, 0) or None
  if name in _SWITCHES:
    return _switch(value)
  if name in _RATES:
    if isinstance(value, bool | str) or not 0 <= value <= 1:
      raise ValueError
    return float(value)
  if not isinstance(value, list | tuple) or len(value) > 1000:
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
