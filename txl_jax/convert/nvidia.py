"""The state dict of NVIDIA's version, in the original's form.

Its softmax holds weights and biases in lists of their own, has no weights where
they are tied, and a second time the projections of the embedding
(utils/proj_adaptive_softmax.py). The table of Al-Rfou et al. has no heads.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.convert import layout, names, original
from txl_jax.program.errors import UserError

_NAMES = {
  'crit.out_layers_weights.{}': 'crit.out_layers.{}.weight',
  'crit.out_layers_biases.{}': 'crit.out_layers.{}.bias',
}
_BACK = {ours: theirs for theirs, ours in _NAMES.items()}
_PROJECTIONS = 'word_emb.emb_projs.'
_SHARED = 'crit.shared_out_projs.'


def to_original(
  state: original.State, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The state dict with the original's names, without what is tied.

  `from_original` is its inverse.

  UserError: a shared projection is not that of the embedding, or n_head, which
  Al-Rfou's model needs, is missing from the options.
  """
  own = {}
  for name, x in state.items():
    of = name.replace(_SHARED, _PROJECTIONS)
    if of == name:
      own[name] = x
    elif of not in state or not original.same(x, state[of]):
      raise UserError(f'{name} is not {of}, which it shares')
  found = names.renamed(own, lambda name: names.by_table(_NAMES, name))
  table = found.get('r_emb')
  if table is not None and table.ndim == 3:
    H, D = options.get('n_head'), table.shape[2]
    if not H or D % H:
      raise UserError(
        'the heads of attention type 3 are in no tensor; allowed: --n_head, a '
        f'divisor of {D}'
      )
    found['r_emb'] = table.reshape(*table.shape[:2], H, D // H)
  return found


def from_original(state: original.State, section: Any) -> dict[str, np.ndarray]:
  """The state dict with its names, of a state that `original.from_params` made.

  The section is `model` of its config.
  """
  own = layout.without_copies(state, section)
  found = names.renamed(own, lambda name: names.by_table(_BACK, name))
  for name in own:
    if name.startswith(_PROJECTIONS):
      found[name.replace(_PROJECTIONS, _SHARED)] = own[name]
  if section.name == 'al_rfou':
    N, L = found['r_emb'].shape[:2]
    found['r_emb'] = found['r_emb'].reshape(N, L, -1)
  return found
