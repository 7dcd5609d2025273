"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), WikiText-103, large.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=wt103_large

Published: 18.3 perplexity on the test split (T 128, M 1600, clamp_len 1000,
same_length). 285,205,322 parameters with biases u and v per layer, as in the
script; the paper's 257M is unexplained.
Hardware: the authors used 64 TPU cores (their tf/README.md). Compiled for one
GPU in bfloat16 (docs/scaling.md), a step takes 44 GiB, which fits a card of 80
GB; 16 GiB with train.accumulate=4 and 18 with model.remat=layer fit one of 24
GB; XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 lets JAX take that much. Not timed here.
Every value is published (the script of the original TensorFlow code).
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'wt103'
  c.model.n_layer = 18
  c.model.d_model = 1024
  c.model.n_head = 16
  c.model.d_head = 64
  c.model.d_ff = 4096
  c.model.mem_len = 384
  c.model.dropout = 0.2
  c.model.dropatt = 0.2
  c.model.cutoffs = (20_000, 40_000, 200_000)
  c.model.div_val = 4
  c.model.tie_projs = (False, True, True, True)
  c.model.untie_biases = True
  c.model.init_std = 0.005
  c.train.steps = 4_000_000
  c.train.batch_size = 128
  c.train.segment_len = 384
  c.optim.lr = 2.5e-4
  c.optim.warmup = 16_000
  c.optim.cosine_shifted = True
  c.optim.lr_floor = 0.01
  c.eval.split = 'test'
  c.eval.segment_len = 128
  c.generate.segment_len = 128
  common.at_test_time(c, mem_len=1600, clamp_len=1000, same_length='M')
  return c
