"""A small Transformer-XL on Penn Treebank, on a CPU in minutes.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=configs/ptb_tiny.py

Not from the paper: a first word-level run, and the ground on which to compare
regularisers.
Expected: not measured to its end yet. With --config.train.steps=7000, stopped
early: 171 validation perplexity after 1,000 steps, 2 CPU cores.
"""

from configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'ptb'
  c.model.n_layer = 3
  c.model.d_model = 192
  c.model.n_head = 6
  c.model.d_head = 32
  c.model.d_ff = 768
  c.model.mem_len = 64
  c.model.dropout = 0.2
  c.model.dropatt = 0.0
  c.model.unroll = 3
  c.train.steps = 5000
  c.train.batch_size = 16
  c.train.segment_len = 64
  c.train.log_every = 100
  c.train.eval_every = 1000
  c.train.eval_batch_size = 10
  c.train.save_every = 1000
  c.optim.lr = 1e-3
  c.optim.warmup = 300
  c.eval.split = 'test'
  c.eval.segment_len = 64
  c.eval.mem_len = 128
  c.generate.segment_len = 64
  c.generate.mem_len = 128
  return c
