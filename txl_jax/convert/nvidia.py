"""The state dict of NVIDIA's version, in the original's form.

Its softmax holds weights and biases in lists of their own, has no weights where
they are tied, and a second time the projections of the embedding
(utils/proj_adaptive_softmax.py). The table of Al-Rfou et al. has no heads.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_jax.convert import layout, names, original
from txl_jax.program.errors import UserError

_NAMES = {
  'crit.out_layers_weights.': 'crit.out_layers.{}.weight',
  'crit.out_layers_biases.': 'crit.out_layers.{}.bias',
}
_PROJECTIONS = 'word_emb.emb_projs.'
_SHARED = 'crit.shared_out_projs.'


def is_state(state: Any) -> bool:
  """Whether tensors have the names of its model."""
  return any(name.startswith('crit.out_layers_biases.') for name in state)


def to_original(
  state: original.State, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The state dict with the original's names, and the projections it shares.

  `from_original` names them back, and leaves out what is tied.

  UserError: a shared projection is not that of the embedding, or n_head, which
  Al-Rfou's model needs, is missing from the options.
  """
  shared = [name for name in state if name.startswith(_SHARED)]
  for name in shared:
    of = name.replace(_SHARED, _PROJECTIONS)
    if of not in state or not original.same(state[name], state[of]):
      raise UserError(f'{name} is not {of}, which it shares')
  own = {name: x for name, x in state.items() if name not in shared}
  found = names.renamed(own, _original)
  if shared:
    _share(found, len(shared), options.get('tie_projs') or ())
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


def _original(name):
  for theirs, ours in _NAMES.items():
    if match := re.fullmatch(re.escape(theirs) + r'(\d+)', name):
      return ours.format(match[1])
  return name


def _share(found, shared, tied):
  """Adds the projections of the softmax that are those of the embedding."""
  bins = 1 + len(found.get('crit.cluster_weight', ()))
  for i in range(bins):
    of = f'{_PROJECTIONS}{i if shared > 1 else 0}'
    if of in found and (len(tied) != bins or tied[i]):
      found.setdefault(f'crit.out_projs.{i}', found[of])


def from_original(state: original.State, section: Any) -> dict[str, np.ndarray]:
  """The state dict with its names, of a state that `original.from_params` made.

  The section is `model` of its config.
  """
  tied, found = layout.copies(section), {}
  for name, x in state.items():
    if name in tied:
      continue
    for theirs, ours in _NAMES.items():
      pattern = re.escape(ours).replace(re.escape('{}'), r'(\d+)')
      if match := re.fullmatch(pattern, name):
        name = f'{theirs}{match[1]}'
    found[name] = x
    if name.startswith(_PROJECTIONS):
      found[name.replace(_PROJECTIONS, _SHARED)] = x
  if section.name == 'al_rfou':
    N, L = found['r_emb'].shape[:2]
    found['r_emb'] = found['r_emb'].reshape(N, L, -1)
  return found
