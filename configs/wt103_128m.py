"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-103, ablations.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=configs/wt103_128m.py

Published (Table 6): 26.77 validation perplexity at attention length 500, 27.02
at that of training; 128M parameters, here 127,896,282.
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 6
GiB, which fits a card of 24 GB; not timed here.
Never published: the widths and the batch. 12 layers, D 384, 8 heads of 48 and
F 1728 are our own choice, which meets the 128M parameters; the rest is as
wt103_base but for segments of 128.
"""

from configs import common, wt103_base


def get_config():
  """The config."""
  c = wt103_base.get_config()
  c.model.n_layer = 12
  c.model.d_model = 384
  c.model.n_head = 8
  c.model.d_head = 48
  c.model.d_ff = 1728
  c.model.mem_len = 128
  c.train.segment_len = 128
  c.eval.segment_len = 128
  c.generate.segment_len = 128
  c.eval.split = 'validation'
  common.at_test_time(c, mem_len=372, clamp_len=0, same_length='M')
  return c
