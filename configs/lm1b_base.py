"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), One Billion Word, base.

  python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt
  python -m txl_jax.main --config=lm1b_base

Published: 23.5 perplexity on the test split (T 32, M 128, same_length); 0.46B
parameters, here 469,020,530 with shared biases u and v (469,059,442 with biases
per layer: --config.model.untie_biases=True).
Hardware: not published. Compiled for one GPU in bfloat16 (docs/scaling.md), a
step takes 16 GiB, which fits a card of 24 GB; not timed here.
The public script has 18 layers and F 4096, with which a user reports 30.25; its
authors give 20 and 6144 (issue 69 of the original), the values used here.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'lm1b'
  c.model.n_layer = 20
  c.model.d_model = 1024
  c.model.n_head = 8
  c.model.d_head = 128
  c.model.d_ff = 6144
  c.model.mem_len = 32
  c.model.dropout = 0.0
  c.model.dropatt = 0.0
  c.model.cutoffs = (60_000, 100_000, 640_000)
  c.model.div_val = 4
  c.model.tie_projs = (False, False, False, False)
  c.train.steps = 500_000
  c.train.batch_size = 224
  c.train.segment_len = 32
  c.optim.lr = 0.00025
  c.optim.warmup = 20_000
  c.eval.split = 'test'
  c.eval.segment_len = 32
  c.generate.segment_len = 32
  common.at_test_time(c, mem_len=128, same_length='M')
  return c
