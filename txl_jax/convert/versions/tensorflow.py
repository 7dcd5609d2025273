"""The variables of the original TensorFlow code, and the original state dict.

The state dict is that of the original PyTorch code, see `original`. Variables
are named as tf/model.py of github.com/kimiyoung/transformer-xl makes them. A
kernel is [in, out] there and [out, in] in PyTorch. If a projection would keep
the width and the checkpoint was trained without it (proj_same_dim=False, as for
lm1b), the state dict has the identity, which changes nothing.

The logits of the tails keep their order, which `sources` gives.
"""

import itertools
from collections.abc import Mapping

import numpy as np

from txl_jax.convert.versions import names
from txl_jax.program.errors import UserError

Tensors = Mapping[str, np.ndarray]

_LAYER = 'transformer/layer_{}/'
_EMBED = 'transformer/adaptive_embed/'
_SOFTMAX = 'transformer/adaptive_softmax/'
_BIASES = 'r_w_bias', 'r_r_bias'
_TRANSPOSED = '/kernel', '/proj_W', '/proj'  # ends of names

# {variable: tensor}, of all models.
_NAMES = {
  _LAYER + 'rel_attn/qkv/kernel': 'layers.{}.dec_attn.qkv_net.weight',
  _LAYER + 'rel_attn/r/kernel': 'layers.{}.dec_attn.r_net.weight',
  _LAYER + 'rel_attn/o/kernel': 'layers.{}.dec_attn.o_net.weight',
  _LAYER + 'rel_attn/LayerNorm/gamma': 'layers.{}.dec_attn.layer_norm.weight',
  _LAYER + 'rel_attn/LayerNorm/beta': 'layers.{}.dec_attn.layer_norm.bias',
  _LAYER + 'ff/layer_1/kernel': 'layers.{}.pos_ff.CoreNet.0.weight',
  _LAYER + 'ff/layer_1/bias': 'layers.{}.pos_ff.CoreNet.0.bias',
  _LAYER + 'ff/layer_2/kernel': 'layers.{}.pos_ff.CoreNet.3.weight',
  _LAYER + 'ff/layer_2/bias': 'layers.{}.pos_ff.CoreNet.3.bias',
  _LAYER + 'ff/LayerNorm/gamma': 'layers.{}.pos_ff.layer_norm.weight',
  _LAYER + 'ff/LayerNorm/beta': 'layers.{}.pos_ff.layer_norm.bias',
  **{f'transformer/{bias}': bias for bias in _BIASES},
  _SOFTMAX + 'cutoff_0/cluster_W': 'crit.cluster_weight',
  _SOFTMAX + 'cutoff_0/cluster_b': 'crit.cluster_bias',
}
# Of an embedding whose bins have tables of their own (div_val > 1), or one.
_BINS = {
  _EMBED + 'cutoff_{}/lookup_table': 'word_emb.emb_layers.{}.weight',
  _EMBED + 'cutoff_{}/proj_W': 'word_emb.emb_projs.{}',
}
_ONE_TABLE = {
  _EMBED + 'lookup_table': 'word_emb.emb_layers.0.weight',
  _EMBED + 'proj_W': 'word_emb.emb_projs.0',
}
# Of a softmax with tails, or without.
_TAILS = {
  _SOFTMAX + 'cutoff_{}/b': 'crit.out_layers.{}.bias',
  _SOFTMAX + 'cutoff_{}/proj': 'crit.out_projs.{}',
}
_NO_TAILS = {_SOFTMAX + 'bias': 'crit.out_layers.0.bias'}
_ALL = _NAMES | _BINS | _ONE_TABLE | _TAILS | _NO_TAILS


def cutoffs(tensors: Tensors) -> tuple[int, ...]:
  """The cutoffs, which the state dict may not tell; () if there are none."""
  biases = _numbered(dict(tensors), _SOFTMAX + 'cutoff_{}/b')
  return tuple(itertools.accumulate(x.size for x in biases[:-1]))


def to_original(tensors: Tensors) -> dict[str, np.ndarray]:
  """The state dict of variables, without what is tied.

  u and v of each layer have the names of Hugging Face, for the original PyTorch
  code has none. UserError: there are variables of no Transformer-XL, all of
  which it names. Variables that are missing are missing in the state dict.
  """
  turned = {
    k: x.T if k.endswith(_TRANSPOSED) else x for k, x in tensors.items()
  }
  state = names.renamed(turned, lambda name: names.by_table(_ALL, name))
  if unknown := [name for name in tensors if name in state]:
    raise UserError(
      'variables of no Transformer-XL of the original code: '
      f'{names.listed(unknown)}'
    )
  for bias in _BIASES:
    x = state.get(bias)
    if x is not None and x.ndim == 3:
      del state[bias]
      state |= {f'layers.{n}.dec_attn.{bias}': own for n, own in enumerate(x)}
  table = state.get('word_emb.emb_layers.0.weight')
  if _EMBED + 'lookup_table' in tensors:
    if biases := _numbered(state, 'crit.out_layers.{}.bias'):
      whole = np.concatenate([x.reshape(-1) for x in biases])
      state['crit.out_layers.0.bias'] = whole
  elif table is not None and 'word_emb.emb_projs.0' not in state:
    dense = state.get('layers.0.pos_ff.CoreNet.0.weight', np.zeros([]))
    if table.ndim == dense.ndim == 2 and table.shape[1] == dense.shape[1]:
      identity = np.eye(table.shape[1], dtype=table.dtype)
      state['word_emb.emb_projs.0'] = identity
  return state


def _numbered(rest, form):
  """Tensors of names with 0, 1, 2…, which are taken out."""
  found = []
  while (name := form.format(len(found))) in rest:
    found.append(rest.pop(name))
  return found
