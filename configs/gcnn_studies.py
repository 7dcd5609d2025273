"""The studies of the GCNN paper (Dauphin et al. 2017), on a CPU in minutes.

  python -m txl_jax.main --config=gcnn_studies:glu
  python -m txl_jax.main --config=gcnn_studies:relu
  python -m txl_jax.main --config=gcnn_studies:no_weight_norm

Small counterparts of its comparisons, each with what is published (arXiv
1612.08083, recalled, not checked again):

- gates, and layers without one (Figures 3 and 5): GLU, gated tanh, ReLU, tanh,
  linear and bilinear. GLU is best.
- training without clipping and without weight normalisation, which both speed
  up convergence (Figure 6); here also without either of them.
- the context, the number of bytes that a position sees (Figure 4), by depth and
  by kernel. A larger one is better, with little gain beyond 20 words. Five
  layers with a kernel of 4 see 16 bytes (`glu`); 3, 8 and 12 layers see 10, 25
  and 37 (`depth_3` and so on); with another kernel, five layers see 6, 11, 26
  and 36 (`context_6` and so on).

All are trained as in the paper: Nesterov momentum 0.99, gradients clipped at
0.1. Its learning rates are drawn uniformly from [1, 2]; ours is 1, as in its
authors' public code (--config.optim.lr=1.5 sets another). All models match the
395,392 parameters of `glu` within 1 %: layers without a gate are wider, deeper
models and those with a longer kernel narrower. Hardware: a CPU, one to six
minutes each. docs/results.md has the figures, also for other rates and Adam.
At rate 1, `bilinear` and the studies without clipping end with an error after
some steps; `bilinear` learns with --config.optim.lr=0.3, the others with 0.1.

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
# The same for other depths: a position sees 3 layers + 1 bytes.
DEPTHS = {
  'depth_3': '[4,132]*2 [4,96]',
  'depth_8': '[4,71]*7 [4,96]',
  'depth_12': '[4,58]*11 [4,96]',
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
  'no_clip_no_weight_norm': {'optim.clip': 0.0, 'model.weight_norm': False},
  **{x: {'model.blocks': blocks} for x, blocks in (CONTEXTS | DEPTHS).items()},
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
