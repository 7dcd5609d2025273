"""What a file or the user says about a model in addition to its weights.

The names are those of the arguments of the original code's model, which Hugging
Face and NVIDIA kept.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from txl_jax.program import errors, settings
from txl_jax.program.settings import count, key, size


@dataclasses.dataclass(frozen=True)
class Options:
  """The arguments that count here; None is not said."""

  n_layer: int = size(None, 'Number of layers.')
  n_head: int = size(
    None, 'Number of heads, which attention type 2 does not tell.'
  )
  tgt_len: int = size(None, 'T: tokens per segment.')
  mem_len: int = count(None, 'M: states in the memory.')
  clamp_len: int = key(None, 'Larger distances count as this one; 0 is off.')
  same_length: bool = key(
    None, 'Whether all queries see the same number of keys.'
  )
  pre_lnorm: bool = key(None, 'Whether norms come before the sublayers.')
  untie_r: bool = key(None, 'Whether each layer has biases of its own.')
  tie_weight: bool = key(
    None,
    'Whether the softmax shares the weights of the embedding; needed if a file '
    'has them only once.',
  )
  cutoffs: tuple[int, ...] = key(
    None, 'First ids of the tails, such as 20000,40000,200000.'
  )
  tie_projs: tuple[bool, ...] = key(
    None,
    'Whether the softmax shares each projection of the embedding: true or '
    'false for each bin.',
  )
  dropout: float = count(None, 'Rate within the layers.', at_most=1)
  dropatt: float = count(None, 'Rate of the probabilities.', at_most=1)
  layer_norm_epsilon: float = count(
    None, 'Epsilon of the layer norms.', at_most=1
  )


# Where a whole module of the original code keeps them, besides the model's own
# attributes.
_OF_MODULE = {
  'word_emb.cutoffs': 'cutoffs',
  'layers.0.dec_attn.dropatt.p': 'dropatt',
  'layers.0.dec_attn.layer_norm.eps': 'layer_norm_epsilon',
  'layers.0.dec_attn.pre_lnorm': 'pre_lnorm',
  'drop.p': 'dropout',
}
# Of the program and of the model in NVIDIA's checkpoints; `cfg` is fairseq's.
ARGUMENTS = 'args', 'cfg', 'model_config'


def of_file(found: Mapping[str, Any]) -> dict[str, Any]:
  """Those that a file of PyTorch says, of whichever version it is."""
  said = (found.get(name) for name in ARGUMENTS)
  program, cfg, model = (x if isinstance(x, Mapping) else {} for x in said)
  module = {name: found[x] for x, name in _OF_MODULE.items() if x in found}
  return {**program, **found, **module, **cfg, **model}


def known(found: Mapping[str, Any], where: str) -> dict[str, Any]:
  """Those that are known and said, as Python's own types.

  UserError, which begins with `where`, if a value is not allowed. A clamp_len
  below 1 becomes 0.
  """
  made = {}
  for field in dataclasses.fields(Options):
    value: Any = found.get(field.name)
    if value is None:
      continue
    (of,) = typing.get_args(field.type)[:1] or (field.type,)
    if of is not field.type:
      value = tuple(value) if isinstance(value, list) else value
      value, allowed = _each(value, of)
    else:
      value = _switch(value) if of is bool else value
      allowed = settings.allowed(field, value)
    if allowed:
      errors.refuse(f'{where}{field.name}', value, allowed)
    made[field.name] = float(value) if of is float else value
  if 'clamp_len' in made:
    made['clamp_len'] = max(made['clamp_len'], 0)
  return made


def _each(values, of):
  """A tuple of values of one type, and what is allowed if it is none."""
  if isinstance(values, tuple):
    values = tuple(map(_switch, values)) if of is bool else values
    if all(type(x) is of for x in values):
      return values, ''
  return values, 'true and false' if of is bool else 'whole numbers'


def _switch(value):
  """True and False for 1 and 0, as some files have it."""
  return bool(value) if type(value) is int and value in (0, 1) else value
