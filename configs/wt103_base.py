"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-103, base.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=wt103_base

Published: 24.0 perplexity on the test split (T 64, M 640, clamp_len 400,
same_length); a user's run of the script reached 23.68 (issue 99 of the
original). 151,107,538 parameters.
Validation (Table 6): 23.43 at the attention length of training, 150, 23.35 at
300, 23.16 at 450, 23.09 at 640.
Hardware: the original needs 4 GPUs. Compiled for one in bfloat16
(docs/scaling.md), a step takes 7.1 GiB, which fits a card of 24 GB; not timed
here.
Every value is published (the script of the original PyTorch code);
model.tail_order='descending' is its order of the tail logits.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'wt103'
  c.model.n_layer = 16
  c.model.d_model = 410
  c.model.n_head = 10
  c.model.d_head = 41
  c.model.d_ff = 2100
  c.model.mem_len = 150
  c.model.dropout = 0.1
  c.model.dropatt = 0.0
  c.model.cutoffs = (20_000, 40_000, 200_000)
  c.model.tail_order = 'descending'
  c.train.steps = 200_000
  c.train.batch_size = 60
  c.train.segment_len = 150
  c.optim.lr = 2.5e-4
  c.eval.split = 'test'
  c.eval.segment_len = 64
  c.generate.segment_len = 64
  c.attention_length.lengths = (150, 300, 450, 640)
  common.at_test_time(c, mem_len=640, clamp_len=400, same_length='M')
  return c
