"""The character Transformer of Al-Rfou et al. 2018 (arXiv 1808.04444).

  python -m txl_jax.prepare --dataset=enwik8 --alphabet=bytes
  python -m txl_jax.main --config=al_rfou:enwik8_12l
  python -m txl_jax.main --config=al_rfou:enwik8_12l --mode=eval

Published, test bpc: enwik8_12l 1.11, enwik8_64l 1.06, text8_12l 1.18 and
text8_64l 1.13; 44.2M parameters in training and 41.2M at inference with 12
layers (here 44,232,704 and 41,212,160), 235.3M and 218.7M with 64 (235,339,776
and 218,661,120).
Hardware: 64 layers on a cluster of TPUs; not timed here.
As published: all 256 bytes as symbols; independent segments of 512; three
auxiliary losses; momentum 0.99, rate 0.003, dropout 0.55, batch 16 and 4M steps
(these five are unconfirmed); for evaluation, a window of 512 that slides by one
byte. Never published: initialisation and gradient clipping; both follow
Transformer-XL.
"""

from txl_jax.configs import common

VARIANTS = 'enwik8_12l', 'enwik8_64l', 'text8_12l', 'text8_64l'


def get_config(variant='enwik8_12l'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  corpus, layers = variant.split('_')
  c = common.get_config('al_rfou')
  c.data.corpus = corpus
  c.data.alphabet = 'bytes'
  c.model.n_layer = int(layers.removesuffix('l'))
  c.model.d_model = 512
  c.model.n_head = 8
  c.model.d_head = 64
  c.model.d_ff = 2048
  c.model.table_len = 512
  c.model.layer_losses = True
  c.model.second_target = 0.5
  c.model.tie_weights = False
  c.model.dropout = 0.55
  c.train.steps = 4_000_000
  c.train.batch_size = 16
  c.train.segment_len = 512
  c.optim.name = 'sgd'
  c.optim.momentum = 0.99
  c.optim.lr = 0.003
  c.optim.schedule = 'constant'
  c.eval.split = 'test'
  c.eval.window = 512
  c.generate.window = 512
  return c
