"""The section `model` of a config for a state dict in the original's form.

Most follows from the shapes; the rest comes from a config next to the weights,
or the user, in `Options` named like the original code's arguments.

Letters are those of `layout`.
"""

import collections
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

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
# Where D can be read, see `_Shapes.size`.
_D = (
  (r'layers\.\d+\.pos_ff\.CoreNet\.0\.weight', 1, 2),
  (r'layers\.\d+\.pos_ff\.layer_norm\.weight', 0, 1),
)


class Model(NamedTuple):
  """What is known about the model of a state dict."""

  fields: dict[str, Any]  # the section `model`, complete and checked
  vocab_size: int
  notes: dict[str, str]  # {key: where its value is from}, where not the shapes

  @property
  def section(self) -> Any:
    """The fields as the dataclass of their model."""
    return settings.read(models.MODELS[self.fields['name']].Config, self.fields)


def model_of(
  state: original.State, options: Mapping[str, Any], source: Source
) -> Model:
  """The Model of a state dict and the options given with it.

  UserError: it is not a Transformer-XL, or an option is missing or wrong.
  """
  shapes = _Shapes(state, options)
  name = shapes.attention()
  vocab_size, vocabulary, guess = _vocabulary(shapes, source)
  fields = {'name': name, **_sizes(shapes, name), **vocabulary}
  notes = {'cutoffs': guess} if guess else {}

  def say(key, value, note):
    fields[key], notes[key] = value, note

  _ties(shapes, fields, source, say)
  if name == 'transformer_xl':
    untied = not {'r_w_bias', 'r_r_bias'} & {*state}
    say('untie_biases', untied, 'whether layers have pairs of their own')
  pre_norm = bool(options.get('pre_lnorm'))
  from_there = origin(options, 'pre_lnorm') or unsaid('pre_lnorm')
  say('pre_norm', pre_norm, from_there)
  for key in 'dropout', 'dropatt':
    if key in options:
      rate = min(max(float(options[key]), 0.0), 0.999)
      say(key, rate, origin(options, key))
  by_source = f'as {source.title} has it'
  eps = options.get('layer_norm_epsilon')
  if eps is None:
    say('ln_eps', source.ln_eps, by_source)
  else:
    say('ln_eps', float(eps), origin(options, 'layer_norm_epsilon'))
  if fields['cutoffs']:
    say('tail_order', source.tail_order, by_source)
  if name in ('transformer_xl', 'shaw'):
    say('memory_init', source.memory_init, by_source)
    same = options.get('same_length')
    from_there = origin(options, 'same_length') or unsaid('same_length')
    span = f'{from_there}; {by_source}' if same else from_there
    say('same_length', source.span if same else 'off', span)
    from_there = origin(options, 'clamp_len') or unsaid('clamp_len')
    say('clamp_len', options.get('clamp_len', 0), from_there)
  elif fields.get('pre_norm'):
    say('norm_queries', False, by_source)
  declared = models.MODELS[name].Config
  fields = {**settings.defaults(declared), **fields}
  settings.check({'model': declared}, {'model': fields})
  return Model(fields, vocab_size, notes)


class _Shapes:
  """The shapes of a state dict, and what options say about them."""

  def __init__(self, state, options):
    self.state, self.options = state, options
    if not any(name.startswith('word_emb.emb_layers.') for name in state):
      some = ', '.join([*state][:5]) or 'nothing'
      raise UserError(
        'there is no tensor word_emb.emb_layers.0.weight, as every '
        f'Transformer-XL of the original code has; found: {some}'
      )

  def has(self, pattern):
    """Whether a tensor has a name like that."""
    return any(re.fullmatch(pattern, name) for name in self.state)

  def size(self, option, *places):
    """A size: as the option says, or else that of most tensors so named.

    Places are (names, axis, number of axes); the first that has tensors counts,
    for a file may lack some.
    """
    if (told := self.options.get(option)) is not None:
      return _whole(option, told)
    there = []
    for pattern, axis, ndim in places:
      names = [x for x in self.state if re.fullmatch(pattern, x)]
      found = [self.state[x].shape for x in names]
      count = collections.Counter(s[axis] for s in found if len(s) == ndim)
      if count:
        return count.most_common(1)[0][0]
      there += [(pattern, ndim)] if names else []
    if there:
      pattern, ndim = there[0]
      raise UserError(f'tensors {_readable(pattern)} have no {ndim} axes')
    every = ', '.join(_readable(pattern) for pattern, *_ in places)
    raise UserError(f'tensors {every} are missing')

  def numbered(self, pattern):
    """How many numbers, from 0 on, occur in tensor names like that."""
    found = (re.fullmatch(pattern, name) for name in self.state)
    return len({match[1] for match in found if match})

  def attention(self):
    """Which model it is, by its tensors, or as the option says if that fits."""
    of_layer = r'layers\.\d+\.dec_attn\.'
    # By several, for a file may lack one of them.
    qkv = self.has(of_layer + r'qkv_net\.weight')
    shaw = self.has('r_bias') or (qkv and self.has('r_emb'))
    if self.has(of_layer + r'r_net\.weight') or (qkv and not shaw):
      name = 'transformer_xl'
    elif shaw:
      name = 'shaw'
    else:
      name = 'al_rfou' if self.has('r_emb') else 'vaswani'
    kind, told = layout.ATTENTION[name], self.options.get('attn_type')
    if told is not None and told != kind:
      raise UserError(
        f'attn_type is {told}, and the tensors are those of {kind} ({name})'
      )
    return name


