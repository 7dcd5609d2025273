"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), Penn Treebank.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=ptb

Published: 54.52 perplexity on the test split with 24M parameters, variational
dropout and weight averaging; here 23,845,904 parameters.
Hardware: three epochs on a CPU (docs/results.md). Compiled for one GPU in
float32 (docs/scaling.md), a step takes 1.2 GiB, which fits any card.
Never published: all else. Widths, rates and schedule are our own choice, and
nobody has reached the figure with them yet; docs/results.md tells what mattered
on a small model.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'ptb'
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
  c.train.steps = 100_000
  c.train.batch_size = 20
  c.train.segment_len = 70
  c.train.eval_every = 1000
  c.train.save_every = 1000
  c.optim.lr = 3.5e-4
  c.optim.warmup = 2000
  c.optim.weight_decay = 0.1
  c.optim.average = 'ema'
  c.optim.ema_decay = 0.999
  c.eval.split = 'test'
  c.eval.segment_len = 70
  c.generate.segment_len = 70
  common.at_test_time(c, mem_len=140, same_length='M')
  return c
