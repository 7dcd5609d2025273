"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), on text8, 12 layers.

  python -m txl_jax.prepare --dataset=text8
  python -m txl_jax.main --config=configs/text8_12l.py

Published: nothing for this size; 40,964,635 parameters.
Hardware: not measured here; as enwik8_12l.
Never published: a recipe for text8 at this size. This is that of
enwik8_12l.
"""

from configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'text8'
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
  c.eval.mem_len = 2100
  c.eval.clamp_len = 820
  c.eval.same_length = 'M'
  c.generate.mem_len = 2100
  c.generate.clamp_len = 820
  c.generate.same_length = 'M'
  return c
