"""TransfoXLLMHeadModel of Hugging Face transformers, in the original's form.

Names and keys of its config were read in transformers 4.35.2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.convert.versions import layout, names, original
from txl_jax.program import errors
from txl_jax.program.errors import UserError

_INSIDE = 'transformer.'
_BIASES = 'r_w_bias', 'r_r_bias'
# Its config's defaults for what neither its file nor the weights tell.
DEFAULTS = {
  'mem_len': 1600,
  'clamp_len': 1000,
  'same_length': True,
  'pre_lnorm': False,
  'dropout': 0.1,
  'dropatt': 0.0,
  'layer_norm_epsilon': 1e-5,
}


def to_original(
  state: original.State, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The state dict with the original's names.

  `from_original` names them back, and leaves out what is tied.

  Biases that all layers share may be stored once, in each layer, or both.
  UserError if they are not the same.
  """
  state = names.renamed(state, lambda name: name.removeprefix(_INSIDE))
  for bias in _BIASES:
    ends = f'.dec_attn.{bias}'
    layers = [x for x in state if x.startswith('layers.') and x.endswith(ends)]
    untied = options.get('untie_r', bias not in state)
    if untied and bias in state:
      raise UserError(f'all layers share {bias}, though untie_r is true')
    if untied or not layers:
      continue
    shared = state.setdefault(bias, state[layers[0]])
    for name in layers:
      if not original.same(state.pop(name), shared):
        raise UserError(f'{name} is not {bias}, though untie_r is false')
  return state


def from_original(state: original.State, section: Any) -> dict[str, np.ndarray]:
  """The tensors of its file: without tied weights, which it makes itself.

  Biases that all layers share are also in each of them. The state is
  `original.from_params` of a model with that section `model`.
  """
  tied = layout.copies(section)
  kept = {name: x for name, x in state.items() if name not in tied}
  for bias in _BIASES:
    for n in range(section.n_layer):
      if bias in kept:
        kept[f'layers.{n}.dec_attn.{bias}'] = kept[bias]

  def inside(name):
    return name if name.startswith('crit.') else f'{_INSIDE}{name}'

  return names.renamed(kept, inside)


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """The options, see `options.known`, that a config.json says.

  UserError if it is of another model.
  """
  kind = config.get('model_type', 'transfo-xl')
  if kind != 'transfo-xl':
    raise UserError(f'config.json: model_type is {kind!r:.80}, not transfo-xl')
  return {**config, 'tie_weight': config.get('tie_word_embeddings', True)}


def config_of(
  section: Any, vocab_size: int, eos: int | None = None
) -> dict[str, Any]:
  """The config.json of a section `model`; `options_of` is back.

  UserError if it has none like it.
  """
  if section.name != 'transformer_xl':
    allowed = 'transformer_xl, the only one of Hugging Face'
    errors.refuse('model.name', section.name, allowed)
  M, span = section.mem_len, section.span
  return {
    'architectures': ['TransfoXLLMHeadModel'],
    'model_type': 'transfo-xl',
    'vocab_size': vocab_size,
    'tie_word_embeddings': section.tie_weights,
    'untie_r': section.untie_biases,
    'layer_norm_epsilon': section.ln_eps,
    'proj_share_all_but_first': all(section.tie_projs[1:] or [False]),
    'sample_softmax': -1,
    'adaptive': True,
    'eos_token_id': eos or 0,
    'torch_dtype': 'float32',
    **layout.arguments(section),
    # A query sees as many keys as the memory is long.
    'mem_len': M if span is None else max(M, span),
  }
