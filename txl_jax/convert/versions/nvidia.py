"""The state dict of NVIDIA's version, in the original's form.

Its softmax holds weights and biases in lists of their own, has no weights where
they are tied, and a second time the projections of the embedding
(utils/proj_adaptive_softmax.py).
"""

import numpy as np

from txl_jax.convert.versions import names, original
from txl_jax.program.errors import UserError

_NAMES = {
  'crit.out_layers_weights.{}': 'crit.out_layers.{}.weight',
  'crit.out_layers_biases.{}': 'crit.out_layers.{}.bias',
}


def to_original(state: original.State) -> dict[str, np.ndarray]:
  """The state dict with the original's names, without what is tied.

  UserError: a shared projection is not that of the embedding.
  """
  own = {}
  for name, x in state.items():
    of = name.replace('crit.shared_out_projs.', 'word_emb.emb_projs.')
    if of == name:
      own[name] = x
    elif of not in state or not original.same(x, state[of]):
      raise UserError(f'{name} is not {of}, which it shares')
  return names.renamed(own, lambda name: names.by_table(_NAMES, name))
