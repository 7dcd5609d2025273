"""The studies of the GCNN paper (Dauphin et al. 2017), on a CPU in minutes.

  python -m txl_jax.main --config=gcnn_studies:glu
  python -m txl_jax.main --config=gcnn_studies:relu
  python -m txl_jax.main --config=gcnn_studies:no_weight_norm

Small counterparts of its comparisons of gates (GLU, gated tanh, ReLU, tanh), of
a linear and a bilinear layer, of training without clipping or weight
normalisation, and of the number of bytes that a position sees: 16 in `glu`, and
6, 11, 26 and 36 with another kernel in its five layers, as in `context_6`. All
are trained as in the paper: Nesterov momentum 0.99, gradients clipped at 0.1.
They match the 395,392 parameters of `glu` within 1 %: layers without a gate are
wider, layers with a longer kernel narrower. docs/results.md has the figures,
also for other rates and for Adam.
At their rate, 1, `bilinear` and `no_clip` end with an error after some steps;
`bilinear` learns with --config.optim.lr=0.3.

Not from the paper: the text, the sources of Python's own standard library, and
the size, 5 layers of width 96.
"""

from txl_jax.configs import common, pystdlib_ablations

# Blocks with and without a gate, with about as many parameters.
GATED, PLAIN = '[4,96]*5', '[4,140]*4 [4,96]'
# The same for other kernels: a position sees 5 (kernel - 1) + 1 bytes.
CONTEXTS = {
  'context_6': '[2,140]*4 [2,96]',
  'context_11': '[3,110]*4 [3,96]',
  'context_26': '[6,72]*4 [6,96]',
  'context_36': '[8,60]*4 [8,96]',
}
# The keys changed by each study.
STUDIES = {
  'glu': {},
  'gtu': {'model.gate': 'gtu'},
  'relu': {'model.gate': 'relu'},
  'tanh': {'model.gate': 'tanh'},
  'bilinear': {'model.gate': 'bilinear'},
  'linear': {'model.gate': 'linear'},
  'no_clip': {'optim.clip': 0.0},
  'no_weight_norm': {'model.weight_norm': False},
  **{name: {'model.blocks': blocks} for name, blocks in CONTEXTS.items()},
}
VARIANTS = tuple(STUDIES)


def get_config(variant='glu'):
  """The config of a study."""
  common.check_variant(variant, VARIANTS)
  c = pystdlib_ablations.get_config('gcnn')
  c.optim.name = 'sgd'
  c.optim.momentum = 0.99
  c.optim.nesterov = True
  c.optim.lr = 1.0
  c.optim.clip = 0.1
  plain = variant in ('relu', 'tanh', 'linear')
  c.model.blocks = PLAIN if plain else GATED
  c.update_from_flattened_dict(STUDIES[variant])
  return c
