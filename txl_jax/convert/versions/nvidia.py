"""Converts state dicts of NVIDIA's version into the original's form.

NVIDIA's softmax (utils/proj_adaptive_softmax.py) stores weights and biases
under other names, omits tied weights, and stores shared projections again.
"""

import numpy as np

from txl_jax.convert.versions import names, original
from txl_jax.program.errors import UserError

_NAMES = {
  'crit.out_layers_weights.{}': 'crit.out_layers.{}.weight',
  'crit.out_layers_biases.{}': 'crit.out_layers.{}.bias',
}


def to_original(state: original.State) -> dict[str, np.ndarray]:
  """The state dict with the original's names, without tied weights.

  Raises UserError if a shared projection differs from the embedding's.
  """
  unshared = {}
  for name, x in state.items():
    shared = name.replace('crit.shared_out_projs.', 'word_emb.emb_projs.')
    if shared == name:
      unshared[name] = x
    elif shared not in state or not original.same(x, state[shared]):
      raise UserError(f'{name} must equal {shared}, but does not')
  return names.renamed(unshared, lambda name: names.by_table(_NAMES, name))
