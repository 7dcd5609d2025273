"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), Penn Treebank.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=ptb

Published: 54.52 perplexity on the test split. The authors' code for it,
released in 2020 (issue 109 of the original), has 24,040,400 parameters; four
logs of it end at 55.26, 55.27, 55.36 and 55.60 (validation 59.5 to 60.1).
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 0.7
GiB; on 2 CPU cores, 0.88 s (docs/results.md). Not timed on a GPU.
Every value is from that code. An epoch has about 1,373 steps. The logs divide
the nll of the 7,375 pairs of each row of the validation split by 7,376, so
compare them with exp(nats x 7,375 / 7,376) of ours, which also scores the nine
pairs between rows. The same holds for their test split, one row of 82,430
tokens.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'ptb'
  c.model.n_layer = 16
  c.model.d_model = 380
  c.model.n_head = 10
  c.model.d_head = 38
  c.model.d_ff = 900
  c.model.mem_len = 0
  c.model.tie_positions = True
  c.model.dropout = 0.2
  c.model.dropatt = 0.2
  c.model.dropout_qkv = 0.2
  c.model.dropout_embed = 0.6
  c.model.dropout_table = 0.6
  c.model.dropout_final = 0.5
  c.model.locked_dropout = True
  c.model.locked_table = True
  c.model.word_dropout = 0.2
  c.model.dropped_words = 'tiny'
  c.model.activation_reg = 0.2
  c.model.activation_reg_dropped = False
  c.model.temporal_activation_reg = 0.1
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
  c.optim.lr = 3e-4
  c.optim.lr_table = 6e-4
  c.optim.lr_floor = 1 / 3
  c.optim.schedule = 'annealing'
  c.optim.warmup = 3000
  c.optim.cosine_end = 166_000
  c.optim.l2 = 1.2e-6
  c.optim.average = 'swa'
  c.optim.average_start_epoch = 125
  c.optim.average_factor = 0.5
  c.eval.split = 'test'
  c.eval.segment_len = 10
  c.eval.context = 130
  c.eval.temperature = 1.08
  c.generate.segment_len = 70
  c.generate.window = 140
  return c
