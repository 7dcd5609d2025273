"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), enwik8, 18 layers.

  python -m txl_jax.prepare --dataset=enwik8 --newline=drop
  python -m txl_jax.main --config=enwik8_18l

Published: 1.03 bpc on the test split (T 80, M 2100, clamp_len 820,
same_length); 88M parameters, here 87,227,852.
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 5.8
GiB, which fits a card of 24 GB; not timed here.
Never published: the widths. D 640, 10 heads of 64 and F 2176 are our choice,
which gives the 88M parameters within 1 %.
"""

from txl_jax.configs import enwik8_12l


def get_config():
  """The config."""
  c = enwik8_12l.get_config()
  c.model.n_layer = 18
  c.model.d_model = 640
  c.model.n_head = 10
  c.model.d_ff = 2176
  return c
