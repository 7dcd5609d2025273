"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-103, ablations.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=configs/wt103_128m.py

Published (Table 6): 26.77 validation perplexity at attention length 500, 27.02
at that of training; 128M parameters, here 127,896,282.
Hardware: not measured here; about the work of wt103_base.
Never published: the widths and the batch. 12 layers, D 384, 8 heads of 48 and
F 1728 are our own choice, which meets the 128M parameters; the rest is as
wt103_base but for segments of 128.
"""

from configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'wt103'
  c.model.n_layer = 12
  c.model.d_model = 384
  c.model.n_head = 8
  c.model.d_head = 48
  c.model.d_ff = 1728
  c.model.mem_len = 128
  c.model.dropout = 0.1
  c.model.dropatt = 0.0
  c.model.cutoffs = (20_000, 40_000, 200_000)
  c.train.steps = 200_000
  c.train.batch_size = 60
  c.train.segment_len = 128
  c.optim.lr = 2.5e-4
  c.eval.segment_len = 128
  c.eval.mem_len = 372
  c.eval.same_length = 'M'
  c.generate.segment_len = 128
  c.generate.mem_len = 372
  c.generate.same_length = 'M'
  return c
