"""Infers the section `model` of a config from the original's state dict.

Tensor shapes determine most keys. The rest are options named like the original
code's arguments, from a config next to the weights or from flags. Shape letters
are those of `layout`.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from txl_jax.convert.versions import layout, original
from txl_jax.convert.versions.sources import Source
from txl_jax.program import errors, settings
from txl_jax.program.errors import UserError

_TABLE, _WEIGHT = 'word_emb.emb_layers.{}.weight', 'crit.out_layers.{}.weight'
_TABLES = _TABLE.partition('{}')[0]
_ATTENTION = 'layers.0.dec_attn'
_PROJ, _OUT_PROJ = 'word_emb.emb_projs.{}', 'crit.out_projs.{}'


def model_of(
  state: original.State, options: Mapping[str, Any], source: Source
) -> tuple[dict[str, Any], int]:
  """The complete, validated section `model` of a state dict, and V.

  Raises UserError if the state dict is not a Transformer-XL, or if an option is
  missing or invalid.
  """
  # Tensors under the names of layer 0, from the first layer that has each one.
  first = {}
  for key, x in state.items():
    first.setdefault(re.sub(r'^layers\.\d+\.', 'layers.0.', key), x)
  name = _attention(first)
  sizes = _sizes(state, first, options, name)
  vocab_size, bins = _vocabulary(state, options, sizes['d_model'])
  pre_norm = options.get('pre_lnorm', False)
  fields = {
    'name': name,
    **sizes,
    **bins,
    **_ties(state, options, source, bins),
    'pre_norm': pre_norm,
    'ln_eps': options.get('layer_norm_epsilon', source.ln_eps),
  }
  for key in {'dropout', 'dropatt'} & options.keys():
    fields[key] = min(options[key], 0.999)
  if fields['cutoffs']:
    fields['tail_order'] = source.tail_order
  if name == 'transformer_xl':
    fields['untie_biases'] = not {'r_w_bias', 'r_r_bias'} & {*state}
  if name in ('transformer_xl', 'shaw'):
    fields['memory_init'] = source.memory_init
    fields['same_length'] = source.span if options.get('same_length') else 'off'
    fields['clamp_len'] = options.get('clamp_len', 0)
  elif pre_norm:
    fields['norm_queries'] = False
  section = layout.section_of(fields)
  settings.check(section, 'model')
  return dict(vars(section)), vocab_size


def vocab_size(state: original.State) -> int:
  """V, the total number of embedding rows; 0 without an embedding."""
  tables = (x for name, x in state.items() if name.startswith(_TABLES))
  return sum(len(x) for x in tables if x.ndim)


def _shape(tensors, ndim, *names):
  """The shape of the first named tensor that exists and has `ndim` axes."""
  present = [name for name in names if name in tensors]
  for name in present:
    if tensors[name].ndim == ndim:
      return tensors[name].shape
  if present:
    axes = tensors[present[0]].ndim
    raise UserError(f'tensor {present[0]} has {axes} axes; allowed: {ndim}')
  raise UserError(f'tensor {" or ".join(names)} is missing')


def _attention(first):
  """The name of the model, by its attention tensors."""
  if _TABLE.format(0) not in first:
    raise UserError(
      f'not a Transformer-XL: tensor {_TABLE.format(0)} is missing; found: '
      f'{", ".join([*first][:5]) or "nothing"}'
    )
  if f'{_ATTENTION}.r_net.weight' in first:
    return 'transformer_xl'
  if 'r_bias' in first:
    return 'shaw'
  return 'al_rfou' if 'r_emb' in first else 'vaswani'


def _sizes(state, first, options, name):
  """The keys that give the layer sizes."""
  layers = {key.split('.')[1] for key in state if key.startswith('layers.')}
  N = options.get('n_layer', len(layers))
  (D,) = _shape(first, 1, 'layers.0.pos_ff.layer_norm.weight')
  (F,) = _shape(first, 1, 'layers.0.pos_ff.CoreNet.0.bias')
  fields = {'n_layer': N, 'd_model': D, 'd_ff': F}
  if name == 'transformer_xl':
    biases = 'r_w_bias', 'r_r_bias'
    per_layer = [f'{_ATTENTION}.{bias}' for bias in biases]
    H, K = _shape(first, 2, *biases, *per_layer)
  elif name == 'vaswani':
    width, _ = _shape(first, 2, f'{_ATTENTION}.q_net.weight')
    H = options.get('n_head')
    if H is None:
      raise UserError(
        'no tensor gives the number of heads of attention type 2; set '
        f'--n_head to a divisor of {width}'
      )
    if width % H:
      errors.refuse('--n_head', H, f'divisors of {width}')
    K = width // H
  else:
    _, fields['table_len'], H, K = _shape(first, 4, 'r_emb')
  return fields | {'n_head': H, 'd_head': K}


def _vocabulary(state, options, D):
  """V and the keys of the adaptive softmax: cutoffs, d_embed, div_val."""
  count = len([x for x in state if x.startswith(_TABLES)])
  shapes = [_shape(state, 2, _TABLE.format(i)) for i in range(count)]
  sizes, widths = zip(*shapes)
  V = sum(sizes)
  edges = options.get('cutoffs', ())
  div_val = 1
  if edges[-1:] == (V,):  # the original's modules append V to it
    edges = edges[:-1]
  if count > 1:
    edges = tuple(itertools.accumulate(sizes[:-1]))
    div_val = max(widths[0] // max(widths[1], 1), 1)
  elif 'crit.cluster_weight' in state and not edges:
    tails, _ = _shape(state, 2, 'crit.cluster_weight')
    raise UserError(
      f'no tensor gives the {tails} cutoffs of {V} words; set them, as in '
      '--cutoffs=20000,40000,200000'
    )
  elif not edges and widths[0] == D and _PROJ.format(0) in state:
    div_val = 2  # any value above 1 projects even a single bin
  if edges and edges[-1] >= V:
    errors.refuse('cutoffs', edges, f'numbers below {V}')
  d_embed = 0 if widths[0] == D else widths[0]
  return V, {'cutoffs': edges, 'd_embed': d_embed, 'div_val': div_val}


def _ties(state, options, source, bins):
  """tie_weights and tie_projs: from options, or by comparing tensors."""
  count = len(bins['cutoffs']) + 1
  several = bins['div_val'] > 1

  def tied(i, name, of):
    name, of = name.format(i), of.format(i if several else 0)
    if name not in state:
      return name.startswith(source.left_out)
    return of not in state or original.same(state[name], state[of])

  weights, projections = options.get('tie_weight'), options.get('tie_projs')
  if weights is None:
    tables = range(count if several else 1)
    weights = all(tied(i, _WEIGHT, _TABLE) for i in tables)
  if not bins['d_embed'] and not several:
    return {'tie_weights': weights}
  if projections is None:
    projections = tuple(tied(i, _OUT_PROJ, _PROJ) for i in range(count))
  return {'tie_weights': weights, 'tie_projs': projections}
