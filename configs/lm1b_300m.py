"""The ablations of Dai et al. 2019 (arXiv 1901.02860) on One Billion Word.

  python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt
  python -m txl_jax.main --config=lm1b_300m
  python -m txl_jax.main --config=lm1b_300m:xl_no_recurrence

Published (Table 7): 25.2 perplexity for `xl`, 25.7 for `shaw` and 27.1 for
`xl_no_recurrence`, with 20 layers, about 0.3B parameters and 400k steps; here
300,333,686 parameters for `xl`.
Hardware: not published. Compiled for one GPU in bfloat16 (docs/scaling.md), a
step takes 13 GiB, which fits a card of 24 GB; not timed here.
Never published: the widths. D 768, 12 heads of 64 and F 5120 are our choice,
which gives 0.3B; everything else is as in lm1b_base.
"""

from txl_jax.configs import common, lm1b_base

VARIANTS = 'xl', 'shaw', 'xl_no_recurrence'


def get_config(variant='xl'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  c = lm1b_base.get_config()
  c.model.d_model = 768
  c.model.n_head = 12
  c.model.d_head = 64
  c.model.d_ff = 5120
  c.train.steps = 400_000
  return common.ablate(c, variant)
