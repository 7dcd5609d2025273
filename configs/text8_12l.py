"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), on text8, 12 layers.

  python -m txl_jax.prepare --dataset=text8
  python -m txl_jax.main --config=text8_12l

Published: no result for this size; 40,964,635 parameters.
Hardware: compiled as enwik8_12l; not timed here.
This is enwik8_12l's recipe. The authors' TensorFlow script for this size
(text8_base_gpu.sh) differs in its batch, 24, as theirs for enwik8 does.
"""

from txl_jax.configs import enwik8_12l


def get_config():
  """The config."""
  c = enwik8_12l.get_config()
  c.data.corpus = 'text8'
  c.data.newline = 'keep'
  return c
