"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), text8, 24 layers.

  python -m txl_jax.prepare --dataset=text8
  python -m txl_jax.main --config=text8_24l

Published: 1.08 bpc on the test split (T 128, M 3800, clamp_len 1000,
same_length); 277,050,395 parameters.
Hardware: compiled as enwik8_24l; not timed here.
Every value is published (the script of the original TensorFlow code).
"""

from txl_jax.configs import enwik8_24l


def get_config():
  """The config."""
  c = enwik8_24l.get_config()
  c.data.corpus = 'text8'
  c.data.newline = 'keep'
  return c
