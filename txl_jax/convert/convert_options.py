"""Model options that the tensors do not always determine.

They are named like the arguments of the original code's model; Hugging Face and
NVIDIA use the same names.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from txl_jax.program import errors, settings
from txl_jax.program.settings import count, key, size


@dataclasses.dataclass(frozen=True)
class Options:
  """The arguments that a conversion uses; None is unset."""

  n_layer: int = size(None, 'Number of layers.')
  n_head: int = size(None, 'Number of heads; needed for attention type 2.')
  tgt_len: int = size(None, 'T: tokens per segment.')
  mem_len: int = count(None, 'M: states in the memory.')
  clamp_len: int = key(None, 'Larger distances count as this one; 0 is off.')
  same_length: bool = key(None, 'Whether all queries see equally many keys.')
  pre_lnorm: bool = key(None, 'Whether norms come before the sublayers.')
  untie_r: bool = key(None, 'Whether each layer has biases of its own.')
  tie_weight: bool = key(
    None,
    'Whether softmax and embedding share weights; needed if a file has tied '
    'weights only once.',
  )
  cutoffs: tuple[int, ...] = key(
    None, 'First ids of the tails, such as 20000,40000,200000.'
  )
  tie_projs: tuple[bool, ...] = key(
    None,
    'Whether softmax and embedding share the projection of each bin, such as '
    'false,true,true.',
  )
  dropout: float = count(None, 'Rate within the layers.', at_most=1)
  dropatt: float = count(None, 'Rate for attention probabilities.', at_most=1)
  layer_norm_epsilon: float = count(None, 'Epsilon of layer norms.', at_most=1)


# {attribute of a pickled module of the original code: option}.
_OF_MODULE = {
  'word_emb.cutoffs': 'cutoffs',
  'layers.0.dec_attn.dropatt.p': 'dropatt',
  'layers.0.dec_attn.layer_norm.eps': 'layer_norm_epsilon',
  'layers.0.dec_attn.pre_lnorm': 'pre_lnorm',
  'drop.p': 'dropout',
}
# Entries with arguments: `args` of NVIDIA's program, `model_config` of its
# model, `cfg` of fairseq.
ARGUMENTS = 'args', 'cfg', 'model_config'


def of_file(contents: Mapping[str, Any]) -> dict[str, Any]:
  """The options in a PyTorch file, whichever code saved it."""
  entries = (contents.get(name) for name in ARGUMENTS)
  program, cfg, model = (x if isinstance(x, Mapping) else {} for x in entries)
  module = {
    name: contents[x] for x, name in _OF_MODULE.items() if x in contents
  }
  return {**program, **contents, **module, **cfg, **model}


def known(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The values of fields of Options that are not None, checked.

  A clamp_len below 1 becomes 0. Raises UserError, prefixed with `where`, if a
  value is not allowed.
  """
  checked = {}
  for field in dataclasses.fields(Options):
    value: Any = values.get(field.name)
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
    checked[field.name] = float(value) if of is float else value
  if 'clamp_len' in checked:
    checked['clamp_len'] = max(checked['clamp_len'], 0)
  return checked


def _each(values, of):
  """Values of a tuple, and an error text if one is not of type `of`."""
  if isinstance(values, tuple):
    values = tuple(map(_switch, values)) if of is bool else values
    if all(type(x) is of for x in values):
      return values, ''
  return values, 'true and false' if of is bool else 'whole numbers'


def _switch(value):
  """True and False for 1 and 0, which some files store."""
  return bool(value) if type(value) is int and value in (0, 1) else value
