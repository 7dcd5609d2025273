"""The section `model` of a config for a state dict in the original's form.

Most follows from the shapes; the rest comes from a config next to the weights,
or the user, in options named like the original code's arguments.

Letters are those of `layout`.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from txl_jax import models
from txl_jax.convert import layout, original
from txl_jax.convert.options import FLAG, origin, unsaid
from txl_jax.convert.sources import Source
from txl_jax.program import settings
from txl_jax.program.errors import UserError

# Of the published recipes; where the width of all bins is one, tensors tell
# only how many bins there are.
_CUTOFFS = {
  267_735: (20_000, 40_000, 200_000),
  793_470: (60_000, 100_000, 640_000),
  793_471: (60_000, 100_000, 640_000),
}
_TIES = 'whether the tensors are the same'
_TABLE, _WEIGHT = 'word_emb.emb_layers.{}.weight', 'crit.out_layers.{}.weight'
_ATTENTION = 'layers.0.dec_attn'
_PROJ, _OUT_PROJ = 'word_emb.emb_projs.{}', 'crit.out_projs.{}'


def model_of(
  state: original.State, options: Mapping[str, Any], source: Source
) -> tuple[dict[str, Any], int, dict[str, str]]:
  """The section `model` of a state dict and the options given with it.

  It is complete and checked; and with it go V and {key: where its value is
  from}, where not the shapes. UserError: it is not a Transformer-XL, or an
  option is missing or wrong.
  """
  # Each layer's tensors under the names of layer 0, which may lack some.
  first = {}
  for key, x in state.items():
    first.setdefault(re.sub(r'^layers\.\d+\.', 'layers.0.', key), x)
  name = _attention(first, options)
  sizes = _sizes(state, first, options, name)
  vocab_size, vocabulary, guess = _vocabulary(
    state, options, source, sizes['d_model']
  )
  fields = {'name': name, **sizes, **vocabulary}
  notes = {'cutoffs': guess} if guess else {}

  def say(key, value, note):
    fields[key], notes[key] = value, note

  def from_there(option):
    return origin(options, option) or unsaid(option)

  _ties(state, options, source, fields, say)
  if name == 'transformer_xl':
    untied = not {'r_w_bias', 'r_r_bias'} & {*state}
    say('untie_biases', untied, 'whether layers have pairs of their own')
  pre_norm = bool(options.get('pre_lnorm'))
  say('pre_norm', pre_norm, from_there('pre_lnorm'))
  for key in 'dropout', 'dropatt':
    if key in options:
      say(key, min(options[key], 0.999), origin(options, key))
  by_source = f'as {source.title} has it'
  of_eps = origin(options, 'layer_norm_epsilon') or by_source
  say('ln_eps', options.get('layer_norm_epsilon', source.ln_eps), of_eps)
  if fields['cutoffs']:
    say('tail_order', source.tail_order, by_source)
  if name in ('transformer_xl', 'shaw'):
    say('memory_init', source.memory_init, by_source)
    if options.get('same_length'):
      of_span = f'{from_there("same_length")}; {by_source}'
      say('same_length', source.span, of_span)
    else:
      say('same_length', 'off', from_there('same_length'))
    say('clamp_len', options.get('clamp_len', 0), from_there('clamp_len'))
  elif pre_norm:
    say('norm_queries', False, by_source)
  declared = models.MODELS[name].Config
  fields = {**settings.defaults(declared), **fields}
  settings.check({'model': declared}, {'model': fields})
  return fields, vocab_size, notes


def _shape(found, ndim, *names):
  """The shape of the first of these tensors that is there."""
  for name in names:
    if name in found and found[name].ndim == ndim:
      return found[name].shape
  there = [name for name in names if name in found]
  if there:
    raise UserError(f'tensors {there[0]} have no {ndim} axes')
  raise UserError(f'tensors {", ".join(names)} are missing')


def _attention(first, options):
  """Which model it is, by its tensors; UserError if an option has another."""
  if _TABLE.format(0) not in first:
    raise UserError(
      f'there is no tensor {_TABLE.format(0)}, as every Transformer-XL of the '
      f'original code has; found: {", ".join([*first][:5]) or "nothing"}'
    )
  # By several, for a file may lack one of them.
  qkv = f'{_ATTENTION}.qkv_net.weight' in first
  shaw = 'r_bias' in first or (qkv and 'r_emb' in first)
  if f'{_ATTENTION}.r_net.weight' in first or (qkv and not shaw):
    name = 'transformer_xl'
  elif shaw:
    name = 'shaw'
  else:
    name = 'al_rfou' if 'r_emb' in first else 'vaswani'
  kind, told = layout.ATTENTION[name], options.get('attn_type')
  if told is not None and told != kind:
    raise UserError(
      f'attn_type is {told}, and the tensors are those of {kind} ({name})'
    )
  return name


def _sizes(state, first, options, name):
  """The sizes of the layers."""
  layers = {key.split('.')[1] for key in state if key[:7] == 'layers.'}
  (D,) = _shape(first, 1, 'layers.0.pos_ff.layer_norm.weight')
  (F,) = _shape(first, 1, 'layers.0.pos_ff.CoreNet.0.bias')
  fields = {
    'n_layer': options.get('n_layer', len(layers)),
    'd_model': options.get('d_model', D),
    'd_ff': options.get('d_inner', F),
  }
  if name == 'transformer_xl':
    biases = 'r_w_bias', 'r_r_bias'
    own = (f'{_ATTENTION}.{bias}' for bias in biases)
    H, K = _shape(first, 2, *biases, *own)
  elif name == 'vaswani':
    width, _ = _shape(first, 2, f'{_ATTENTION}.q_net.weight')
    H = options.get('n_head')
    if H is None:
      raise UserError(
        'the heads of attention type 2 are in no tensor; allowed: --n_head, a '
        f'divisor of {width}'
      )
    if width % H:
      settings.refuse('--n_head', H, f'divisors of {width}')
    return fields | {'n_head': H, 'd_head': width // H}
  else:
    _, fields['table_len'], H, K = _shape(first, 4, 'r_emb')
  return fields | {
    'n_head': options.get('n_head', H), 'd_head': options.get('d_head', K)
  }  # fmt: skip


def _vocabulary(state, options, source, D):
  """V; the bins: cutoffs, d_embed, div_val; and what is said of a guess."""
  count = len([x for x in state if x.startswith(_TABLE.partition('{}')[0])])
  shapes = [_shape(state, 2, _TABLE.format(i)) for i in range(count)]
  sizes, widths = zip(*shapes)
  V, told, guess = sum(sizes), options.get('cutoffs'), ''
  if told and told[-1] == V:  # as the modules of the original keep them
    told = told[:-1]
  tails, edges, div_val = 0, (), options.get('div_val')
  if count > 1:
    edges = tuple(itertools.accumulate(sizes[:-1]))
    div_val = div_val or widths[0] // max(widths[1], 1)
  else:
    if 'crit.cluster_weight' in state:
      tails, _ = _shape(state, 2, 'crit.cluster_weight')
    # Without tails it changes nothing, and files may say it.
    if (div_val or 1) > 1 and (tails or origin(options, 'div_val') == FLAG):
      settings.refuse('div_val', div_val, '1 where all words are in one table')
    div_val = 1
    if tails and told is None:
      cutoffs = _CUTOFFS.get(V, ())
      edges = tuple(x - source.before_cutoffs for x in cutoffs)
      guess = f'as published for {V:,} words; --cutoffs sets others'
    if tails and not told and len(edges) != tails:
      raise UserError(
        f'the {tails} cutoffs of {V} words are in no tensor; allowed: '
        '--cutoffs, as --cutoffs=20000,40000,200000'
      )
  if told is not None:
    edges = told
  if edges and edges[-1] >= V:
    settings.refuse('cutoffs', edges, f'numbers below {V}')
  width = options.get('d_embed') or widths[0]
  fields = {
    'cutoffs': edges,
    'd_embed': 0 if width == D else width,
    'div_val': div_val,
  }
  return options.get('n_token') or V, fields, guess


def _ties(state, options, source, fields, say):
  """tie_weights and tie_projs: as is said, or as equal tensors show."""
  bins, several = len(fields['cutoffs']) + 1, fields['div_val'] > 1

  def tied(i, name, of):
    name, of = name.format(i), of.format(i if several else 0)
    if name not in state:
      return name.startswith(source.left_out)
    return of not in state or original.same(state[name], state[of])

  weights = options.get('tie_weight')
  if weights is None:
    tables = range(bins if several else 1)
    weights = all(tied(i, _WEIGHT, _TABLE) for i in tables)
  say('tie_weights', weights, origin(options, 'tie_weight') or _TIES)
  if not fields['d_embed'] and not several:
    return
  ties, from_there = options.get('tie_projs'), origin(options, 'tie_projs')
  if ties and len(ties) != bins and from_there == FLAG:
    settings.refuse('--tie_projs', ties, f'{bins} of true and false')
  if ties is None or len(ties) != bins:
    ties = tuple(tied(i, _OUT_PROJ, _PROJ) for i in range(bins))
    from_there = _TIES
  say('tie_projs', tuple(ties), from_there)
