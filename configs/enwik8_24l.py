"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), enwik8, 24 layers.

  python -m txl_jax.prepare --dataset=enwik8 --newline=drop
  python -m txl_jax.main --config=enwik8_24l

Published: 0.99 bpc on the test split (T 128, M 3800, clamp_len 1000,
same_length); 277,231,820 parameters.
Hardware: the authors used 32 TPU cores (their tf/README.md). Compiled for one
GPU in bfloat16 (docs/scaling.md), a step takes 45 GiB, which fits a card of 80
GB; 17 with train.accumulate=4 and 14 with model.remat=layer.
XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 lets JAX use the whole card. An H100 trained
16 rows at 113,000 tokens/s (docs/benchmarks.md; 2026-11-23, with an earlier
version).
Every value is published (the script of the original TensorFlow code).
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'enwik8'
  c.data.newline = 'drop'  # the published protocol
  c.model.n_layer = 24
  c.model.d_model = 1024
  c.model.n_head = 8
  c.model.d_head = 128
  c.model.d_ff = 3072
  c.model.mem_len = 768
  c.model.dropout = 0.15
  c.model.dropatt = 0.15
  c.train.steps = 400_000
  c.train.batch_size = 64
  c.train.segment_len = 768
  c.optim.lr = 2.5e-4
  c.optim.warmup = 4000
  c.optim.cosine_shifted = True
  c.optim.lr_floor = 0.01
  c.eval.split = 'test'
  c.eval.segment_len = 128
  common.at_test_time(c, mem_len=3800, clamp_len=1000, same_length='M')
  return c
