"""The variables of the original TensorFlow code, and the original state dict.

The state dict is that of the original PyTorch code, see `original`. Variables
are named as tf/model.py of github.com/kimiyoung/transformer-xl makes them. A
kernel is [in, out] there and [out, in] in PyTorch. If a projection would keep
the width and the checkpoint was trained without it (proj_same_dim=False, as for
lm1b), the state dict has the identity, which changes nothing.

The logits of the tails keep their order, which `sources` gives.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from txl_jax.program.errors import UserError

Tensors = Mapping[str, np.ndarray]

_LAYERS = 1000
_EMBED, _SOFTMAX = (
  'transformer/adaptive_embed/',
  'transformer/adaptive_softmax/',
)
_BIASES = 'r_w_bias', 'r_r_bias'

# {variable of a layer: tensor of a layer}; those of kernels are transposed.
_OF_LAYER = {
  'rel_attn/qkv/kernel': 'dec_attn.qkv_net.weight',
  'rel_attn/r/kernel': 'dec_attn.r_net.weight',
  'rel_attn/o/kernel': 'dec_attn.o_net.weight',
  'rel_attn/LayerNorm/gamma': 'dec_attn.layer_norm.weight',
  'rel_attn/LayerNorm/beta': 'dec_attn.layer_norm.bias',
  'ff/layer_1/kernel': 'pos_ff.CoreNet.0.weight',
  'ff/layer_1/bias': 'pos_ff.CoreNet.0.bias',
  'ff/layer_2/kernel': 'pos_ff.CoreNet.3.weight',
  'ff/layer_2/bias': 'pos_ff.CoreNet.3.bias',
  'ff/LayerNorm/gamma': 'pos_ff.layer_norm.weight',
  'ff/LayerNorm/beta': 'pos_ff.layer_norm.bias',
}
_FROM_LAYER = {b: a for a, b in _OF_LAYER.items()}
_CLUSTER = {
  'crit.cluster_weight': _SOFTMAX + 'cutoff_0/cluster_W',
  'crit.cluster_bias': _SOFTMAX + 'cutoff_0/cluster_b',
}


def cutoffs(tensors: Tensors) -> tuple[int, ...]:
  """The cutoffs, which the state dict may not tell; () if there are none."""
  biases = _numbered(dict(tensors), _SOFTMAX + 'cutoff_{}/b')
  sizes = [biases[i].size for i in sorted(biases)]
  return tuple(itertools.accumulate(sizes[:-1]))


def to_original(tensors: Tensors) -> dict[str, np.ndarray]:
  """The state dict of variables, of which `from_original` makes them again.

  Tied weights are there twice, as the same array; u and v of each layer have
  the names of Hugging Face, for the original PyTorch code has none. UserError:
  there are variables of no Transformer-XL, all of which it names. Variables
  that are missing are missing in the state dict.
  """
  rest = dict(tensors)
  state = {}
  for name in tensors:
    if found := re.fullmatch(r'transformer/layer_(0|[1-9]\d{0,3})/(.+)', name):
      n, of = found.groups()
      if of in _OF_LAYER:
        x = rest.pop(name)
        x = x.T if of.endswith('/kernel') else x
        state[f'layers.{n}.{_OF_LAYER[of]}'] = x
  for bias in _BIASES:
    x = rest.pop(f'transformer/{bias}', None)
    if x is not None and x.ndim == 3 and len(x) <= _LAYERS:
      names = (f'layers.{n}.dec_attn.{bias}' for n in range(len(x)))
      state |= zip(names, x)
    elif x is not None:
      state[bias] = x
  for name, of in _CLUSTER.items():
    if of in rest:
      state[name] = rest.pop(of)
  _embeddings_to(rest, state)
  if rest:
    names = f'{", ".join(rest):.2000}'
    raise UserError(
      f'variables of no Transformer-XL of the original code: {names}'
    )
  return state


def _embeddings_to(rest, state):
  """Moves the variables of embedding and softmax to the state."""
  tables = _numbered(rest, _EMBED + 'cutoff_{}/lookup_table')
  biases = _numbered(rest, _SOFTMAX + 'cutoff_{}/b')
  projections = _numbered(rest, _EMBED + 'cutoff_{}/proj_W')
  outputs = _numbered(rest, _SOFTMAX + 'cutoff_{}/proj')
  several = bool(tables)
  if not several:
    if (table := rest.pop(_EMBED + 'lookup_table', None)) is not None:
      tables = {0: table}
    if (projection := rest.pop(_EMBED + 'proj_W', None)) is not None:
      projections = {0: projection}
    if biases and sorted(biases) == [*range(len(biases))]:
      state['crit.out_layers.0.bias'] = np.concatenate(
        [biases[i].reshape(-1) for i in sorted(biases)]
      )
    elif (bias := rest.pop(_SOFTMAX + 'bias', None)) is not None:
      state['crit.out_layers.0.bias'] = bias
  for i, table in tables.items():
    state[f'word_emb.emb_layers.{i}.weight'] = table
    state[f'crit.out_layers.{i}.weight'] = table
  if several:
    for i, bias in biases.items():
      state[f'crit.out_layers.{i}.bias'] = bias
    if 0 in tables and 0 not in projections and _keeps_width(state, tables[0]):
      projections[0] = np.eye(tables[0].shape[1], dtype=tables[0].dtype)
  for i, projection in projections.items():
    state[f'word_emb.emb_projs.{i}'] = projection.T
  for i in biases or [0]:
    tied = state.get(f'word_emb.emb_projs.{i if several else 0}')
    found = outputs[i].T if i in outputs else tied
    if found is not None:
      state[f'crit.out_projs.{i}'] = found
  for i in outputs.keys() - {*(biases or [0])}:
    state[f'crit.out_projs.{i}'] = outputs[i].T


def _numbered(rest, form):
  """{number: variable} of names like that, which are taken out."""
  pattern = re.escape(form).replace(r'\{\}', r'(0|[1-9]\d{0,2})')
  matches = [re.fullmatch(pattern, name) for name in rest]
  return {int(m[1]): rest.pop(m[0]) for m in matches if m}


def _keeps_width(state, table):
  """Whether embeddings of a table are as wide as the states."""
  inside = (x for k, x in state.items() if k.endswith('CoreNet.0.weight'))
  dense = next(inside, np.zeros([0, 0]))
  return table.ndim == dense.ndim == 2 and table.shape[1] == dense.shape[1]


def from_original(
  state: Tensors, cutoffs: Sequence[int] = ()
) -> dict[str, np.ndarray]:
  """The variables of a state dict, from which `to_original` makes it again.

  The cutoffs are needed if the bins have one width (div_val 1), since the state
  dict then has one bias for all of them. A projection is tied, and the identity
  left out, if the numbers show that. UserError: the TensorFlow code has no such
  model, or names are not those of the original.
  """
  rest = {k: x for k, x in state.items() if k != 'pos_emb.inv_freq'}
  found = {}
  for name in state:
    match = re.fullmatch(r'layers\.(0|[1-9]\d{0,3})\.(.+)', name)
    if match and match[2] in _FROM_LAYER:
      of, x = _FROM_LAYER[match[2]], rest.pop(name)
      x = x.T if of.endswith('/kernel') else x
      found[f'transformer/layer_{match[1]}/{of}'] = x
  for bias in _BIASES:
    own = _tensors(rest, f'layers.{{}}.dec_attn.{bias}')
    if own:
      found[f'transformer/{bias}'] = np.stack(own)
    elif bias in rest:
      found[f'transformer/{bias}'] = rest.pop(bias)
  for name, of in _CLUSTER.items():
    if name in rest:
      found[of] = rest.pop(name)
  _embeddings_from(rest, found, cutoffs)
  if rest:
    names = f'{", ".join(rest):.2000}'
    raise UserError(
      f'the TensorFlow code has nothing like {names}; allowed: the default '
      'attention'
    )
  return found


def _embeddings_from(rest, found, cutoffs):
  """Moves the tensors of embedding and softmax to the variables found."""
  tables = _tensors(rest, 'word_emb.emb_layers.{}.weight')
  weights = _tensors(rest, 'crit.out_layers.{}.weight')
  biases = _tensors(rest, 'crit.out_layers.{}.bias')
  projections = _tensors(rest, 'word_emb.emb_projs.{}')
  outputs = _tensors(rest, 'crit.out_projs.{}')
  if weights and not all(map(_same, weights, tables)):
    raise UserError('the output weights are no embeddings; the TensorFlow code '
                    'has them tied')  # fmt: skip
  several = len(tables) > 1
  if several:
    for i, (table, bias) in enumerate(zip(tables, biases)):
      found[f'{_EMBED}cutoff_{i}/lookup_table'] = table
      found[f'{_SOFTMAX}cutoff_{i}/b'] = bias
    projected = projections[:1] + outputs[:1]
    if projected and all(map(_is_identity, projected)):
      projections[0] = outputs[0] = None
    names = [f'{_EMBED}cutoff_{i}/proj_W' for i in range(len(projections))]
  else:
    found |= zip([_EMBED + 'lookup_table'], tables)
    found |= _biases(biases, found, cutoffs)
    names = [_EMBED + 'proj_W']
  found |= {k: x.T for k, x in zip(names, projections) if x is not None}
  for i, output in enumerate(outputs):
    tied = projections[i if several else 0] if projections else None
    if output is None or (tied is not None and _same(output, tied)):
      continue
    if not several and len(outputs) == 1:
      raise UserError('the output projection is not that of the embedding; the '
                      'TensorFlow code has them tied')  # fmt: skip
    found[f'{_SOFTMAX}cutoff_{i}/proj'] = output.T


def _biases(biases, found, cutoffs):
  """Splits one bias for all words into its variables."""
  if not biases or _CLUSTER['crit.cluster_weight'] not in found:
    return zip([_SOFTMAX + 'bias'], biases)
  tails, V = len(found[_CLUSTER['crit.cluster_weight']]), len(biases[0])
  edges = [0, *cutoffs, V]
  if len(cutoffs) != tails or sorted({*edges}) != edges:
    raise UserError(f'cutoffs are {tuple(cutoffs)}; allowed: {tails} numbers '
                    f'below {V}')  # fmt: skip
  pieces = itertools.pairwise(edges)
  return {
    f'{_SOFTMAX}cutoff_{i}/b': biases[0][a:b] for i, (a, b) in enumerate(pieces)
  }


def _tensors(rest, form):
  """Tensors of names with 0, 1, 2…, which are taken out."""
  found = []
  while (name := form.format(len(found))) in rest:
    found.append(rest.pop(name))
  return found


def _same(x, y):
  return x is y or (x.shape == y.shape and bool((x == y).all()))


def _is_identity(x):
  return x.ndim == 2 and _same(x, np.eye(*x.shape[:2], dtype=x.dtype))
