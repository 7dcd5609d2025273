"""Converts variables of the original TensorFlow code into the original's form.

That form is the state dict of the PyTorch code, see `original`. Variable names
are from tf/model.py of github.com/kimiyoung/transformer-xl. A kernel is [in,
out] there and [out, in] in PyTorch. proj_same_dim=False, as for lm1b, omits a
projection that keeps the width; the state dict then has an identity matrix. The
order of the tail logits is kept; `sources` records it.
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
_TRANSPOSED = '/kernel', '/proj_W', '/proj'  # suffixes of names

# {variable: tensor} of every model.
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
# An embedding with a table per bin (div_val > 1), or with a single table.
_BINS = {
  _EMBED + 'cutoff_{}/lookup_table': 'word_emb.emb_layers.{}.weight',
  _EMBED + 'cutoff_{}/proj_W': 'word_emb.emb_projs.{}',
}
_ONE_TABLE = {
  _EMBED + 'lookup_table': 'word_emb.emb_layers.0.weight',
  _EMBED + 'proj_W': 'word_emb.emb_projs.0',
}
# A softmax with tails, or without.
_TAILS = {
  _SOFTMAX + 'cutoff_{}/b': 'crit.out_layers.{}.bias',
  _SOFTMAX + 'cutoff_{}/proj': 'crit.out_projs.{}',
}
_NO_TAILS = {_SOFTMAX + 'bias': 'crit.out_layers.0.bias'}
_ALL = _NAMES | _BINS | _ONE_TABLE | _TAILS | _NO_TAILS


def cutoffs(tensors: Tensors) -> tuple[int, ...]:
  """The cutoffs, which a state dict may not determine; () for one bin."""
  biases = _numbered(dict(tensors), _SOFTMAX + 'cutoff_{}/b')
  return tuple(itertools.accumulate(x.size for x in biases[:-1]))


def to_original(tensors: Tensors) -> dict[str, np.ndarray]:
  """The state dict of variables, without tied weights.

  Biases u and v per layer, which the original PyTorch code lacks, get Hugging
  Face's names. A missing variable is missing in the state dict too. Raises
  UserError, with all their names, if there are unknown variables.
  """
  turned = {
    k: x.T if k.endswith(_TRANSPOSED) else x for k, x in tensors.items()
  }
  state = names.renamed(turned, lambda name: names.by_table(_ALL, name))
  if unknown := [name for name in tensors if name in state]:
    raise UserError(
      f"variables unknown to the original's code: {names.listed(unknown)}"
    )
  for bias in _BIASES:
    x = state.get(bias)
    if x is not None and x.ndim == 3:
      del state[bias]
      state |= {f'layers.{n}.dec_attn.{bias}': b for n, b in enumerate(x)}
  table = state.get('word_emb.emb_layers.0.weight')
  if _EMBED + 'lookup_table' in tensors:
    if biases := _numbered(state, 'crit.out_layers.{}.bias'):
      whole = np.concatenate([x.reshape(-1) for x in biases])
      state['crit.out_layers.0.bias'] = whole
  elif table is not None and 'word_emb.emb_projs.0' not in state:
    dense = state.get('layers.0.pos_ff.CoreNet.0.weight', np.zeros([]))
    width = dense.shape[1:]
    if width and table.shape[1:] == width:
      state['word_emb.emb_projs.0'] = np.eye(width[0], dtype=table.dtype)
  return state


def _numbered(tensors, pattern):
  """Removes and returns the tensors named with the numbers 0, 1, 2…."""
  found = []
  while (name := pattern.format(len(found))) in tensors:
    found.append(tensors.pop(name))
  return found
