r"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860), One Billion Word, large.

  python -m txl_jax.prepare --dataset=lm1b --boundaries=2 \
    --vocab_file=1b_word_vocab.txt
  python -m txl_jax.main --config=lm1b_large --config.data.boundaries=2 \
    --config.experiment=lm1b_large

Published: 21.8 perplexity on the test split, with n + 2 scored tokens for a
sentence of n words, one of them trivial, as data.boundaries=2 counts them in
training and evaluation. Without it, n + 1 are counted, as in lm1b_base, and the
perplexity is higher.
841,354,862 parameters, with biases u and v per layer.
Hardware: the authors used 512 TPU cores (their tf/README.md). Compiled for one
GPU in bfloat16 (docs/scaling.md), a step takes 47 GiB, which fits a card of 80
GB; not timed here.
With data.boundaries=2, every value is published (the script of the original
TensorFlow code).
"""

from txl_jax.configs import lm1b_base


def get_config():
  """The config."""
  c = lm1b_base.get_config()
  c.model.n_layer = 24
  c.model.d_model = 1280
  c.model.n_head = 16
  c.model.d_head = 80
  c.model.d_ff = 8192
  c.model.dropout = 0.05
  c.model.dropatt = 0.05
  c.model.untie_biases = True
  c.model.init_std = 0.005
  c.train.steps = 1_200_000
  c.train.batch_size = 512
  c.optim.lr = 0.0001
  c.optim.warmup = 30_000
  c.optim.cosine_shifted = True
  c.optim.lr_floor = 0.01
  return c
