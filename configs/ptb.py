"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), Penn Treebank.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=ptb

Published: 54.52 perplexity on the test split with 24M parameters, variational
dropout and weight averaging; here 23,845,904 parameters.
Hardware: three epochs on a CPU (docs/results.md). Compiled for one GPU in
float32 (docs/scaling.md), a step takes 1.2 GiB, which fits any card.
Streams, lengths and evaluation are those of the code that its authors released
in 2020. Their logs divide the nll of the 7,375 pairs of a row of the validation
split by 7,376: that is exp(nats x 7,375 / 7,376) of ours, which scores the nine
pairs between rows besides. Their test is one row of 82,430 tokens, likewise.
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
  c.model.mem_len = 0
  c.model.dropout = 0.3
  c.model.dropatt = 0.1
  c.model.locked_dropout = True
  c.model.dropout_embed = 0.3
  c.model.dropout_final = 0.4
  c.model.word_dropout = 0.1
  c.train.epochs = 175
  c.train.batch_size = 10
  c.train.rows = 'apart'
  c.train.segment_len = 70
  c.train.context = 70
  c.train.varlen = True
  c.train.varlen_limit = 0
  c.train.varlen_rate = True
  c.train.eval_every_epochs = 1
  c.train.eval_segment_len = 10
  c.train.eval_context = 130
  c.train.save_every = 1000
  c.optim.lr = 3.5e-4
  c.optim.warmup = 2000
  c.optim.weight_decay = 0.1
  c.optim.average = 'swa'
  c.optim.average_start_epoch = 125
  c.eval.split = 'test'
  c.eval.segment_len = 10
  c.eval.context = 130
  c.eval.temperature = 1.08
  c.generate.segment_len = 70
  c.generate.window = 140
  return c
