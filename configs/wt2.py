"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-2.

  python -m txl_jax.prepare --dataset=wt2
  python -m txl_jax.main --config=wt2

Not in the paper: the recipe of Schlag, Munkhdalai and Schmidhuber 2021 (arXiv
2011.07831), whose code is the original with the dropout of the authors' code
for Penn Treebank. Their four logs, each with its own seed and one with 0.3 of
words and 0.7 of embeddings dropped, end at a test perplexity of 63.1 to 63.5
(validation 65.9 to 66.5). 37,712,881 parameters: the cutoffs are
WikiText-103's, so two tails are empty.
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 3.2
GiB; not timed here.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'wt2'
  c.model.n_layer = 16
  c.model.d_model = 400
  c.model.n_head = 10
  c.model.d_head = 40
  c.model.d_ff = 900
  c.model.mem_len = 150
  c.model.cutoffs = (20_000, 40_000, 200_000)
  c.model.tail_order = 'descending'
  c.model.dropout = 0.2
  c.model.dropatt = 0.2
  c.model.dropout_qkv = 0.2
  c.model.dropout_embed = 0.6
  c.model.dropout_table = 0.6
  c.model.dropout_final_plain = 0.2
  c.model.dropout_final = 0.5
  c.model.locked_dropout = True
  c.model.locked_table = True
  c.model.word_dropout = 0.2
  c.model.dropped_words = 'tiny'
  c.train.steps = 125_000
  c.train.batch_size = 32
  c.train.segment_len = 150
  c.train.eval_every = 1000
  c.train.save_every = 1000
  c.optim.lr = 3.5e-4
  c.optim.warmup = 3000
  c.optim.l2 = 1.2e-6
  c.eval.split = 'test'
  c.eval.batch_size = 10
  c.eval.segment_len = 150
  c.generate.segment_len = 150
  return c