def _sizes(shapes, name):
  """The sizes of the layers."""
  n_layer = shapes.options.get('n_layer')
  if n_layer is None:
    n_layer = shapes.numbered(r'layers\.(\d+)\..*')
  dense = r'layers\.\d+\.pos_ff\.CoreNet\.0\.{}'
  fields = {
    'n_layer': _whole('n_layer', n_layer),
    'd_model': shapes.size('d_model', *_D),
    'd_ff': shapes.size(
      'd_inner', (dense.format('weight'), 0, 2), (dense.format('bias'), 0, 1)
    ),
  }
  of_layer = r'(layers\.\d+\.dec_attn\.)?{}'
  of_heads = {  # names, and the axis of heads, before that of their widths
    'transformer_xl': [
      (of_layer.format('r_w_bias'), 0),
      (of_layer.format('r_r_bias'), 0),
    ],
    'shaw': [('r_w_bias', 1), ('r_emb', 2)],
    'al_rfou': [('r_emb', 2)],
  }
  if name == 'vaswani':
    of_layer = r'layers\.\d+\.dec_attn\.{}_net\.weight'
    width = shapes.size(
      '', (of_layer.format('q'), 0, 2), (of_layer.format('o'), 1, 2)
    )
    H = shapes.options.get('n_head')
    if H is None:
      raise UserError(
        'the heads of attention type 2 are in no tensor; allowed: --n_head, a '
        f'divisor of {width}'
      )
    if width % _whole('n_head', H):
      settings.refuse('--n_head', H, f'divisors of {width}')
    fields |= {'n_head': H, 'd_head': width // H}
  else:
    for field, more in ('n_head', 0), ('d_head', 1):
      places = [(x, axis + more, axis + 2) for x, axis in of_heads[name]]
      fields[field] = shapes.size(field, *places)
  if name in ('shaw', 'al_rfou'):
    fields['table_len'] = shapes.size('', ('r_emb', 1, 4))
  return fields


def _vocabulary(shapes, source):
  """V; the bins: cutoffs, d_embed, div_val; and what is said of a guess."""
  table = r'word_emb\.emb_layers\.{}\.weight'
  count = shapes.numbered(table.format(r'(\d+)'))
  sizes, widths = (
    [shapes.size('', (table.format(i), axis, 2)) for i in range(count)]
    for axis in (0, 1)
  )
  V, told, guess = sum(sizes), shapes.options.get('cutoffs'), ''
  if told and told[-1] == V:  # as the modules of the original keep them
    told = told[:-1]
  if count > 1:
    edges = np.cumsum(sizes)[:-1].tolist()
    div_val = widths[0] // max(widths[1], 1)
    div_val = shapes.options.get('div_val') or div_val
  else:
    tails, edges, div_val = 0, (), 1
    if 'crit.cluster_weight' in shapes.state:
      tails = shapes.size('', (r'crit\.cluster_weight', 0, 2))
    # Without tails it changes nothing, and files may say it.
    wrong = shapes.options.get('div_val') or 1
    if wrong > 1 and (tails or origin(shapes.options, 'div_val') == FLAG):
      settings.refuse('div_val', wrong, '1 where all words are in one table')
    if tails and told is None:
      edges = [x - source.before_cutoffs for x in _CUTOFFS.get(V, ())]
      guess = f'as published for {V:,} words; --cutoffs sets others'
    if tails and not told and len(edges) != tails:
      raise UserError(
        f'the {tails} cutoffs of {V} words are in no tensor; allowed: '
        '--cutoffs, as --cutoffs=20000,40000,200000'
      )
  if told is not None:
    edges = [_whole('cutoffs', x) for x in told]
  if edges and edges[-1] >= V:
    settings.refuse('cutoffs', tuple(edges), f'numbers below {V}')
  D = shapes.size('d_model', *_D)
  width = shapes.options.get('d_embed') or widths[0]
  fields = {
    'cutoffs': tuple(edges),
    'd_embed': 0 if width == D else _whole('d_embed', width),
    'div_val': _whole('div_val', div_val),
  }
  return shapes.options.get('n_token') or V, fields, guess


def _readable(pattern):
  """A name as a pattern of names has it, of the first layer and bin."""
  one = re.sub(r'\(.*?\)\?', '', pattern)  # what need not be there
  return one.replace(r'\d+', '0').replace('\\', '')


def _ties(shapes, fields, source, say):
  """tie_weights and tie_projs: as is said, or as equal tensors show."""
  state, options = shapes.state, shapes.options
  bins = len(fields['cutoffs']) + 1

  def tied(name, of):
    if name not in state:
      return name.startswith(source.left_out)
    return of not in state or original.same(state[name], state[of])

  weights = options.get('tie_weight')
  if weights is None:
    count = bins if fields['div_val'] > 1 else 1
    weights = all(
      tied(f'crit.out_layers.{i}.weight', f'word_emb.emb_layers.{i}.weight')
      for i in range(count)
    )
  from_there = origin(options, 'tie_weight') or _TIES
  say('tie_weights', bool(weights), from_there)
  if not fields['d_embed'] and fields['div_val'] == 1:
    return
  projections = options.get('tie_projs')
  from_there = origin(options, 'tie_projs') or _TIES
  if projections and len(projections) != bins and from_there == FLAG:
    settings.refuse('--tie_projs', projections, f'{bins} of true and false')
  if projections is None or len(projections) != bins:
    from_there = _TIES
    of = [i if fields['div_val'] > 1 else 0 for i in range(bins)]
    projections = [
      tied(f'crit.out_projs.{i}', f'word_emb.emb_projs.{of[i]}')
      for i in range(bins)
    ]
  ties = tuple(map(bool, projections))
  say('tie_projs', ties, from_there)


def _whole(name, value):
  """A size from a file or flag; UserError unless it is a whole number."""
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    settings.refuse(name, value, 'a whole number from 1 on')
  return value
