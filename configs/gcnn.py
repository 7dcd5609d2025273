"""Gated convolutional networks (Dauphin et al. 2017, arXiv 1612.08083).

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=gcnn:14

Baselines of the Transformer-XL paper: on WikiText-103 the variants 8 and 14, on
One Billion Word 14b; also on One Billion Word, Dauphin et al.'s 13, and 9 and
8b of their speed comparison. One Billion Word needs

  python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt

The variant ptb needs Penn Treebank: python -m txl_jax.prepare --dataset=ptb.

Published, perplexity on the test split: GCNN-8 44.9, GCNN-14 37.2, GCNN-13
38.1, GCNN-14B 31.9, GCNN-9 and GCNN-8B about 43.9 (speed comparison); a
GCNN without details 108.7 on Penn Treebank: the rest of `ptb` is our
choice. Also published: the blocks, the widths of the embeddings, weight
normalisation, an adaptive softmax, Nesterov momentum 0.99, gradients clipped at
0.1, a learning rate drawn from 1 to 2. The blocks of 8, 9 and 8b and the
cutoffs of 9 and 8b are recalled from Table 1 of that paper, and 108.7 from its
text, not checked again. From fairseq, its authors' public code: the cutoffs of
8, 14, 13 and 14b, and for WikiText-103 dropout 0.2 and a rate of 1 that is
halved when validation stops improving. fairseq's command for WikiText-103 also
has a weight decay of 5e-6, batches of 1,024 tokens (--max-tokens) and 35
epochs. Ours differs: B 64, T 128, 200,000 steps (16 epochs; 500,000 steps on
One Billion Word) and no weight decay. These values, the initial embeddings, the
evaluation interval, and no dropout on One Billion Word are our choice, untuned.
A position sees 24 to 56 words before it, whatever T is.
Hardware: the authors used Tesla M40 GPUs: one for GCNN-13, 4 for GCNN-14 and 8
for GCNN-14B. Neither compiled for a GPU nor timed here.
Parameters, by hand: 145,437,728 (8), 223,752,436 (14), 307,252,779 (13),
427,201,730 (14b), 159,355,535 (9), 154,287,842 (8b) and 7,823,376 (ptb).
"""

from txl_jax.configs import common

# The corpus, D, and the blocks.
PUBLISHED = {
  '8': ('wt103', 280, '[4,900]*8'),
  '14': (
    'wt103',
    280,
    '[6,850]*3 [1,850] [5,850]*4 [1,850] [4,850]*3 [4,1024] [4,2048]',
  ),
  '13': ('lm1b', 128, '[4,1268]*13'),
  '14b': (
    'lm1b',
    128,
    '[5,512] [1,128 5,128 1,512]*3 [1,512 5,512 1,1024]*3 '
    '[1,1024 5,1024 1,2048]*6 [1,1024 5,1024 1,4096]',
  ),
  '9': ('lm1b', 128, '[4,807] [4,807 4,807]*4'),
  '8b': (
    'lm1b',
    128,
    '[1,512] [1,128 5,128 1,512]*3 [1,256 5,256 1,512]*3 '
    '[1,1024 1,1024 1,2048]',
  ),
  'ptb': ('ptb', 128, '[4,256]*8'),
}
VARIANTS = tuple(PUBLISHED)


def get_config(variant='8'):
  """The config of GCNN-8, 14, 13, 14B, 9 or 8B, or one for Penn Treebank."""
  common.check_variant(variant, VARIANTS)
  c = common.get_config('gcnn')
  c.data.corpus, c.model.d_model, c.model.blocks = PUBLISHED[variant]
  words = c.data.corpus == 'wt103'
  c.model.tie_weights = False
  c.model.cutoffs = (10_000, 20_000 if words else 50_000, 200_000)
  if variant in ('9', '8b'):
    c.model.cutoffs = (2_000, 10_000, 50_000)
  c.model.div_val = 4
  c.model.init_std = 0.1
  c.model.dropout = 0.2 if words else 0.0
  c.train.steps = 200_000 if words else 500_000
  c.train.batch_size = 64
  c.train.segment_len = 128
  c.train.eval_every = 10_000
  c.train.save_every = 10_000
  c.optim.name = 'sgd'
  c.optim.momentum = 0.99
  c.optim.nesterov = True
  c.optim.lr = 1.0
  c.optim.clip = 0.1
  c.optim.schedule = 'plateau'
  c.eval.split = 'test'
  if variant == 'ptb':
    _ptb(c)
  return c


def _ptb(c):
  epoch = 664
  c.model.cutoffs = ()
  c.model.div_val = 1
  c.model.dropout = 0.5
  c.train.steps = 60 * epoch
  c.train.batch_size = 20
  c.train.segment_len = 70
  c.train.eval_every = epoch
  c.train.save_every = epoch
  c.eval.segment_len = 70
  c.generate.segment_len = 70
