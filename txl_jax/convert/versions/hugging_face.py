"""Converts Hugging Face's TransfoXLLMHeadModel from and to the original's form.

Names of tensors and config keys follow transformers 4.35.2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.convert.versions import layout, names, original
from txl_jax.program import errors
from txl_jax.program.errors import UserError

_INSIDE = 'transformer.'
_BIASES = 'r_w_bias', 'r_r_bias'
# Defaults of TransfoXLConfig for keys that its file may omit.
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
  """The state dict with the original's names; inverse of `from_original`.

  Biases shared by all layers may be stored once, in each layer, or both. Raises
  UserError if these copies differ.
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
        raise UserError(f'{name} and {bias} differ; untie_r is not true')
  return state


def from_original(state: original.State, section: Any) -> dict[str, np.ndarray]:
  """The state dict with Hugging Face's names, without tied weights.

  Biases shared by all layers are also stored in each layer. `state` is the
  result of `original.from_params` for the section `model`.
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
  """The options, see `convert_options.known`, in a config.json.

  Raises UserError if it belongs to another kind of model.
  """
  kind = config.get('model_type', 'transfo-xl')
  if kind != 'transfo-xl':
    raise UserError(f'config.json: model_type is {kind!r:.80}, not transfo-xl')
  return {**config, 'tie_weight': config.get('tie_word_embeddings', True)}


def config_of(
  section: Any, vocab_size: int, eos: int | None = None
) -> dict[str, Any]:
  """The config.json of a section `model`; inverse of `options_of`.

  Raises UserError if Hugging Face has no such model.
  """
  if section.name != 'transformer_xl':
    allowed = 'transformer_xl, the only one of our models in transformers'
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
    # With same_length, a query attends to mem_len keys.
    'mem_len': M if span is None else max(M, span),
  }
