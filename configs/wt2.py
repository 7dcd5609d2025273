"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-2.

  python -m txl_jax.prepare --dataset=wt2
  python -m txl_jax.main --config=wt2

Not in the paper: the recipe of configs/ptb.py, for a text of twice its size
and 32,807,934 parameters. It has not been tuned.
Hardware: compiled for one GPU in float32 (docs/scaling.md), a step takes 1.5
GiB, which fits any card; not timed here.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'wt2'
  c.model.n_layer = 14
  c.model.d_model = 384
  c.model.n_head = 8
  c.model.d_head = 48
  c.model.d_ff = 896
  c.model.mem_len = 70
  c.model.dropout = 0.3
  c.model.dropatt = 0.1
  c.model.locked_dropout = True
  c.model.dropout_embed = 0.3
  c.model.dropout_final = 0.4
  c.model.word_dropout = 0.1
  c.train.steps = 200_000
  c.train.batch_size = 20
  c.train.segment_len = 70
  c.train.eval_every = 1000
  c.train.save_every = 1000
  c.optim.lr = 3.5e-4
  c.optim.warmup = 2000
  c.optim.weight_decay = 0.05
  c.optim.average = 'ema'
  c.optim.ema_decay = 0.999
  c.eval.split = 'test'
  c.eval.segment_len = 70
  c.generate.segment_len = 70
  common.at_test_time(c, mem_len=350, same_length='M')
  return c
