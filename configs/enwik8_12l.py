"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), enwik8, 12 layers.

  python -m txl_jax.prepare --dataset=enwik8 --newline=drop
  python -m txl_jax.main --config=enwik8_12l

Published: 1.06 bpc on the test split (T 80, M 2100, clamp_len 820,
same_length); 41,055,436 parameters.
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 3.1
GiB, or 9.7 with plain operations (model.attention=xla). An H100 trained models
of this size at 492,000 tokens/s (docs/benchmarks.md; 2026-11-23, with an
earlier version): 2.5 hours for 400,000 steps.
Every value is published (the script of the original PyTorch code).
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'enwik8'
  c.data.newline = 'drop'  # the published protocol
  c.model.n_layer = 12
  c.model.d_model = 512
  c.model.n_head = 8
  c.model.d_head = 64
  c.model.d_ff = 2048
  c.model.mem_len = 512
  c.model.dropout = 0.1
  c.model.dropatt = 0.0
  c.train.steps = 400_000
  c.train.batch_size = 22
  c.train.segment_len = 512
  c.optim.lr = 2.5e-4
  c.eval.split = 'test'
  c.eval.segment_len = 80
  common.at_test_time(c, mem_len=2100, clamp_len=820, same_length='M')
  return c
